package slock

import (
	"context"
)

// Request is what a Locks is asked for: keys, a mode and options. It is a value, and may be used many times
// and by several goroutines at once: each use takes a token of its own.
type Request struct {
	locks    *Locks
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
// or at the deadline of ctx, also when the server is silent, and with the error of ctx when ctx is cancelled. A
// Lock that failed leaves neither a hold nor a place in the queue: what has to be sent for that is sent in the
// background.
//
// The hold outlives ctx. It has to be released.
func (r Request) Lock(ctx context.Context) (*Hold, error) {
	return r.acquire(ctx, true)
}

// TryLock asks once, and gives the hold, or false when others hold the lock or wait for it.
func (r Request) TryLock(ctx context.Context) (*Hold, bool, error) {
	hold, err := r.acquire(ctx, false)
	return hold, hold != nil, err
}

// Do runs the work under the lock: it waits as Lock does, runs the work, and releases. The work's context is
// ctx, and ends with a *LostError as its cause when the hold is lost. Do then waits for the work to return,
// and its error is the *LostError, joined with the work's own if there is one. Else it is the work's error,
// joined with that of the release. When ctx is over and the server does not answer, Do waits for the release
// for no longer than RetryFor; it goes on in the background. HoldFrom gives the work its hold, for example for
// the fence.
func (r Request) Do(ctx context.Context, work func(ctx context.Context) error) error {
	hold, err := r.Lock(ctx)
	if err != nil {
		return err
	}
	return hold.lease.run(context.WithValue(ctx, holdKey{}, hold), hold.releaseForDo, work)
}

type holdKey struct{}

// HoldFrom gives the hold under which Do runs the work of this context, or nil.
func HoldFrom(ctx context.Context) *Hold {
	hold, _ := ctx.Value(holdKey{}).(*Hold)
	return hold
}

func (r Request) check() error {
	if err := r.locks.server.check(); err != nil {
		return err
	}
	return r.settings.check(r.keys, r.mode)
}

func (r Request) owner() owner {
	token := r.settings.token
	if token == "" {
		token = newToken()
	}
	return owner{keys: r.keys, token: token}
}
