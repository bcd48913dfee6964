package slock

import (
	"context"
	"errors"
	"strings"
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
	return h.change(Write, func(s *server, was lease) (answer, bool, error) {
		wanted.ttl, wanted.minReplicas, wanted.replicaTimeout = was.ttl, h.settings.minReplicas, h.settings.replicaTimeout
		ctx, end := h.under(ctx)
		defer end()
		return s.request(ctx, h.owner, h.owner.change(Write, was.ttl, was.fence), &wanted, false)
	})
}

// Downgrade makes the writer a reader, in one step, with a new fence and no writer in between. It works for one key on
// one server, and not while another change of mode is open. The hold counts as a reader's from the first attempt on.
// Without a reply for RetryFor, or if ctx is over before, it fails and goes on in the background.
func (h *Hold) Downgrade(ctx context.Context) error {
	return h.change(Read, func(s *server, was lease) (answer, bool, error) {
		_ = h.update(func(l *lease) { l.mode = Read })
		got, err := s.ask(ctx, h.owner.names, s.settings.retryFor, h.owner.change(Read, was.ttl, was.fence))
		return got, errors.Is(err, ErrNoAnswer) || err != nil && ctx.Err() != nil, err
	})
}

// change runs a change of mode, unless another one is open. If it is still open after that, it is settled, in the
// background unless the server replies.
func (h *Hold) change(to Mode, run func(*server, lease) (got answer, isOpen bool, err error)) error {
	s, ok := h.keeper.(*server)
	if !ok || len(h.owner.keys) > 1 {
		return invalid("the mode changes for one key on one server")
	}
	if !h.changing.CompareAndSwap(false, true) {
		return invalid("another change of the mode is open")
	}
	was, isOpen := h.snapshot(), false
	err := h.update(func(l *lease) { l.isOpen = true })
	if err == nil {
		var got answer
		got, isOpen, err = run(s, was)
		_ = h.update(func(l *lease) {
			if err == nil {
				l.grant(to, got)
			} else if !isOpen {
				l.isOpen = was.isOpen
			}
		})
	}
	if errors.Is(err, ErrNotHeld) || err != nil && strings.HasPrefix(err.Error(), "WRONGTYPE") {
		_ = h.update(func(l *lease) { l.lose(Gone) })
	}
	if problem := h.Check(); problem != nil {
		isOpen, err = false, problem
	}
	settled := make(chan struct{})
	go func() {
		if isOpen {
			h.settle(s, to, was)
		}
		h.changing.Store(false)
		close(settled)
	}()
	if !isOpen || errors.Is(err, ErrTimedOut) { // the server replies, so it is not for long
		select {
		case <-settled:
		case <-time.After(lateReply):
		}
	}
	return err
}

// settle withdraws an upgrade, unless it was granted meanwhile, or completes a downgrade.
func (h *Hold) settle(s *server, to Mode, was lease) {
	call := h.owner.change(Read, was.ttl, was.fence)
	if to == Write {
		withdrawn, err := s.ask(h.Context(), h.owner.names, refuseFor, h.owner.withdraw())
		if err != nil || withdrawn.number > 0 {
			return
		}
		call = h.owner.adopt(Write, was.ttl)
	}
	if got, err := s.ask(h.Context(), h.owner.names, refuseFor, call); err == nil && got.number > 0 {
		_ = h.update(func(l *lease) { l.grant(to, got) })
	}
}
