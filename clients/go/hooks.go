package slock

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// This file tells the program and the log what happens. It decides nothing.

// Hooks are functions that hear of waits, holds and losses, by the label of the request. Those that are nil are not
// called. They are called from the goroutines of this package and of its callers, several at once: they must not
// block.
type Hooks struct {
	// Waited is called when an acquisition ended, with how long it took. The outcome is "granted", "refused"
	// (by TryLock), "timed out", "cancelled", or the name of an error, such as "Deadlock".
	Waited func(label string, duration time.Duration, outcome string)
	// Held is called when a hold ended, released or lost, with how long it lasted.
	Held func(label string, duration time.Duration)
	// Lost is called when a hold is lost.
	Lost func(label string, reason Reason)
	// RenewalFailed is called when a renewal got an error or no answer. It is tried again until the hold expires.
	RenewalFailed func(label string, err error)
	// ReleaseFailed is called when a release got an error or no answer in time. The lock ends by its ttl.
	ReleaseFailed func(label string, err error)
}

// reporter calls the hooks and writes the log of one Locks or Quorum.
type reporter struct {
	hooks Hooks
	log   *slog.Logger

	failing   atomic.Int64 // since when the server does not answer, in Unix nanoseconds; 0: it does
	unreached atomic.Bool  // that was logged
}

func (r *reporter) waited(label string, duration time.Duration, outcome string) {
	if r.hooks.Waited != nil {
		r.hooks.Waited(label, duration, outcome)
	}
}

func (r *reporter) held(label string, duration time.Duration) {
	if r.hooks.Held != nil {
		r.hooks.Held(label, duration)
	}
}

func (r *reporter) lost(label string, loss *LostError) {
	r.log.Warn("slock: a lock is lost", "lock", label, "reason", string(loss.Reason), "cause", loss.Cause)
	if r.hooks.Lost != nil {
		r.hooks.Lost(label, loss.Reason)
	}
}

func (r *reporter) renewalFailed(label string, err error) {
	r.log.Debug("slock: a renewal failed", "lock", label, "error", err)
	if r.hooks.RenewalFailed != nil {
		r.hooks.RenewalFailed(label, err)
	}
}

func (r *reporter) releaseFailed(label string, err error) {
	r.log.Warn("slock: a release failed, the lock ends by its ttl", "lock", label, "error", err)
	if r.hooks.ReleaseFailed != nil {
		r.hooks.ReleaseFailed(label, err)
	}
}

// blocks tells that waits have connections of their own from now on.
func (r *reporter) blocks(err error) {
	r.log.Warn("slock: waits by blocking, because the user may not use the channels", "error", err)
}

// logOutageAfter is how long the server does not answer before that is logged: a connection may be lost at any time.
const logOutageAfter = time.Second

// reached notes whether the server answered, and logs when that changes.
func (r *reporter) reached(err error) {
	switch since := r.failing.Load(); {
	case !isConnectionError(err):
		if since != 0 && r.failing.Swap(0) != 0 && r.unreached.Swap(false) {
			r.log.Debug("slock: the server is in reach again")
		}
	case since == 0:
		r.failing.Store(time.Now().UnixNano())
	case time.Since(time.Unix(0, since)) > logOutageAfter && r.unreached.CompareAndSwap(false, true):
		r.log.Warn("slock: the server is out of reach", "error", err)
	}
}
