// SPDX-License-Identifier: MIT OR Apache-2.0

package slock

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// This file tells the program and the log what happens. It decides nothing.

// Hooks are functions that are called when a lock is granted, released or lost, with the label of the request. Those
// that are nil are not called. The context has the values of that of the call, such as its span, and is not cancelled
// with it. Hooks are called from several goroutines at once, and must not block. If a hook panics, that is logged, and
// changes nothing else.
type Hooks struct {
	// Waited is called when an acquisition ended, with how long it took. The outcome is "granted", "refused" (by
	// TryLock), "timed out", "cancelled", or the name of an error, such as "Deadlock".
	Waited func(ctx context.Context, label string, duration time.Duration, outcome string)
	// Held is called when a hold ended, released or lost, with the time since the grant.
	Held func(ctx context.Context, label string, duration time.Duration)
	// Lost is called when a hold is lost.
	Lost func(ctx context.Context, label string, loss *Error)
	// RenewalFailed is called when a renewal got an error or no reply. It is sent again until the hold expires.
	RenewalFailed func(ctx context.Context, label string, err error)
	// ReleaseFailed is called when a release got an error or no reply in time. The lock ends by its ttl.
	ReleaseFailed func(ctx context.Context, label string, err error)
}

// reporter calls the hooks and writes the log of one Locks or Quorum.
type reporter struct {
	hooks Hooks
	log   *slog.Logger

	failing   atomic.Int64 // since when no reply comes, in Unix nanoseconds; 0: replies come
	unreached atomic.Bool  // that was logged
}

// recovered logs the panic of a hook.
func (r *reporter) recovered(ctx context.Context) {
	if what := recover(); what != nil {
		r.log.ErrorContext(ctx, "slock: a hook panicked", "panic", what, "stack", string(debug.Stack()))
	}
}

// tell calls a hook, if there is one.
func tell[T any](r *reporter, hook func(context.Context, string, T), ctx context.Context, label string, value T) {
	defer r.recovered(ctx)
	if hook != nil {
		hook(ctx, label, value)
	}
}

func (r *reporter) waited(ctx context.Context, label string, began time.Time, err error) {
	defer r.recovered(ctx)
	if r.hooks.Waited != nil {
		r.hooks.Waited(ctx, label, time.Since(began), outcome(err))
	}
}

func (r *reporter) lost(ctx context.Context, label string, loss *Error) {
	r.warn(ctx, "a lock was lost", label, loss.Keys, errors.Join(loss.causes...), "reason", string(loss.Reason))
	tell(r, r.hooks.Lost, ctx, label, loss)
}

func (r *reporter) releaseFailed(ctx context.Context, label string, keys []string, err error) {
	r.warn(ctx, "a release failed; the lock ends by its ttl", label, keys, err)
	tell(r, r.hooks.ReleaseFailed, ctx, label, err)
}

// warn writes to the log what happened to a lock, with the cause if there is one.
func (r *reporter) warn(ctx context.Context, what, label string, keys []string, cause error, values ...any) {
	values = append([]any{"keys", keys, "label", label}, values...)
	if cause != nil {
		values = append(values, "cause", cause)
	}
	r.log.WarnContext(ctx, "slock: "+what, values...)
}

// polls warns that requests cannot wait in order.
func (r *reporter) polls(err error) {
	r.log.Warn("slock: waits poll, and are not served in order, because the user may not use channels", "error", err)
}

// logOutageAfter is how long no reply comes before that is logged: a connection may be lost at any time.
const logOutageAfter = time.Second

// reached notes whether the server replied, and logs when that changes.
func (r *reporter) reached(err error) {
	switch since := r.failing.Load(); {
	case err == nil:
		if since != 0 && r.failing.Swap(0) != 0 && r.unreached.Swap(false) {
			r.log.Info("slock: the server replies again")
		}
	case since == 0:
		r.failing.Store(time.Now().UnixNano())
	case time.Since(time.Unix(0, since)) > logOutageAfter && r.unreached.CompareAndSwap(false, true):
		r.log.Warn("slock: no reply from the server", "error", err)
	}
}
