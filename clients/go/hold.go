package slock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// This file has a lock that was granted: its changes, its release, and its end for the program.

// Hold is a lock that was granted. All methods may be called by several goroutines at once; Extend, Upgrade and
// Downgrade run one after another.
type Hold struct {
	keeper  keeper
	owner   owner
	request *Request
	base    *base
	began   time.Time

	operation chan struct{} // held by Extend, Upgrade and Downgrade

	mu    sync.Mutex
	lease lease
	timer *time.Timer // of the watchdog; nil: nobody would notice the end
	ctx   context.Context
	end   context.CancelCauseFunc // ends ctx
}

// keeper is where a hold is kept: one server, or the nodes of a quorum.
type keeper interface {
	// extend sends one extension. The answer is 1, or 0 when the hold is gone.
	extend(ctx context.Context, limit time.Time, o owner, r renewal) (answer int64, err error)
	// release releases, and tells whether the hold was still there. It ends with ctx, and goes on in the background
	// as long as the hold may be there.
	release(ctx context.Context, o owner, ending lease) (released bool, err error)
}

func newHold(ctx context.Context, r *Request, o owner, k keeper, is reply, d drift) *Hold {
	h := &Hold{keeper: k, owner: o, request: r, base: r.base, began: time.Now(), operation: make(chan struct{}, 1)}
	h.ctx, h.end = context.WithCancelCause(context.WithoutCancel(ctx))
	h.lease = lease{drift: d, doubt: is.late, ttl: r.settings.ttl, renews: !r.settings.noRenewal}
	h.lease.granted(r.mode, is.number, is.sent, r.settings.ttl)
	if r.settings.longestLease > 0 {
		h.lease.leaseEnd = now().add(r.settings.longestLease)
	}
	if h.lease.renews {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.setTimer()
	}
	return h
}

// Token is the owner's identity. Another process may adopt or release the lock by it.
func (h *Hold) Token() string { return h.owner.token }

// Keys are the keys of the hold.
func (h *Hold) Keys() []string { return slices.Clone(h.owner.keys) }

// Metadata is the text that the request gave.
func (h *Hold) Metadata() string { return h.request.settings.metadata }

// Fence is the number of the hold. Each new hold has a greater one than all before on its server: send it
// with all that is written, and refuse lesser ones where it is stored. It is 0 for a hold of a Quorum.
func (h *Hold) Fence() int64 { return h.snapshot().fence }

// Fences are the fences that the nodes of a Quorum gave, in the order of the clients, and 0 for a node that gave
// none. Fences of different servers cannot be compared. Without a quorum it is the one Fence.
func (h *Hold) Fences() []int64 {
	if v, ok := h.keeper.(*votes); ok {
		return v.fences()
	}
	return []int64{h.Fence()}
}

// Mode is the mode of the hold.
func (h *Hold) Mode() Mode { return h.snapshot().mode }

// ValidUntil is until when the hold is certainly there, if nobody deletes its keys and the machine does not sleep.
// A renewal moves it. On Linux Check counts the time that the machine sleeps, too.
func (h *Hold) ValidUntil() time.Time { return h.snapshot().until.time() }

func (h *Hold) snapshot() lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease
}

// update changes the lease of a live hold, and does what follows when that ends it. It gives what is wrong with the hold
// after that.
func (h *Hold) update(change func(l *lease)) error {
	h.mu.Lock()
	wasLive := h.lease.state == live
	if h.lease.look(now()); h.lease.state == live {
		change(&h.lease)
	}
	problem := h.lease.problem(h.owner.keys)
	if h.timer != nil && problem == nil {
		h.setTimer()
	} else if h.timer != nil {
		h.timer.Stop()
	}
	h.mu.Unlock()
	if !wasLive || problem == nil {
		return problem
	}
	if loss, ok := problem.(*LostError); ok {
		h.base.report.lost(h.request.label(), loss)
		h.end(loss)
	}
	h.end(nil)
	h.base.report.held(h.request.label(), time.Since(h.began))
	return problem
}

// Context ends when the hold is lost, with a *LostError as its cause, or released. It has the values of the
// context that was given to Lock, but does not end with it. Use it for all that is done under the lock.
func (h *Hold) Context() context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.timer == nil && h.lease.state == live {
		h.setTimer() // somebody would notice the end
	}
	return h.ctx
}

// Check is nil while the hold is valid, a *LostError when it is lost, and ErrNotHeld when it has been
// released or handed over. It sends nothing. Call it before each step that matters.
func (h *Hold) Check() error { return h.update(func(*lease) {}) }

