// SPDX-License-Identifier: MIT OR Apache-2.0

package slock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// This file has a lock that was granted: what is known of it, its release, and its end for the program.

// Hold is a lock that was granted. All methods may be called by several goroutines at once.
type Hold struct {
	locks    *Locks
	keeper   keeper
	owner    owner
	settings *requestSettings
	values   context.Context // that of the call, for its values

	extending chan struct{} // full while a command that prolongs the hold is on its way
	changing  atomic.Bool   // a change of mode is open

	mu    sync.Mutex
	lease lease
	timer *time.Timer     // of the watchdog
	ctx   context.Context // nil: nobody has asked for it
	end   context.CancelCauseFunc
}

// keeper is where a hold is kept: one server, or the nodes of a quorum.
type keeper interface {
	// extend sends one extension of the hold with the fence, or of whatever the token holds if it is 0. The number of the
	// answer is 0 if the hold is gone.
	extend(ctx context.Context, until time.Time, o owner, ttl time.Duration, fence int64, wanted *requestSettings) (answer, error)
	// end releases, or has the hold end after a time, and tells whether it was still there. Without a reply, or if ctx
	// is over, it goes on in the background.
	end(ctx context.Context, o owner, fence int64, after time.Duration) (wasHeld bool, err error)
}

// lease is what is known of a hold. It reads no clock.
type lease struct {
	names    []string // of the keys
	settings *settings
	over     *Error // why the hold is not live: lost, released or detached; nil: it is
	mode     Mode
	fence    int64 // 0 for a quorum
	ttl      time.Duration
	granted  time.Duration // when the reply or the message arrived that told of it
	until    time.Duration // valid until then
	last     time.Duration // the end of MaxHold
	renewAt  time.Duration // when the next renewal is due
	warnAt   time.Duration // when it is worth a warning that nothing limits the hold
	isOpen   bool          // mode and fence may have changed: renewals name no fence
	failed   error         // what the last renewal said, unless one has succeeded since
}

// hold makes a hold of a grant, and has it looked after.
func (l *Locks) hold(values context.Context, r *Request, got taken) *Hold {
	h := &Hold{locks: l, keeper: got.keeper, owner: got.owner, settings: r.settings, values: values, extending: make(chan struct{}, 1)}
	h.lease = lease{names: r.keys, settings: &l.settings, ttl: r.settings.ttl, granted: sending()}
	h.lease.last, h.lease.warnAt = h.lease.granted+forever, h.lease.granted+longHold
	if most := r.settings.maxHold; most > 0 {
		h.lease.last, h.lease.warnAt = h.lease.granted+most, h.lease.last
	}
	h.lease.grant(r.mode, got.grant)
	l.watch(h)
	return h
}

// grant notes that the server gave the hold in a mode, by a command that was sent then.
func (l *lease) grant(mode Mode, got answer) {
	l.mode, l.fence, l.isOpen = mode, got.number, false
	l.lengthen(got.sent, l.ttl)
}

// lengthen notes that the server lets the hold live for a ttl, or longer, from a moment on.
func (l *lease) lengthen(from time.Duration, ttl time.Duration) {
	l.ttl, l.until = max(l.ttl, ttl), max(l.until, from+l.settings.counted(ttl))
	l.renewAt, l.failed = from+l.ttl/3, nil
}

// named is the fence that renewals name.
func (l *lease) named() int64 {
	if l.isOpen {
		return 0
	}
	return l.fence
}

// lose ends a live hold, or one whose release found nothing.
func (l *lease) lose(reason Reason) {
	l.over = failure(ErrLost, slices.Clone(l.names), "the lock was lost, "+string(reason))
	if l.over.Reason = reason; reason == Expired && l.failed != nil {
		l.over.causes = []error{l.failed}
	}
}

// Token is the owner token. Another process may adopt or release the lock by it.
func (h *Hold) Token() string { return h.owner.token }

// Keys are the keys of the hold, without the prefix.
func (h *Hold) Keys() []string { return slices.Clone(h.owner.names) }

// Metadata is the text that SLOCK.INFO shows.
func (h *Hold) Metadata() string { return h.settings.metadata }

