package slock

import (
	"context"
	"time"
)

// This file has the release of a hold on one server. It names the fence, so that it does no harm when it arrives late;
// that of a hold in doubt is the end of an acquisition that was given up.

type release struct {
	locks *Locks
	owner owner
	grant grant
	until instant // the hold is not there after that

	unanswered bool // a copy had no answer
}

// run releases, and tells whether the hold was there. It ends with ctx, and after RetryFor, and then goes on in the
// background.
func (r *release) run(ctx context.Context) (released bool, err error) {
	if err = ctx.Err(); err == nil {
		released, err = r.repeat(ctx, r.locks.retryEnd())
	}
	if isUnanswered(err) || ctx.Err() != nil {
		r.locks.background.run(r.rest)
	}
	return released, err
}

// rest releases until it is answered, or the hold is not there any more.
func (r *release) rest() { _, _ = r.repeat(context.Background(), time.Now().Add(r.until.until())) }

// repeat releases until it is answered, ctx is over, or the time has ended. A 0 after a copy without an answer means
// that this copy released the hold, if it was valid then.
func (r *release) repeat(ctx context.Context, end time.Time) (released bool, err error) {
	l, w := r.locks, r.owner.release(r.grant.mode, r.grant.fence)
	err = l.repeat(ctx, "release", r.owner.keys, end, func() (err error) {
		var reply int64
		if r.grant.doubt && l.closed.Err() == nil {
			reply, err = l.takeOff(ctx, r.owner, r.owner.end(), end)
		} else {
			reply, err = l.servers.send(ctx, r.owner.keys[0], newCall(l.answerEnd(end), w))
		}
		r.unanswered = r.unanswered || mayRunLater(err)
		released = err == nil && (reply == int64(len(r.owner.keys)) || r.unanswered && r.until > now())
		return err
	})
	return released, err
}
