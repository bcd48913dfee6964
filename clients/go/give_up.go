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
	if ending.state == lost && (isWhole || o.given) {
		return false, nil // nothing is left, or the token may have a later hold by now
	}
	commands := []words{o.release(ending.mode, ending.fence)}
	if inDoubt && l.closed.Err() == nil {
		commands = o.end(ending.fence)
	}
	unanswered, released := false, false
	err := l.insist(ctx, "release", o, ending.ttl, func(ctx context.Context, limit time.Time) error {
		count, err := l.end(ctx, limit, o, commands)
		// A 0 after a copy without an answer means that this copy released the hold, if it was valid then.
		unanswered = unanswered || mayRunLater(err)
		released = err == nil && (count == int64(len(o.keys)) || unanswered && until > now())
		return err
	}, func() {})
	return err == nil && released, err
}

// giveUp ends the acquisition in the background. With a token of the program's only what waits is withdrawn: a hold of
// the token may be another's by now.
func (a *attempts) giveUp() {
	l, o, commands := a.locks, a.owner, a.owner.end(0)
	// After the ttl nothing is left of a grant anyway.
	end := time.Now().Add(min(a.wanted.ttl+l.settings.retryFor, refuseFor*time.Millisecond))
	if o.given {
		commands = o.cancel()
		go a.releaseLate(end)
	} else {
		a.forget()
	}
	l.background.run(func() {
		err := l.repeat(context.Background(), "end", o, end, func(ctx context.Context, limit time.Time) error {
			_, err := l.end(ctx, limit, o, commands)
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

// end sends the commands of an end once, and gives the answer to the last one: how many keys that released.
func (l *Locks) end(ctx context.Context, limit time.Time, o owner, commands []words) (int64, error) {
	answers, err := l.servers.send(ctx, limit, o.keys[0], commands...)
	if err != nil {
		return 0, err
	}
	return answers[len(answers)-1].Int64()
}
