package slock

import (
	"context"
	"errors"
	"time"
)

// This file has the changes of a hold's mode. While one is open the hold is renewed without naming its fence, because the
// server may have given it another one.

// Upgrade makes a reader the writer, in one step, with a new fence. It waits until the other readers are gone, as Lock
// waits; of the options only Wait counts. It fails with ErrDeadlock if another reader of the key waits for its own
// upgrade already. It works for one key on one server, and not while another change of mode is open.
//
// If the upgrade ends without a reply (cancelled, or after its wait), the hold is still valid. Whether it is a reader
// or the writer then is found out in the background, and Mode tells.
func (h *Hold) Upgrade(ctx context.Context, options ...RequestOption) error {
	var wanted requestSettings
	for _, option := range options {
		option(&wanted)
	}
	if wanted.hasWait && wanted.wait < 0 {
		return invalid("the wait must not be negative, not %s", wanted.wait)
	}
	return h.change(func(k *single, was lease) error {
		wanted.ttl, wanted.minReplicas, wanted.replicaTimeout = was.ttl, h.settings.minReplicas, h.settings.replicaTimeout
		ctx, end := h.under(ctx)
		defer end()
		a := newAcquisition(ctx, k.server, k.listener, h.owner, h.owner.change(Write, was.ttl, was.fence), &wanted, false)
		got, err := a.run()
		problem := h.update(func(l *lease) {
			if err == nil {
				l.grant(Write, got)
			} else if !a.isOpen {
				l.isOpen = was.isOpen
			}
		})
		if problem == nil && err != nil && a.isOpen {
			go h.settle(k)
			return err
		}
		h.changing.Store(false)
		return h.lossOr(err)
	})
}

// settle withdraws an upgrade that was given up, and learns the mode that the hold has after that.
func (h *Hold) settle(k *single) {
	defer h.changing.Store(false)
	withdrawn, err := k.server.ask(h.Context(), h.owner.names, refuseFor, h.owner.withdraw())
	if err != nil || withdrawn.number > 0 {
		return
	}
	got, err := k.server.ask(h.Context(), h.owner.names, refuseFor, h.owner.adopt(Write, h.settings.ttl))
	if err == nil && got.number > 0 {
		_ = h.update(func(l *lease) { l.grant(Write, grant{got.number, got.sent}) })
	}
}

// Downgrade makes the writer a reader, in one step, with a new fence and no writer in between. It works for one key on
// one server, and not while another change of mode is open. The hold counts as a reader's from the first attempt on.
// Without a reply for RetryFor, or if ctx is over before, it fails and goes on in the background.
func (h *Hold) Downgrade(ctx context.Context) error {
	return h.change(func(k *single, was lease) error {
		send := func(ctx context.Context, limit time.Duration) error {
			got, err := k.server.ask(ctx, h.owner.names, limit, h.owner.change(Read, was.ttl, was.fence))
			problem := h.update(func(l *lease) {
				if err == nil {
					l.grant(Read, grant{got.number, got.sent})
				}
			})
			if err == nil {
				err = problem
			}
			return err
		}
		_ = h.update(func(l *lease) { l.mode = Read })
		err := send(ctx, h.retryFor)
		if h.Check() == nil && (errors.Is(err, ErrNoAnswer) || ctx.Err() != nil && err != nil) {
			go func() {
				defer h.changing.Store(false)
				_ = send(h.Context(), refuseFor)
			}()
			return err
		}
		h.changing.Store(false)
		return h.lossOr(err)
	})
}

// change runs a change of mode, which gives h.changing back, unless another one is open.
func (h *Hold) change(run func(k *single, was lease) error) error {
	k, ok := h.keeper.(*single)
	if !ok || len(h.owner.names) > 1 {
		return invalid("the mode changes for one key on one server")
	}
	if !h.changing.CompareAndSwap(false, true) {
		return invalid("another change of mode of %s is open", named(h.owner.names))
	}
	was := h.snapshot()
	if err := h.update(func(l *lease) { l.isOpen = true }); err != nil {
		h.changing.Store(false)
		return err
	}
	return run(k, was)
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

// lossOr is what is wrong with the hold by now, and else the error.
func (h *Hold) lossOr(err error) error {
	if code(err) == "WRONGTYPE" || errors.Is(err, ErrNotHeld) {
		_ = h.update(func(l *lease) { l.lose(Gone) })
	}
	if problem := h.Check(); problem != nil {
		return problem
	}
	return err
}