// begin waits until no other change goes on, and gives the hold as it is then.
func (h *Hold) begin(ctx context.Context) (lease, error) {
	select {
	case h.operation <- struct{}{}:
	case <-ctx.Done():
		return lease{}, ctx.Err()
	}
	err := h.Check()
	if err == nil && h.base.ending.Err() != nil {
		err = ErrClosed
	}
	if err != nil {
		h.done()
	}
	return h.snapshot(), err
}

func (h *Hold) done() { <-h.operation }

// Extend lets the hold last for at least the ttl from now on. It never shortens: for that, release. Later renewals
// use the longest ttl that was asked for. It fails with a *LostError when the hold is over, and with another error
// when no answer came for RetryFor, or until ctx was over; then nothing has changed for this package.
func (h *Hold) Extend(ctx context.Context, ttl time.Duration) error {
	if ttl < leastTTL || h.snapshot().drift.counted(ttl) <= 0 {
		return tooShort(ttl)
	}
	is, err := h.begin(ctx)
	if err != nil {
		return err
	}
	defer h.done()
	r := renewal{fence: is.fence, ttl: ttl}
	end := earlier(h.base.retryEnd(), time.Now().Add(is.until.until()))
	answer, err := h.base.repeat(ctx, "extension", h.owner, end, func(ctx context.Context, limit time.Time) (int64, error) {
		return h.keeper.extend(ctx, limit, h.owner, r)
	})
	if err != nil {
		return h.lossOr(err)
	}
	r.sent = answer.sent
	return h.update(func(l *lease) {
		if answer.number == 1 {
			l.ttl = max(l.ttl, ttl)
		}
		l.renewed(now(), r, answer.number == 1, nil)
	})
}

// HandOver ends the hold here without releasing it, for another process that adopts it by its token. From now on it
// is no longer renewed. It sends nothing, and fails when the hold has ended.
func (h *Hold) HandOver() error {
	done := false
	problem := h.update(func(l *lease) { l.state, done = ended, true })
	if done {
		return nil
	}
	return problem
}

// Release ends the hold, and tells whether it was still there. It is sent even if ctx is over; ctx only ends
// the wait for the answer, which is no longer than RetryFor. Then it goes on in the background as long as the hold may
// be there. A hold that was lost, released or handed over before gives false; what a lost one may have left on the
// server is released in the background. After an error nobody knows whether the hold is there: it is not renewed, so
// it ends with its ttl.
func (h *Hold) Release(ctx context.Context) (bool, error) {
	var ending lease
	wasLive := false
	_ = h.update(func(l *lease) {
		ending, wasLive = *l, true
		l.state = ended
	})
	if !wasLive {
		if ending = h.snapshot(); ending.state == lost {
			_, _ = h.keeper.release(over(), h.owner, ending)
		}
		return false, nil
	}
	released, err := h.keeper.release(ctx, h.owner, ending)
	if err != nil {
		h.base.report.releaseFailed(h.request.label(), err)
	} else if !released {
		h.mu.Lock()
		h.lease.lose(Gone)
		h.mu.Unlock()
		h.base.report.lost(h.request.label(), h.Check().(*LostError))
	}
	return released, err
}

// Unlock is Release with an error if the hold was not there any more: a *LostError if it is lost, or
// ErrNotHeld if it had been released.
func (h *Hold) Unlock(ctx context.Context) error {
	released, err := h.Release(ctx)
	if err != nil || released {
		return err
	}
	return h.Check()
}