// Fence is the fencing token. Each new hold has a greater one than all before on its server: send it with all that is
// written, and refuse lesser ones where it is stored. It is 0 for a hold of a quorum.
func (h *Hold) Fence() int64 { return h.snapshot().fence }

// Fences are the fencing tokens of the nodes of a quorum, in the order of the clients, and 0 for a node that gave none.
// Those of different servers cannot be compared. Without a quorum it is the one Fence.
func (h *Hold) Fences() []int64 {
	v, ok := h.keeper.(*votes)
	if !ok {
		return []int64{h.Fence()}
	}
	fences := make([]int64, len(v.nodes))
	for i := range fences {
		fences[i] = v.nodes[i].fence.Load()
	}
	return fences
}

// Mode is the mode of the hold.
func (h *Hold) Mode() Mode { return h.snapshot().mode }

// Remaining is for how long the hold is certainly there if nobody deletes its keys. A renewal makes it longer.
// It is 0 once the hold is lost, released or detached.
func (h *Hold) Remaining() time.Duration {
	l := h.snapshot()
	if l.over != nil {
		return 0
	}
	return max(0, min(l.until, l.last)-now())
}

// Lost is whether the hold was lost.
func (h *Hold) Lost() bool { return errors.Is(h.Check(), ErrLost) }

func (h *Hold) snapshot() lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease
}

func (h *Hold) label() string { return h.settings.labelFor(h.owner.names) }

// update changes the lease of a live hold, and does what follows if that ends it. It gives what is wrong with the hold
// after that.
func (h *Hold) update(change func(l *lease)) error { return h.updateAt(now(), change) }

func (h *Hold) updateAt(at time.Duration, change func(l *lease)) error {
	h.mu.Lock()
	l := &h.lease
	wasLive := l.over == nil
	switch {
	case !wasLive:
	case at >= l.last:
		l.lose(MaxHoldOver)
	case at >= l.until && h.locks.closing.Err() != nil:
		l.lose(LocksClosed)
	case at >= l.until:
		l.lose(Expired)
	default:
		change(l)
	}
	over, fence, held := l.over, l.fence, at-l.granted
	if over == nil {
		h.setTimer(at)
		h.mu.Unlock()
		return nil
	}
	h.timer.Stop()
	if h.end != nil {
		h.end(over)
	}
	h.mu.Unlock()
	if wasLive {
		h.ended(over, fence, held)
	}
	return over
}

// ended does what follows the end of a hold.
func (h *Hold) ended(over *Error, fence int64, held time.Duration) {
	h.locks.holds.Delete(h)
	if over.Kind == ErrLost {
		left, end := context.WithCancel(h.values)
		end() // nobody waits for it
		// By the fence, because another hold of a token of the program's stays.
		_, _ = h.keeper.end(left, h.owner, fence, 0)
		h.locks.report.lost(h.values, h.label(), over)
	}
	tell(h.locks.report, h.locks.report.hooks.Held, h.values, h.label(), held)
}

// Context ends when the hold is lost, or released: its cause is the *Error that Check gives then. It has the values of
// the context that was given to Lock, but does not end with it. Use it for all that is done under the lock.
func (h *Hold) Context() context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx == nil {
		h.ctx, h.end = context.WithCancelCause(h.values)
		if h.lease.over != nil {
			h.end(h.lease.over)
		}
	}
	return h.ctx
}

