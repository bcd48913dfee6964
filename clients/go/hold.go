package slock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// This file has a lock that was granted: its changes, its release, and its end for the program.

// Hold is a lock that was granted. All methods may be called by several goroutines at once.
type Hold struct {
	keeper   keeper
	owner    owner
	settings *requestSettings
	report   *reporter
	watchdog *watchdog
	retryFor time.Duration
	values   context.Context // that of the call, for its values

	extending sync.Mutex  // held while a command that prolongs the hold is on its way
	changing  atomic.Bool // a change of mode is open

	mu    sync.Mutex
	lease lease
	timer *time.Timer             // of the watchdog; nil: nobody would notice the end
	ctx   context.Context         // nil: nobody has asked for it
	end   context.CancelCauseFunc // ends ctx
}

// keeper is where a hold is kept: one server, or the nodes of a quorum.
type keeper interface {
	// extend sends one extension, and tells by how many of the keys or nodes it was made, at least 1, or 0 if the hold is
	// gone.
	extend(ctx context.Context, until time.Time, o owner, e extension) (answer, error)
	// end releases, and tells whether the hold was still there. After the limit of time, or when ctx is over, it goes on
	// in the background.
	end(ctx context.Context, o owner, fence int64) (wasHeld bool, err error)
	// keep has the hold end after a time, as end does otherwise.
	keep(ctx context.Context, o owner, fence int64, ttl time.Duration) (wasHeld bool, err error)
}

// holding is what a Locks or Quorum makes holds with.
type holding struct {
	keeper   keeper
	report   *reporter
	watchdog *watchdog
	retryFor time.Duration
	counted  func(ttl time.Duration) time.Duration
}

func (k holding) hold(ctx context.Context, r *Request, o owner, got grant) *Hold {
	h := &Hold{
		keeper: k.keeper, owner: o, settings: r.settings,
		report: k.report, watchdog: k.watchdog, retryFor: k.retryFor, values: ctx,
	}
	h.lease = lease{ttl: r.settings.ttl, renews: !r.settings.noRenewal, counted: k.counted, granted: got.from}
	h.lease.grant(r.mode, got)
	if r.settings.maxHold > 0 {
		h.lease.maxEnd = got.from.add(r.settings.maxHold)
	}
	h.watchdog.add(h)
	return h
}

// Token is the owner token. Another process may adopt or release the lock by it.
func (h *Hold) Token() string { return h.owner.token }

// Keys are the keys of the hold, without the prefix.
func (h *Hold) Keys() []string { return slices.Clone(h.owner.names) }

// Metadata is the text that SLOCK.INFO shows.
func (h *Hold) Metadata() string { return h.settings.metadata }

// Fence is the fencing token. Each new hold has a greater one than all before on its server: send it with all that is
// written, and refuse lesser ones where it is stored. It is 0 for a hold of a Quorum.
func (h *Hold) Fence() int64 { return h.snapshot().fence }

// Fences are the fencing tokens of the nodes of a Quorum, in the order of the clients, and 0 for a node that gave none.
// Those of different servers cannot be compared. Without a quorum it is the one Fence.
func (h *Hold) Fences() []int64 {
	if v, ok := h.keeper.(*votes); ok {
		return v.fences()
	}
	return []int64{h.Fence()}
}

// Mode is the mode of the hold.
func (h *Hold) Mode() Mode { return h.snapshot().mode }

// Remaining is for how long the hold is certainly there if nobody deletes its keys. A renewal makes it longer.
func (h *Hold) Remaining() time.Duration { return max(0, h.snapshot().until.until()) }

// Lost is whether the hold was lost.
func (h *Hold) Lost() bool { return errors.Is(h.Check(), ErrLost) }

func (h *Hold) snapshot() lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease
}

// update changes the lease of a live hold, and does what follows if that ends it. It gives what is wrong with the hold
// after that.
func (h *Hold) update(change func(l *lease)) error { return h.updateAt(now(), change) }

func (h *Hold) updateAt(at instant, change func(l *lease)) error {
	h.mu.Lock()
	wasLive := h.lease.state == live
	if h.lease.look(at); h.lease.state == live {
		change(&h.lease)
	}
	problem := h.lease.problem(h.owner.names, h.lease.mode)
	loss, isLost := problem.(*LostError)
	switch {
	case h.timer != nil && problem == nil:
		h.timer.Reset(h.lease.due().sub(at))
	case h.timer != nil:
		h.timer.Stop()
	}
	if h.ctx != nil && problem != nil {
		h.end(loss.orNil())
	}
	fence, held := h.lease.fence, at.sub(h.lease.granted)
	h.mu.Unlock()
	if !wasLive || problem == nil {
		return problem
	}
	h.watchdog.remove(h)
	if isLost {
		// By the fence, because another hold of a token of the program's stays.
		_, _ = h.keeper.end(over(), h.owner, fence)
		h.report.lost(h.values, h.label(), loss)
	}
	h.report.held(h.values, h.label(), held)
	return problem
}

func (h *Hold) label() string { return h.settings.labelFor(h.owner.names) }

// Context ends when the hold is lost, with a *LostError as its cause, or released. It has the values of the context that
// was given to Lock, but does not end with it. Use it for all that is done under the lock.
func (h *Hold) Context() context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx == nil {
		h.ctx, h.end = context.WithCancelCause(context.WithoutCancel(h.values))
		h.watch()
	}
	if loss, isLost := h.lease.problem(h.owner.names, h.lease.mode).(*LostError); isLost {
		h.end(loss)
	} else if h.lease.state != live {
		h.end(nil)
	}
	return h.ctx
}