// under is a context that ends with the hold too, for the same reason. The function ends it.
func (h *Hold) under(ctx context.Context) (context.Context, func()) {
	hold := h.Context()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(hold, func() { cancel(context.Cause(hold)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// run runs work under the hold, for Do.
func (h *Hold) run(ctx context.Context, work func(context.Context) error) (err error) {
	workCtx, end := h.under(context.WithValue(ctx, holdKey{}, h))
	defer func() {
		end()
		_, _ = h.Release(context.WithoutCancel(ctx)) // it has been told
		var loss *LostError
		if !errors.As(h.Check(), &loss) {
			return
		}
		// What says only that the context of the work ended adds nothing.
		if err == nil || errors.Is(err, ErrLost) || errors.Is(err, context.Canceled) {
			err = loss
		} else {
			err = errors.Join(loss, err)
		}
	}()
	return work(workCtx)
}

// Upgrade makes a reader the writer, in one step, with a new fence. It waits until the other readers are
// gone, as Lock waits; of the options only Wait counts. It fails with ErrDeadlock when another reader of the
// key waits for its own upgrade already. It works for one key on one server.
//
// After an upgrade that was given up (cancelled, or without an answer) the server is asked in the background for the
// mode that the hold has, which may be either, and refuses another upgrade of the hold for two minutes: ErrRefused.
func (h *Hold) Upgrade(ctx context.Context, options ...RequestOption) error {
	var wanted requestSettings
	for _, option := range options {
		option(&wanted)
	}
	if wanted.hasWait && wanted.wait < 0 {
		return invalid("the wait must not be negative, not %s", wanted.wait)
	}
	return h.change(ctx, Write, &wanted)
}

// Downgrade makes the writer a reader, in one step, with a new fence and no writer in between. It works for
// one key on one server. Without an answer for RetryFor, or until ctx is over, it fails, and goes on in the
// background. The hold counts as a reader's from the first attempt on.
func (h *Hold) Downgrade(ctx context.Context) error { return h.change(ctx, Read, &requestSettings{}) }

func (h *Hold) change(ctx context.Context, to Mode, wanted *requestSettings) error {
	l, ok := h.keeper.(*Locks)
	if !ok || len(h.owner.keys) > 1 {
		return invalid("the mode changes for one key on one server")
	}
	was, err := h.begin(ctx)
	if err != nil {
		return err
	}
	wanted.ttl = was.ttl
	command := h.owner.change(to, was.ttl, was.fence)
	_ = h.update(func(l *lease) {
		if l.changing = true; to == Read {
			l.mode = Read // the server refuses no downgrade, so it may be done from now on
		}
	})
	// It ends with the hold: it might lengthen a later hold of the token.
	changeCtx, end := h.under(ctx)
	defer end()
	a := l.attempts(changeCtx, h.owner, to, wanted, command, to == Read)
	err = a.run(a.attempt)
	a.forget()
	isOpen := err != nil && (a.isOpen() || to == Read && errors.Is(err, ErrTimedOut))
	problem := h.update(func(l *lease) {
		l.doubt, l.changing = l.doubt || a.doubt || isOpen, isOpen
		if err == nil {
			l.granted(to, a.granted.number, a.granted.sent, l.ttl)
		} else if !isOpen {
			l.mode = was.mode
		}
	})
	if !isOpen {
		h.done()
		return cmp.Or(h.lossOr(err), problem)
	}
	l.background.run(func() {
		defer h.done()
		_, _ = l.repeat(context.Background(), "change", h.owner, time.Now().Add(longestWait), h.settle(l, to, command))
	})
	return h.lossOr(err)
}

// settle ends a change of mode that is open, and learns the mode that the hold has then: it withdraws an upgrade, and
// repeats a downgrade. It is repeated until it is answered, or the hold is over: then the release has ended the change,
// and the token may wait for a later hold.
func (h *Hold) settle(l *Locks, to Mode, downgrade words) try {
	return func(ctx context.Context, limit time.Time) (int64, error) {
		if problem := h.Check(); problem != nil {
			return 0, problem
		}
		sent, ttl := now(), h.snapshot().ttl
		commands, modes := []words{downgrade}, []Mode{Read}
		if to == Write {
			commands, modes = append(h.owner.cancel(), h.owner.lookAtModes(ttl)...), []Mode{Write, Read}
		}
		answers, err := l.servers.send(ctx, limit, h.owner.keys[0], commands...)
		var mode Mode
		var fence int64
		for i := 0; i < len(modes) && err == nil && fence == 0; i++ {
			mode = modes[i]
			fence, err = answers[len(answers)-len(modes)+i].Int64()
			if hasCode(err, "WRONGMODE") { // the mode is the other
				err = nil
			}
		}
		if err != nil {
			return 0, h.lossOr(err)
		}
		return 0, h.update(func(l *lease) {
			if fence == 0 {
				l.lose(Gone)
			} else {
				l.granted(mode, fence, sent, ttl)
			}
		})
	}
}

// lossOr is the loss if the hold is lost by now, else the error.
func (h *Hold) lossOr(err error) error {
	if hasCode(err, "WRONGTYPE") || hasCode(err, "NOTHELD") {
		_ = h.update(func(l *lease) { l.lose(Gone) })
	}
	if problem := h.Check(); problem != nil && err != nil {
		return problem
	}
	return err
}
