package slock

import (
	"context"
	"time"
)

// This file has the ends on one server. A release names the fence, so that it does no harm when it arrives late. The end
// of an acquisition in doubt has the server withdraw what waits, refuse what comes later, and release what was given.
// It is sent whole until it is answered.

// release is for a Hold.
func (l *Locks) release(ctx context.Context, h *Hold, ending lease) (bool, error) {
	o, until, inDoubt := h.owner, ending.until, ending.doubt || ending.changing
	isWhole := ending.reason == Gone && len(o.keys) == 1 && !inDoubt
	if ending.state == lost && (isWhole || o.given && inDoubt) {
		return false, nil // nothing is left, or the token may have a later hold by now
	}
	end := func(ctx context.Context, limit time.Time) (int64, error) {
		return l.askOnce(ctx, limit, o, o.release(ending.mode, ending.fence))
	}
	if inDoubt { // also because the mode may be one that is only assumed
		end = func(ctx context.Context, limit time.Time) (int64, error) { return l.end(ctx, limit, o, ending.fence) }
	}
	unanswered, released := false, false
	err := l.insist(ctx, "release", o, ending.ttl, func(ctx context.Context, limit time.Time) error {
		count, err := end(ctx, limit)
		// A 0 after a copy without an answer means that this copy released the hold, if it was valid then.
		unanswered = unanswered || mayRunLater(err)
		released = err == nil && (count == int64(len(o.keys)) || unanswered && until > now())
		return err
	}, func() {})
	return err == nil && released, err
}

// giveUp ends the acquisition in the background.
func (a *attempts) giveUp() {
	l, o := a.locks, a.owner
	// After the ttl nothing is left of a grant anyway.
	end := time.Now().Add(min(a.wanted.ttl+l.settings.retryFor, refuseFor*time.Millisecond))
	if o.given {
		go a.releaseLate(end)
	} else {
		a.forget()
	}
	l.background.run(func() {
		err := l.repeat(context.Background(), "end", o, end, func(ctx context.Context, limit time.Time) error {
			_, err := l.end(ctx, limit, o, noFence)
			return err
		})
		if isUnanswered(err) && a.channel != nil { // the server forgets the request when nobody listens to its channel
			a.channel.connection.close(errConnectionLost)
		}
	})
}

// releaseLate releases what the program's token is granted after the end, by its fence.
func (a *attempts) releaseLate(end time.Time) {
	defer a.forget()
	for {
		h, err := await(a.locks.closed, a.heard, end, nil, nil)
		if err != nil {
			return
		}
		if h.fence > 0 {
			_, _, _ = a.locks.ask(context.Background(), "release", a.owner, end, a.owner.release(a.mode, h.fence))
		}
	}
}

// end ends an acquisition in doubt, and tells how many keys that released. A token of the program's is released by its
// fence; when that is not the one that is known, it is asked again.
func (l *Locks) end(ctx context.Context, limit time.Time, o owner, fence int64) (int64, error) {
	for {
		answers, err := l.servers.send(ctx, limit, o.keys[0], o.end(fence)...)
		if err != nil {
			return 0, err
		}
		last := len(answers) - 1
		released, err := answers[last].Int64()
		if !o.given || released > 0 || err != nil {
			return released, err
		}
		write, _ := answers[last-2].Int64()
		read, _ := answers[last-1].Int64()
		if fence = max(write, read); fence == 0 {
			return 0, nil
		}
	}
}
