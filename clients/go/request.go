package slock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"
)

// This file has what is wanted: keys, a mode and options.

// Request is what a Locker is asked for: keys, a mode and options. It is a value, and may be used many times and by
// several goroutines at once: each use takes a token of its own.
type Request struct {
	base     *base // nil: made by nobody
	keys     []string
	mode     Mode
	settings requestSettings
}

// With is the request with further options.
func (r Request) With(options ...RequestOption) Request {
	for _, option := range options {
		option(&r.settings)
	}
	return r
}

// Lock waits until the lock is granted, and gives the hold. The wait ends with ErrTimedOut at the end of Wait
// or at the deadline of ctx, also when the server is silent, and with the error of ctx when ctx is cancelled. When no
// server can be reached it ends with that error: after RetryFor if none has answered the request yet, else after
// RetryWaitFor. A Lock that failed leaves neither a hold nor a place in the queue: what has to be sent for that is
// sent in the background.
//
// A quorum asks again and again. Its error is ErrTimedOut if a majority of nodes refused, and else ErrQuorumMissed; errors.As
// finds a *QuorumError in it, which says what each node answered.
//
// The hold outlives ctx. It has to be released.
func (r Request) Lock(ctx context.Context) (*Hold, error) { return r.acquire(ctx, false) }

// TryLock asks once, and gives the hold, or false when others hold the lock or wait for it.
func (r Request) TryLock(ctx context.Context) (*Hold, bool, error) {
	hold, err := r.acquire(ctx, true)
	if errors.Is(err, errTaken) {
		return nil, false, nil
	}
	return hold, err == nil, err
}

func (r Request) acquire(ctx context.Context, once bool) (*Hold, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	began := time.Now()
	hold, err := r.base.by.acquire(ctx, &r, once)
	r.base.report.waited(r.label(), time.Since(began), outcome(err))
	return hold, err
}

// Do runs the work under the lock: it waits as Lock does, runs the work, and releases. The work's context is
// ctx, and ends with a *LostError as its cause when the hold is lost. Do then waits for the work to return,
// and its error is the *LostError, joined with the work's own if there is one. Else it is the work's error. A release
// that fails is no error of finished work: it is logged, told to the hook ReleaseFailed, and the lock ends by its
// ttl. HoldFrom gives the work its hold, for example for the fence.
func (r Request) Do(ctx context.Context, work func(ctx context.Context) error) error {
	hold, err := r.Lock(ctx)
	if err != nil {
		return err
	}
	return hold.run(ctx, work)
}

// Adopt makes a hold of the request's keys and mode from a token that another process took and handed over, and
// renews it from now on. It fails with ErrNotHeld when the token does not hold all keys in the mode.
func (r Request) Adopt(ctx context.Context, token string) (*Hold, error) {
	r.settings.token = token
	if err := r.checkToken(); err != nil {
		return nil, err
	}
	return r.base.by.adopt(ctx, &r)
}

// HoldFrom gives the hold under which Do runs the work of this context, or nil.
func HoldFrom(ctx context.Context) *Hold {
	hold, _ := ctx.Value(holdKey{}).(*Hold)
	return hold
}

type holdKey struct{}

func (r *Request) check() error {
	switch {
	case r.base == nil:
		return invalid("make requests by Locks or Quorum")
	case r.base.ending.Err() != nil:
		return ErrClosed
	}
	return errors.Join(r.base.by.check(r), r.settings.check(r.keys, r.mode))
}

// checkToken is check for a token that another process took.
func (r *Request) checkToken() error {
	if err := r.check(); err != nil {
		return err
	}
	if r.settings.token == "" {
		return invalid("the token must not be empty")
	}
	return nil
}

func (r *Request) owner() owner {
	if r.settings.token != "" {
		return owner{keys: r.keys, token: r.settings.token, given: true}
	}
	return owner{keys: r.keys, token: newToken()}
}

func (r *Request) label() string { return cmp.Or(r.settings.label, r.keys[0]) }

func notHeld(mode Mode) error {
	return &failure{kind: ErrNotHeld, text: fmt.Sprintf("not all keys, for %s", mode)}
}
