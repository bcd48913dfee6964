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
	o, inDoubt := h.owner, ending.doubt || ending.changing
	isWhole := ending.reason == Gone && len(o.keys) == 1 && !inDoubt
	if ending.state == lost && (isWhole || o.given) {
		return false, nil // nothing is left, or the token may have a later hold by now
	}
	unanswered, released := false, false
	most := min(ending.until.until(), ending.ttl)
	err := l.insist(ctx, "release", o, most, func(ctx context.Context, limit time.Time) (err error) {
		var reply int64
		if inDoubt && l.closed.Err() == nil {
			reply, err = l.takeOff(ctx, o, o.end(), limit)
		} else {
			reply, err = l.servers.send(ctx, o.keys[0], newCall(limit, o.release(ending.mode, ending.fence)))
		}
		// A 0 after a copy without an answer means that this copy released the hold, if it was valid then.
		unanswered = unanswered || mayRunLater(err)
		released = err == nil && (reply == int64(len(o.keys)) || unanswered && ending.until > now())
		return err
	}, func() {})
	return err == nil && released, err
}

// giveUp ends an acquisition in the background, that may wait by the channel (nil: by none). With a token of the
// program's only what waits is withdrawn: a hold of the token may be another's by now.
func (l *Locks) giveUp(o owner, ttl time.Duration, waitsBy *channel) {
	commands := o.end()
	if o.given {
		commands = o.cancel()
	}
	// After the ttl nothing is left of a grant anyway.
	end := time.Now().Add(min(ttl+l.settings.retryFor, refuseFor*time.Millisecond))
	l.background.run(func() {
		err := l.repeat(context.Background(), "end", o, end, func(ctx context.Context, limit time.Time) error {
			_, err := l.takeOff(ctx, o, commands, limit)
			return err
		})
		if isUnanswered(err) && waitsBy != nil { // the server forgets the request when nobody listens to its channel
			waitsBy.connection.close(errConnectionLost)
		}
	})
}

// takeOff sends the end of an acquisition once, and tells how many keys it released.
func (l *Locks) takeOff(ctx context.Context, o owner, commands []words, limit time.Time) (released int64, err error) {
	answers, err := l.servers.pipeline(ctx, limit, o.keys[0], forCommands, commands...)
	if err != nil {
		return 0, err
	}
	failed := 0
	releases := answers[len(o.keys):]
	for _, answer := range releases {
		count, problem := answer.Int64()
		if released += count; problem != nil {
			failed, err = failed+1, problem
		}
	}
	if failed < len(releases) {
		err = nil // a user may lack the permission for the other mode
	}
	return released, err
}
