package slock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Hold is a lock that was granted. All methods may be called by several goroutines at once; Extend, Upgrade,
// Downgrade and Release run one after another.
type Hold struct {
	locks    *Locks
	lease    *lease
	metadata string
	// Whether an upgrade or a downgrade was not answered, so that the mode on the server is not known.
	// Guarded by the operation of the lease.
	modeUnknown bool
	// Whether a downgrade got no answer, so that the server may still carry it out. Guarded likewise.
	downgradeLost bool

	mu    sync.Mutex
	mode  Mode
	fence int64
}

func (l *Locks) newHold(ctx context.Context, r Request, o owner, u *unanswered, g grant) *Hold {
	h := &Hold{
		locks:    l,
		lease:    newLease(ctx, o, nil, r.settings, l.settings.observer, l.watchdog, counted, u, g.until),
		metadata: r.settings.metadata,
		mode:     r.mode,
		fence:    g.fence,
	}
	h.lease.start()
	return h
}

// Token is the owner's identity. Another process may adopt or release the lock by it.
func (h *Hold) Token() string { return h.lease.owner.token }

// Keys are the keys of the hold.
func (h *Hold) Keys() []string { return slices.Clone(h.lease.owner.keys) }

// Metadata is the text that the request gave.
func (h *Hold) Metadata() string { return h.metadata }

// Fence is the number of the hold. Each new hold has a greater one than all before on its server: send it
// with all that is written, and refuse lesser ones where it is stored.
func (h *Hold) Fence() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fence
}

// Mode is the mode of the hold.
func (h *Hold) Mode() Mode {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mode
}

// ValidUntil is until when the hold is certainly there, on the monotonic clock, if nobody deletes its keys. A
// renewal moves it.
func (h *Hold) ValidUntil() time.Time { return h.lease.validUntil() }

// Context ends when the hold is lost, with a *LostError as its cause, or released. It has the values of the
// context that was given to Lock, but does not end with it. Use it for all that is done under the lock.
func (h *Hold) Context() context.Context { return h.lease.context() }

// Check is nil while the hold is valid, a *LostError when it is lost, and ErrNotHeld when it has been
// released. It sends nothing. Call it before each step that matters.
func (h *Hold) Check() error { return h.lease.check() }

// Extend sets a new ttl, counted from now on. The watchdog goes on with it. It fails with a *LostError when
// the hold is over. After another error each renewal counts for the lesser of the two ttls. If ctx ends
// meanwhile, the extension goes on in the background.
//
// After a command of this hold that got no answer, the hold counts as valid for no longer than the ttl of that
// command, whatever ttl is set later: the server may carry it out late.
func (h *Hold) Extend(ctx context.Context, ttl time.Duration) error {
	if ttl < leastTTL {
		return tooShort(ttl)
	}
	if err := h.lease.begin(ctx); err != nil {
		return err
	}
	if err := h.lease.startExtend(ctx, ttl); err != nil {
		h.lease.finishExtend(err)
		h.lease.end()
		return err
	}
	return h.finish(ctx, func(ctx context.Context) error {
		err := h.extend(ctx, ttl)
		if err != nil {
			h.lease.unanswered.remember(ttl)
		}
		h.lease.finishExtend(err)
		return err
	})
}

func (h *Hold) extend(ctx context.Context, ttl time.Duration) error {
	var sent time.Time
	held, lost, err := h.locks.repeat(ctx, h.lease.validUntil(), func(ctx context.Context) command {
		sent = time.Now()
		return h.lease.owner.extend(ctx, ttl)
	})
	h.lease.unanswered.note(ttl, lost)
	switch {
	case err != nil:
		return h.lossOr(err)
	case held == 0:
		h.lease.lose(Gone)
		return h.lease.check()
	}
	return h.lease.extended(sent, ttl)
}

