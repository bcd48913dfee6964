package slock

import (
	"context"
	"errors"
	"sync/atomic"
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
	last       atomic.Value
}

// problem is an error in an atomic.Value.
type problem struct{ error }

// run releases, and tells whether the hold was there. It ends with ctx, and after RetryFor, and then goes on in the
// background.
func (r *release) run(ctx context.Context) (bool, error) {
	if ctx.Err() == nil && !r.grant.doubt {
		released, err := r.once(ctx)
		if !isTemporary(err) && !errors.Is(err, errLeft) {
			return released, err
		}
	}
	type result struct {
		released bool
		err      error
	}
	done := make(chan result, 1)
	r.locks.background.run(func() {
		released, err := r.repeat()
		done <- result{released, err}
	})
	timer := time.NewTimer(r.locks.settings.retryFor + lateAnswer)
	defer timer.Stop()
	select {
	case answer := <-done:
		return answer.released, answer.err
	case <-ctx.Done():
		return false, ctx.Err()
	case <-timer.C:
	}
	cause := errNoAnswer
	if last, ok := r.last.Load().(problem); ok {
		cause = last.error
	}
	return false, &timeout{what: "release", keys: r.owner.keys, cause: cause}
}

// repeat releases until it is answered, or the hold is not there any more.
func (r *release) repeat() (bool, error) {
	var pauses backoff
	for {
		released, err := r.once(context.Background())
		pause := pauses.next()
		if !isTemporary(err) {
			return released, err
		}
		if r.until.until() < pause || !sleep(context.Background(), r.locks.closed, pause) {
			return false, &timeout{what: "release", keys: r.owner.keys, cause: err}
		}
	}
}

// once sends the release. A 0 after a copy without an answer means that this copy released the hold, if it was valid
// then.
func (r *release) once(ctx context.Context) (bool, error) {
	l := r.locks
	var reply int64
	var err error
	if r.grant.doubt && l.closed.Err() == nil {
		reply, err = l.takeOff(r.owner, r.owner.end(), l.retryEnd())
	} else {
		w := r.owner.release(r.grant.mode, r.grant.fence)
		reply, err = l.servers.send(ctx, l.retryEnd().Add(lateAnswer), r.owner.keys[0], w, nil)
	}
	if err != nil {
		r.unanswered = r.unanswered || mayRunLater(err)
		r.last.Store(problem{err})
		return false, named(err)
	}
	return reply == int64(len(r.owner.keys)) || r.unanswered && r.until > now(), nil
}
