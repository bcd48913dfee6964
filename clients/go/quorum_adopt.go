package slock

import (
	"context"
	"time"
)

// Adopt makes a hold of the request's keys and mode from a token that another process took, and renews it
// from now on. It counts from an extension that a majority grants. It fails with ErrNotHeld when the majority
// says that the token does not hold all keys, and with a *QuorumError when too few nodes answered. The other
// process should stop renewing, and not release.
//
// No node is asked for the mode: give the one of the other process. The hold has no fences until a node grants
// it anew.
func (r QuorumRequest) Adopt(ctx context.Context, token string) (*QuorumHold, error) {
	if err := r.With(Token(token)).check(); err != nil {
		return nil, err
	}
	if token == "" {
		return nil, invalid("the token must not be empty")
	}
	q := r.quorum
	if q.ending.Err() != nil {
		return nil, ErrClosed
	}
	r.settings.token = token
	o := owner{keys: r.keys, token: token}
	if !q.tokenTasks.wait(ctx, q.ending, time.Now().Add(onlyAnswer), token) {
		return nil, ended(ctx, q.ending, r.keys, errStillRuns)
	}
	p := &poll{request: r, owner: o, seats: q.takenSeats(), attempts: 1, adopts: true}
	sent := time.Now()
	answers := q.extendAll(ctx, p.seats, p.attempts, p.owner, r.settings.ttl, whole)
	switch {
	case count(answers) >= q.majority():
		return q.newHold(ctx, p, sent), nil
	case q.isGone(answers):
		return nil, ErrNotHeld
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, q.missed(answers)
}

// Release releases the keys that the token holds, in whichever mode, on all nodes, and tells how many nodes
// released something. It is for a token that another process took; a QuorumHold has a Release of its own. It
// is sent even if ctx is over; ctx only ends the wait for the answers, which is no longer than that for a node.
// A node that does not answer in time is not counted, and is asked again in the background.
func (q *Quorum) Release(ctx context.Context, token string, keys ...string) (int, error) {
	if token == "" || len(keys) == 0 {
		return 0, invalid("a release needs a token and keys")
	}
	if err := q.check(); err != nil {
		return 0, err
	}
	o := owner{keys: keys, token: token}
	build := func(ctx context.Context) command { return o.release(ctx, "") }
	answers := q.releaseAll(ctx, q.takenSeats(), 1, token, build, q.settings.request.ttl, whole)
	return count(answers), ctx.Err()
}

// takenSeats are those of an owner that another process gave something to hold.
func (q *Quorum) takenSeats() seats {
	s := q.newSeats()
	for _, seat := range s {
		seat.touched, seat.mayHold = true, true
	}
	return s
}