// finish runs an operation that has begun to its end, whatever becomes of ctx: no later command of the hold
// may pass one that is still on its way.
func (h *Hold) finish(ctx context.Context, operation func(context.Context) error) error {
	done := make(chan error, 1)
	run := func() {
		err := operation(context.WithoutCancel(ctx))
		h.lease.end()
		done <- err
	}
	if ctx.Done() == nil {
		run()
	} else {
		h.locks.tokenTasks.run(&h.locks.background, h.lease.owner.token, run)
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lossOr is the loss if the hold is lost by now, else the error.
func (h *Hold) lossOr(err error) error {
	if hasCode(err, "WRONGTYPE") {
		h.lease.lose(Gone)
	}
	if ended := h.lease.check(); ended != nil {
		return ended
	}
	return err
}

// Release ends the hold, and tells whether it was still there. It is sent even if ctx is over; ctx only ends
// the wait for the answer. A hold that was lost or released before gives false. What a lost one may have left
// on the server is released in the background, but not where Token gave the token, because that may have a
// later hold by now. After an error nobody knows whether the hold is there: it is not renewed, so it ends
// with its ttl.
func (h *Hold) Release(ctx context.Context) (bool, error) {
	until, ok := h.lease.startRelease()
	if !ok {
		h.clearAway(ctx)
		return false, nil
	}
	type result struct {
		wasThere bool
		err      error
	}
	done := make(chan result, 1)
	release := func() {
		wasThere, err := h.sendRelease(context.WithoutCancel(ctx), until)
		done <- result{wasThere, err}
	}
	if ctx.Done() == nil {
		release()
	} else {
		h.locks.tokenTasks.run(&h.locks.background, h.lease.owner.token, release)
	}
	select {
	case r := <-done:
		return r.wasThere, r.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (h *Hold) sendRelease(ctx context.Context, until time.Time) (bool, error) {
	// An upgrade that was given up may still be withdrawn. The release comes after that.
	_ = h.lease.begin(ctx)
	defer h.lease.end()
	if h.lease.expireRelease(until) {
		return false, nil
	}
	reply, lost, err := h.locks.repeat(ctx, until, h.release)
	// The first of several attempts may have released the hold, which was valid then, and its answer was
	// lost.
	wasThere := err != nil || lost != nil || reply == int64(len(h.lease.owner.keys))
	h.lease.finishRelease(wasThere)
	return wasThere && err == nil, err
}

func (h *Hold) release(ctx context.Context) command {
	mode := h.Mode()
	if h.modeUnknown {
		mode = ""
	}
	return h.lease.owner.release(ctx, mode)
}

// clearAway takes off the server what a lost hold may have left there, in the background: one whose longest
// lease has ended, or the other keys of one that was lost because of a single key.
func (h *Hold) clearAway(ctx context.Context) {
	if !h.lease.leavesRest() {
		return
	}
	end := retryEnd(h.locks.settings.retryFor)
	h.locks.background.run(func() {
		_, _, _ = h.locks.repeat(context.WithoutCancel(ctx), end, func(ctx context.Context) command {
			return h.lease.owner.release(ctx, "")
		})
	})
}

// releaseForDo waits for the answer for no longer than the hold may be there, and when ctx is over only for a
// little: the server may be silent. The release goes on in the background.
func (h *Hold) releaseForDo(ctx context.Context) error {
	retryFor := h.locks.settings.retryFor
	waitCtx, cancel := context.WithDeadline(context.WithoutCancel(ctx), h.lease.validUntil().Add(retryFor))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(retryFor, cancel) })()
	_, err := h.Release(waitCtx)
	if err != nil && err == waitCtx.Err() {
		return fmt.Errorf("slock: the release: %w", errNoAnswer)
	}
	return err
}

// Unlock is Release with an error if the hold was not there any more: a *LostError if it is lost, or
// ErrNotHeld if it had been released.
func (h *Hold) Unlock(ctx context.Context) error {
	released, err := h.Release(ctx)
	if err != nil || released {
		return err
	}
	return h.lease.check()
}
