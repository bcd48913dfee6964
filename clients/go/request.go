// SPDX-License-Identifier: MIT OR Apache-2.0

package slock

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// This file has what is wanted: keys, a mode and options.

// Request is what a Locks is asked for: keys, a mode and options. It is a value, and may be used many times and by
// several goroutines at once.
type Request struct {
	locks    *Locks // nil: made by nobody
	keys     []string
	mode     Mode
	settings *requestSettings // shared; nobody changes it
	adopts   bool             // what the token holds, and never takes a lock
}

// With is the request with further options.
func (r Request) With(options ...RequestOption) Request {
	settings := *r.settings
	for _, option := range options {
		option(&settings)
	}
	r.settings = &settings
	return r
}

// Lock waits until the lock is granted, and gives the hold. The wait ends with ErrTimedOut at the end of Wait or at the
// deadline of ctx, and with the error of ctx if ctx is cancelled. It ends with ErrNoAnswer if no reply comes from the
// server: after RetryFor if there never was one, else after RetryWaitFor. A Lock that failed leaves neither a hold nor a
// place in the queue: what has to be sent for that is sent in the background.
//
// A quorum polls. Its error is ErrTimedOut if a majority of nodes refused, and else ErrQuorumMissed; errors.As finds an
// *Error in it, which has the reply of each node.
//
// The hold outlives ctx. It has to be released.
func (r Request) Lock(ctx context.Context) (*Hold, error) { return r.acquire(ctx, false) }

// TryLock sends the request once, and gives the hold, or ErrNotAcquired if others hold the lock or wait for it.
func (r Request) TryLock(ctx context.Context) (*Hold, error) { return r.acquire(ctx, true) }

func (r Request) acquire(ctx context.Context, try bool) (*Hold, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	r.locks.running.Add(1)
	defer r.locks.running.Add(-1)
	began, values := time.Now(), context.WithoutCancel(ctx)
	got, err := r.locks.backend.acquire(ctx, &r, try)
	if r.adopts && (errors.Is(err, ErrNotAcquired) || errors.Is(err, ErrWrongMode)) {
		err = notHeld(r.keys)
	}
	r.locks.report.waited(values, r.settings.labelFor(r.keys), began, err)
	if err != nil {
		return nil, err
	}
	return r.locks.hold(values, &r, got), nil
}

// Do runs the work under the lock: it waits as Lock does, runs the work, and releases. The work's context is ctx, and
// ends with ErrLost as its cause if the hold is lost. Do then waits for the work to return, and its error is
// ErrLost, joined with the work's own if there is one. Else it is the work's error: a release that fails is no error
// of finished work. It is logged, the hook ReleaseFailed is called, and the lock ends by its ttl. HoldFrom gives the work
// its hold, for example for the fence.
func (r Request) Do(ctx context.Context, work func(ctx context.Context) error) error {
	hold, err := r.Lock(ctx)
	if err != nil {
		return err
	}
	return hold.run(ctx, work)
}

// Adopt makes a hold of the request's keys and mode from an owner token that another process took and detached, and
// renews it from now on. It fails with ErrNotHeld if the token does not hold all keys in the mode.
func (r Request) Adopt(ctx context.Context, token string) (*Hold, error) {
	r = r.With(Token(token))
	r.adopts = true
	return r.acquire(ctx, true)
}

// HoldFrom gives the hold under which Do runs the work of this context.
func HoldFrom(ctx context.Context) (*Hold, bool) {
	hold, ok := ctx.Value(holdKey{}).(*Hold)
	return hold, ok
}

type holdKey struct{}

func (r *Request) check() error {
	if r.locks == nil {
		return invalid("make requests by Locks.Write and Locks.Read")
	}
	return cmp.Or(r.settings.check(r.keys, r.mode), r.locks.settings.checkTTL(r.settings.ttl), r.locks.usable())
}

// owner is a new owner: with the program's token, or one that is drawn.
func (r *Request) owner() owner {
	return newOwner(r.keys, r.locks.settings.prefix, r.settings.token)
}

// ask asks for the lock, or for what the owner holds.
func (r *Request) ask(o owner) Call {
	if r.adopts {
		return o.adopt(r.mode, r.settings.ttl, r.settings.metadata)
	}
	return o.lock(r.mode, r.settings)
}

func (s *requestSettings) labelFor(keys []string) string { return cmp.Or(s.label, keys[0]) }
