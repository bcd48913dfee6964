package slock

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// Upgrade makes a reader the writer, in one step, with a new fence. It waits until the other readers are
// gone, as Lock waits; of the options only Wait counts. It fails with ErrDeadlock when another reader of the
// key waits for its own upgrade already. After any error but the loss the hold is a reader's, as before. It
// works for one key.
//
// It fails with ErrWrongMode, and sends nothing, when a downgrade of this hold got no answer: the server might
// carry that out after the upgrade.
func (h *Hold) Upgrade(ctx context.Context, options ...RequestOption) error {
	if len(h.lease.owner.keys) > 1 {
		return invalid("an upgrade works for one key, not %d", len(h.lease.owner.keys))
	}
	var s requestSettings
	for _, option := range options {
		option(&s)
	}
	if s.hasWait && s.wait < 0 {
		return invalid("the wait must not be negative, not %s", s.wait)
	}
	if err := h.lease.begin(ctx); err != nil {
		return err
	}
	if err := h.lease.check(); err != nil {
		h.lease.end()
		return err
	}
	if h.downgradeLost {
		h.lease.end()
		return &failure{kind: ErrWrongMode, text: lateDowngrade}
	}
	a := h.upgrade()
	if s.hasWait {
		a.deadline, a.once = time.Now().Add(s.wait), s.wait == 0
	}
	// The wait ends with the hold.
	holdCtx := h.lease.context()
	waitCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(holdCtx, func() { cancel(context.Cause(holdCtx)) })
	defer stop()

	g, err := a.run(waitCtx)
	if !a.givenUp {
		defer h.lease.end() // else when that is done
	}
	if err == nil {
		h.set(Write, g.fence)
		return h.lease.refreshed(a.sent, a.ttl)
	}
	if hasCode(err, "NOTHELD") {
		h.lease.lose(Gone)
		return err
	}
	if errors.Is(err, errRefused) {
		err = &timeout{keys: h.lease.owner.keys}
	}
	return h.lossOr(err)
}

const lateDowngrade = "a downgrade of this hold got no answer and may still be carried out; release it and acquire anew"

func (h *Hold) upgrade() *acquisition {
	o, ttl := h.lease.owner, h.lease.currentTTL()
	return &acquisition{
		locks:      h.locks,
		owner:      o,
		ttl:        ttl,
		unanswered: h.lease.unanswered,
		ask: func(ctx context.Context, rest ...any) command {
			args := []any{"SLOCK.UPGRADE", o.keys[0], o.token, milliseconds(ttl)}
			return newCommand(ctx, 1, append(args, rest...)...)
		},
		// What was upgraded in the meantime becomes a reader again. To a reader this is a refresh. A release
		// that goes on comes after this, and needs no help.
		withdraw: func(ctx context.Context) (command, bool) {
			if h.lease.check() == nil {
				return h.downgradeCommand(ctx, ttl), true
			}
			return o.release(ctx, ""), h.lease.leavesRest()
		},
		withdrawn: func(reply redis.Cmder, lost error) {
			h.noteDowngrade(ttl, lost)
			if fence, err := reply.(command).Int64(); err == nil && h.lease.check() == nil {
				h.set(Read, fence)
			} else {
				h.modeUnknown = true
			}
			h.lease.end()
		},
	}
}

// Downgrade makes the writer a reader, in one step, with a new fence and no writer in between. It works for
// one key. If ctx ends meanwhile, it goes on in the background. After an error the hold counts as a reader's
// when the server may have carried out the downgrade, or may do so later.
func (h *Hold) Downgrade(ctx context.Context) error {
	if len(h.lease.owner.keys) > 1 {
		return invalid("a downgrade works for one key, not %d", len(h.lease.owner.keys))
	}
	if err := h.lease.begin(ctx); err != nil {
		return err
	}
	return h.finish(ctx, h.downgrade)
}

func (h *Hold) downgrade(ctx context.Context) error {
	if err := h.lease.check(); err != nil {
		return err
	}
	ttl := h.lease.currentTTL()
	var sent time.Time
	fence, lost, err := h.locks.repeat(ctx, h.lease.validUntil(), func(ctx context.Context) command {
		sent = time.Now()
		return h.downgradeCommand(ctx, ttl)
	})
	h.noteDowngrade(ttl, lost)
	if err != nil {
		h.modeUnknown = true
		if h.downgradeLost {
			h.set(Read, h.Fence())
		}
		if hasCode(err, "NOTHELD") {
			h.lease.lose(Gone)
		}
		return h.lossOr(err)
	}
	h.set(Read, fence)
	return h.lease.refreshed(sent, ttl)
}

// noteDowngrade notes the error of a downgrade that got no answer, or nil.
func (h *Hold) noteDowngrade(ttl time.Duration, lost error) {
	h.lease.unanswered.note(ttl, lost)
	h.downgradeLost = h.downgradeLost || lost != nil
}

func (h *Hold) downgradeCommand(ctx context.Context, ttl time.Duration) command {
	return newCommand(ctx, 1, "SLOCK.DOWNGRADE", h.lease.owner.keys[0], h.lease.owner.token, milliseconds(ttl))
}

func (h *Hold) set(mode Mode, fence int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mode, h.fence = mode, fence
}
