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
	released   bool // the hold was there
}

// release is for a Hold.
func (l *Locks) release(ctx context.Context, h *Hold, ending lease) (bool, error) {
	g := grant{mode: ending.mode, fence: ending.fence, doubt: ending.doubt || ending.changing}
	r := &release{locks: l, owner: h.owner, grant: g, until: ending.until}
	isWhole := ending.reason == Gone && len(h.owner.keys) == 1 && !g.doubt
	if ending.state == lost && (isWhole || h.owner.given) {
		return false, nil // nothing is left, or the token may have a later hold by now
	}
	err := l.insist(ctx, "release", h.owner, r.until.until(), r.send, func() {})
	return err == nil && r.released, err
}

// rest releases until it is answered, or the hold is not there any more.
func (r *release) rest() {
	_ = r.locks.repeat(context.Background(), "release", r.owner, time.Now().Add(r.until.until()), r.send)
}

// send sends the release once. A 0 after a copy without an answer means that this copy released the hold, if it was
// valid then.
func (r *release) send(ctx context.Context, limit time.Time) (err error) {
	var reply int64
	if l := r.locks; r.grant.doubt && l.closed.Err() == nil {
		reply, err = l.takeOff(ctx, r.owner, r.owner.end(), limit)
	} else {
		w := r.owner.release(r.grant.mode, r.grant.fence)
		reply, err = l.servers.send(ctx, r.owner.keys[0], newCall(limit, w))
	}
	r.unanswered = r.unanswered || mayRunLater(err)
	r.released = err == nil && (reply == int64(len(r.owner.keys)) || r.unanswered && r.until > now())
	return err
}
