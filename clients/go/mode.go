// SPDX-License-Identifier: MIT OR Apache-2.0

package slock

import (
	"cmp"
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
	wanted := requestSettings{wait: forever, minReplicas: h.settings.minReplicas, replicaTimeout: h.settings.replicaTimeout}
	for _, option := range options {
		option(&wanted)
	}
	return h.change(ctx, Write, &wanted)
}

// Downgrade makes the writer a reader, in one step, with a new fence and no writer in between. It works for one key on
// one server, and not while another change of mode is open. The hold counts as a reader's from the first attempt on.
// Without a reply for RetryFor, or if ctx is over before, it fails and goes on in the background.
func (h *Hold) Downgrade(ctx context.Context) error { return h.change(ctx, Read, &requestSettings{}) }

// change runs a change of mode, unless another one is open. If it is still open after that, it is settled, in the
// background unless the server replies.
func (h *Hold) change(ctx context.Context, to Mode, wanted *requestSettings) error {
	s, ok := h.keeper.(*server)
	switch {
	case !ok || len(h.owner.keys) > 1:
		return invalid("the mode changes for one key on one server")
	case wanted.wait < 0:
		return invalid("the wait must not be negative, not %s", wanted.wait)
	case !h.changing.CompareAndSwap(false, true):
		return invalid("another change of the mode is open")
	}
	var was lease
	isOpen := false
	err := h.update(func(l *lease) {
		if was, l.isOpen = *l, true; to == Read {
			l.mode = Read
		}
	})
	if err == nil {
		ctx, end := h.under(ctx)
		wanted.ttl = was.ttl
		var got answer
		got, isOpen, err = s.request(ctx, h.owner, h.owner.change(to, was.ttl, was.fence), wanted, false)
		end()
		problem := h.update(func(l *lease) {
			switch {
			case err == nil:
				l.grant(to, got)
			case errors.Is(err, ErrNotHeld) || strings.HasPrefix(err.Error(), "WRONGTYPE"):
				l.lose(Gone)
			case !isOpen:
				l.isOpen = was.isOpen
			}
		})
		err = cmp.Or(problem, err)
	}
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		if isOpen && h.Check() == nil {
			h.settle(s, to, was)
		}
		h.changing.Store(false)
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
		call = h.owner.adopt(Write, was.ttl, "")
	}
	if got, err := s.ask(h.Context(), h.owner.names, refuseFor, call); err == nil && got.number > 0 {
		_ = h.update(func(l *lease) { l.grant(to, got) })
	}
}