// under is a context that ends with the hold too.
func (h *Hold) under(ctx context.Context) (context.Context, func()) {
	held := h.Context()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(held, func() { cancel(context.Cause(held)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Check is nil while the hold is valid, ErrLost if it was lost, and ErrNotHeld if it was released or detached. It sends
// nothing. Call it before each step that matters.
func (h *Hold) Check() error { return h.update(func(*lease) {}) }

// Extend lets the hold last for at least the ttl from now on. It never shortens: for that, release. Later renewals use
// the longest ttl that was asked for. It fails with ErrLost if the hold is over. Without a reply for RetryFor it fails
// with ErrNoAnswer, and when ctx is over with its error: then nothing has changed for this package.
func (h *Hold) Extend(ctx context.Context, ttl time.Duration) error {
	if err := h.locks.settings.checkTTL(ttl); err != nil {
		return err
	}
	return h.confirm(ctx, max(h.snapshot().ttl, min(ttl, forever)))
}

// confirm lets the hold last for at least the ttl from now on, for Extend. It is sent until the server replies.
func (h *Hold) confirm(ctx context.Context, ttl time.Duration) error {
	a := newAttempts(ctx, h.locks.closing, h.owner.names, h.locks.settings.retryFor)
	select {
	case h.extending <- struct{}{}: // after a renewal that is on its way
		defer func() { <-h.extending }()
		a.limit = time.Now().Add(h.locks.settings.retryFor)
	case <-ctx.Done():
	case <-h.locks.closing.Done():
	}
	return a.run(func() error {
		return h.extend(ctx, earlier(a.limit, time.Now().Add(h.Remaining())), ttl)
	})
}

// extend sends one extension. The caller has h.extending. What is wrong with the hold comes before
// another error.
func (h *Hold) extend(ctx context.Context, until time.Time, ttl time.Duration) error {
	fence := int64(0)
	err := h.update(func(l *lease) { fence = l.named() })
	if err != nil {
		return err
	}
	got, failed := h.keeper.extend(ctx, until, h.owner, ttl, fence, h.settings)
	if code(failed) == "WRONGTYPE" { // another type has replaced the lock
		got.number, failed = 0, nil
	}
	err = h.update(func(l *lease) {
		switch {
		case failed == nil && got.number > 0:
			l.lengthen(got.sent, ttl)
		case failed == nil && fence == l.named(): // else it was about another fence
			l.lose(Gone)
		case failed != nil && ctx.Err() == nil:
			l.failed = telling(l.failed, explain(failed, l.names))
		}
	})
	return cmp.Or(err, failed)
}

// Detach ends the hold here without releasing it, for another process that adopts it by its token. From now on nothing
// renews it here. It sends nothing, and fails if the hold is over.
func (h *Hold) Detach() error {
	_, err := h.finish()
	return err
}

// finish ends a live hold here, before anything is sent. If the machine has just slept, the server knows better whether
// the hold is over.
func (h *Hold) finish() (last lease, err error) {
	isDone := false
	err = h.updateAt(sending(), func(l *lease) {
		last, isDone, l.over = *l, true, notHeld(l.names)
	})
	if isDone {
		err = nil
	}
	return last, err
}

// Unlock releases the hold. It fails with ErrLost if the hold was lost, and with ErrNotHeld if it was released or
// detached before. The release is sent even if ctx is over by now. If ctx ends later, Unlock returns its error and the
// release goes on in the background; so it does with ErrNoAnswer if no reply comes for RetryFor. In any case nothing
// renews the hold any more.
func (h *Hold) Unlock(ctx context.Context) error {
	h.locks.running.Add(1) // before the hold ends here
	defer h.locks.running.Add(-1)
	if ctx.Done() != nil {
		var end context.CancelFunc
		ctx, end = outliving(ctx, forever)
		defer end()
	}
	last, err := h.finish()
	if err != nil {
		return err
	}
	wasHeld, err := h.keeper.end(ctx, h.owner, last.named(), h.settings.atLeast-(sending()-last.granted))
	switch {
	case err == nil && !wasHeld:
		h.mu.Lock()
		h.lease.lose(Gone)
		loss := h.lease.over
		h.mu.Unlock()
		h.locks.report.lost(h.values, h.label(), loss)
		return loss
	case err != nil && ctx.Err() == nil:
		h.locks.report.releaseFailed(h.values, h.label(), h.owner.names, err)
	}
	return err
}

// run runs work under the hold, for Do.
func (h *Hold) run(ctx context.Context, work func(context.Context) error) (err error) {
	workCtx, end := h.under(context.WithValue(ctx, holdKey{}, h))
	defer func() {
		end()
		loss := h.Unlock(context.WithoutCancel(ctx))
		switch {
		case !errors.Is(loss, ErrLost): // finished work is a success
		case err == nil || errors.Is(errors.Join(loss, context.Cause(workCtx), context.Canceled), err):
			err = loss // what says only that the context of the work ended adds nothing
		default:
			err = errors.Join(loss, err)
		}
	}()
	return work(workCtx)
}