// Check is nil while the hold is valid, a *LostError if it was lost, and ErrNotHeld if it was released or detached. It
// sends nothing. Call it before each step that matters.
func (h *Hold) Check() error { return h.update(func(*lease) {}) }

// Extend lets the hold last for at least the ttl from now on. It never shortens: for that, release. Later renewals use
// the longest ttl that was asked for. It fails with a *LostError if the hold is over. Without a reply for RetryFor it
// fails with ErrNoAnswer, and when ctx is over with its error: then nothing has changed for this package.
func (h *Hold) Extend(ctx context.Context, ttl time.Duration) error {
	if ttl < leastTTL || h.snapshot().counted(ttl) <= 0 {
		return tooShort(ttl)
	}
	h.extending.Lock() // for as long as a renewal may take
	defer h.extending.Unlock()
	began := time.Now()
	var last error
	for failures := 0; ; failures++ {
		until := earlier(began.Add(h.retryFor), time.Now().Add(h.Remaining()))
		err := h.extend(ctx, until, ttl)
		switch {
		case errors.Is(err, errLeft):
			return ended(ctx)
		case !passes(err):
			return explain(err)
		}
		last = moreTelling(last, err)
		pause, _ := afterErrors.pause(failures)
		if time.Since(began)+pause >= h.retryFor {
			return noAnswer(h.owner.names, h.retryFor, last)
		}
		sleep(ctx, ctx, pause)
	}
}

// extend sends one extension to at least the ttl. The caller has h.extending. What is wrong with the hold comes before
// another error.
func (h *Hold) extend(ctx context.Context, until time.Time, ttl time.Duration) error {
	var e extension
	err := h.update(func(l *lease) { e = l.extension(max(l.ttl, ttl)) })
	if err != nil {
		return err
	}
	e.replicas, e.within = h.settings.minReplicas, h.settings.replicaTimeout
	got, failed := h.keeper.extend(ctx, until, h.owner, e)
	if code(failed) == "WRONGTYPE" { // another type has replaced the lock
		got.number, failed = 0, nil
	}
	if errors.Is(failed, errLeft) {
		return failed
	}
	err = h.update(func(l *lease) { l.extended(now(), e, got, explain(failed)) })
	if err == nil {
		err = failed
	}
	return err
}

// Detach ends the hold here without releasing it, for another process that adopts it by its token. From now on nothing
// renews it here. It sends nothing, and fails if the hold is over.
func (h *Hold) Detach() error {
	_, err := h.finish()
	return err
}

// finish ends a live hold here, before anything is sent. If the machine has just slept, the server knows better whether
// the hold is over.
func (h *Hold) finish() (lease, error) {
	var last lease
	isDone := false
	err := h.updateAt(sending(), func(l *lease) { last, isDone, l.state = *l, true, finished })
	if isDone {
		return last, nil
	}
	return last, err
}

// Unlock releases the hold. It fails with a *LostError if the hold was lost, and with ErrNotHeld if it was released or
// detached before. The release is sent even if ctx is over by now. If ctx ends later, Unlock returns its error and the
// release goes on in the background; so it does with ErrNoAnswer if no reply comes for RetryFor. In any case nothing
// renews the hold any more.
func (h *Hold) Unlock(ctx context.Context) error {
	last, err := h.finish()
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	fence := last.fence
	if last.isOpen {
		fence = 0
	}
	var wasHeld bool
	if left := h.left(last); left > 0 {
		wasHeld, err = h.keeper.keep(ctx, h.owner, fence, left)
	} else {
		wasHeld, err = h.keeper.end(ctx, h.owner, fence)
	}
	switch {
	case err == nil && !wasHeld:
		return h.foundGone()
	case err != nil && ctx.Err() == nil:
		h.report.releaseFailed(h.values, h.label(), h.owner.names, err)
	}
	return err
}

// left is for how long the lock has to be kept.
func (h *Hold) left(last lease) time.Duration {
	if h.settings.atLeast == 0 {
		return 0
	}
	return h.settings.atLeast - sending().sub(last.granted)
}

// foundGone makes a loss of a release that found nothing to release.
func (h *Hold) foundGone() error {
	h.mu.Lock()
	h.lease.lose(Gone)
	problem := h.lease.problem(h.owner.names, h.lease.mode)
	h.mu.Unlock()
	h.report.lost(h.values, h.label(), problem.(*LostError))
	return problem
}

// run runs work under the hold, for Do.
func (h *Hold) run(ctx context.Context, work func(context.Context) error) (err error) {
	held := h.Context()
	workCtx, cancel := context.WithCancelCause(context.WithValue(ctx, holdKey{}, h))
	stop := context.AfterFunc(held, func() { cancel(context.Cause(held)) })
	defer func() {
		stop()
		cancel(nil)
		var loss *LostError
		if !errors.As(h.Unlock(context.WithoutCancel(ctx)), &loss) && !errors.As(h.Check(), &loss) {
			return // finished work is a success
		}
		// What says only that the context of the work ended adds nothing.
		if err == nil || errors.Is(err, ErrLost) || isCancelled(err) {
			err = loss
		} else {
			err = errors.Join(loss, err)
		}
	}()
	return work(workCtx)
}

// over is the context of a call that nobody waits for.
func over() context.Context {
	ctx, end := context.WithCancel(context.Background())
	end()
	return ctx
}
