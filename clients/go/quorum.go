// SPDX-License-Identifier: MIT OR Apache-2.0

package slock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// This file has locks on several independent servers: N servers, and arithmetic. The algorithm is that of redsync and of
// the Redis documentation ("Distributed Locks with Redis").

// NodeReply is the reply of one node of a quorum.
type NodeReply struct {
	// Node is the address of the node.
	Node string
	// Granted is whether the node granted, extended or released the hold. If not, and without an Err, others have the
	// lock there.
	Granted bool
	// Err is what went wrong, if anything.
	Err error
}

func (r NodeReply) String() string {
	text := map[bool]string{true: "granted", false: "refused"}[r.Granted]
	if r.Err != nil {
		text = r.Err.Error()
	}
	return r.Node + ": " + text
}

// NewQuorumWith makes a Locks over Transports of independent servers. NewQuorum does that for clients of go-redis.
func NewQuorumWith(transports []Transport, options ...Option) *Locks {
	l := newLocks(transports, options)
	l.settings.driftMargin = 2 * time.Millisecond
	if f := l.settings.driftFactor; len(transports) == 0 || f < 0 || f >= 1 {
		l.problem = invalid("a quorum needs servers and a drift factor of at least 0 and less than 1, not %d and %g",
			len(transports), f)
	}
	l.backend = &quorum{l.servers, &l.settings, l.closing}
	return l
}

type quorum struct {
	nodes    []*server
	settings *settings
	closing  context.Context
}

// tally is the replies of all nodes. Those that have not replied have errSilent.
type tally []NodeReply

func (t tally) count(is func(r NodeReply) bool) (n int) {
	for _, r := range t {
		if is(r) {
			n++
		}
	}
	return n
}

func (t tally) granted() int { return t.count(func(r NodeReply) bool { return r.Granted }) }

// isGranted tells whether a majority granted.
func (t tally) isGranted() bool { return t.granted() > len(t)/2 }

// isRefused tells whether others have the lock at so many nodes that there can be no majority, whatever the others say.
func (t tally) isRefused() bool {
	return t.count(func(r NodeReply) bool { return !r.Granted && r.Err == nil }) > (len(t)-1)/2
}

// isLost tells whether a majority is out of reach.
func (t tally) isLost() bool {
	return t.count(func(r NodeReply) bool { return r.Granted || r.Err == errSilent }) <= len(t)/2
}

// isFinal tells whether a majority of nodes gives errors that stay.
func (t tally) isFinal() bool {
	return t.count(func(r NodeReply) bool { return r.Err != nil && !passes(r.Err) }) > len(t)/2
}

func (t tally) isCertain() bool { return t.isGranted() || t.isRefused() }

// missed is the error of a call that got no majority.
func (t tally) missed(keys []string, began time.Duration, ended error) error {
	kind := ErrQuorumMissed
	if t.isRefused() {
		kind = ErrTimedOut
	}
	waited := (sending() - began).Round(time.Millisecond)
	failed := failure(kind, keys, fmt.Sprintf("no majority of %d nodes after %s", len(t), waited), ended)
	failed.Nodes = t
	return failed
}

func (q *quorum) acquire(ctx context.Context, r *Request, try bool) (taken, error) {
	var last tally
	var v *votes
	began, a := sending(), newAttempts(ctx, q.closing, r.keys, q.settings.retryFor)
	a.wait(r.settings.wait, try)
	a.polling = q.settings.strategy
	isAllowed := r.settings.atLeast <= r.settings.ttl
	err := a.run(func() error {
		if !isAllowed {
			last = q.votes(r).allows(ctx)
			switch isAllowed = last.isRefused(); {
			case isAllowed:
				last = nil
			case a.once || last.isFinal():
				return errTimedOut
			default:
				a.last = errSilent
				return errPoll
			}
		}
		v = q.votes(r) // with another token
		got, isGranted := v.attempt(ctx)
		if isGranted {
			return nil
		}
		isRefused := got.isRefused()
		if last == nil || ctx.Err() == nil || isRefused {
			last = got // one that was cut short may tell less than the one before
		}
		switch {
		case isRefused && try:
			return failure(ErrNotAcquired, r.keys, "the lock is held")
		case a.once || got.isFinal():
			return errTimedOut
		case isRefused:
			a.reached(q.settings.retryWaitFor)
			a.last = nil
		default:
			a.last = errSilent
		}
		return errPoll
	})
	if err == errTimedOut || errors.Is(err, ErrNoAnswer) {
		err = last.missed(r.keys, began, overErr(ctx))
	}
	if err != nil {
		return taken{}, err
	}
	return taken{v, v.owner, answer{sent: v.sent}}, nil
}

func (q *quorum) release(ctx context.Context, r *Request) (int, error) {
	got := q.votes(r).release(ctx, all, 0)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return got.granted(), nil
}

// votes are what the nodes gave one owner: the keeper of a hold.
type votes struct {
	quorum  *quorum
	request *Request
	owner   owner
	sent    time.Duration // before the first command was sent
	nodes   []vote        // of the nodes, in their order

	// live is over once the end is sent: a copy of a command that asks for the lock must not follow it. A node that has
	// restarted meanwhile does not know of the end, and would give a lock that nobody releases.
	live  context.Context
	leave context.CancelFunc // of live
}

// vote is what a node has given.
type vote struct {
	fence atomic.Int64 // 0: none
	turn  sync.Mutex   // held while a command that asks for the lock has no reply: what it gives is known after that only
}

// question asks a node and tells whether it grants.
type question func(ctx context.Context, until time.Time, n *server, of *vote) (bool, error)

func (q *quorum) votes(r *Request) *votes {
	v := &votes{quorum: q, request: r, owner: r.owner(), sent: sending(), nodes: make([]vote, len(q.nodes))}
	v.live, v.leave = context.WithCancel(context.Background())
	return v
}

// all waits for all nodes.
func all(tally) bool { return false }

// ask asks all nodes at once. It gives the replies that came until they were enough, or ctx was over, or the time for
// nodes. By default that is a twentieth of the ttl, within bounds; a node that has not replied by then may still do so,
// until the context of the nodes is over.
func (v *votes) ask(ctx, node context.Context, isEnough func(tally) bool, ask question) tally {
	s, ttl := v.quorum.settings, v.request.settings.ttl
	timeout := cmp.Or(max(s.nodeTimeout, 0), min(max(ttl/20, 50*time.Millisecond), s.retryFor))
	until := time.Now().Add(min(timeout, ttl*9/10))
	got, came := make(tally, len(v.nodes)), make(chan func(), len(v.nodes))
	for i, n := range v.quorum.nodes {
		got[i] = NodeReply{Node: n.topology.Name, Err: errSilent}
		n.running.Add(1)
		go func() {
			defer n.running.Add(-1)
			granted, err := ask(node, until, n, &v.nodes[i])
			came <- func() { got[i].Granted, got[i].Err = granted && err == nil, err }
		}()
	}
	for range got {
		select {
		case note := <-came:
			if note(); isEnough(got) {
				return slices.Clone(got)
			}
		case <-ctx.Done():
			return slices.Clone(got)
		}
	}
	return got
}

// take sends a node a command that gives a fence or 0. It tells that and the fence before.
func (of *vote) take(ctx context.Context, until time.Time, n *server, call Call) (fence, before int64, err error) {
	of.turn.Lock()
	defer of.turn.Unlock()
	if before = of.fence.Load(); ctx.Err() != nil {
		return 0, before, ctx.Err()
	}
	got, err := n.number(ctx, until, call)
	if word := code(err); word == "WRONGMODE" || word == "NOTHELD" || word == "WRONGTYPE" {
		err = nil
	}
	if err == nil {
		of.fence.Store(got.number)
	}
	return got.number, before, err
}

// allows asks the nodes whether a hold may last for the time of AtLeast. Those that allow it count as refused, because
// they extend nothing.
func (v *votes) allows(ctx context.Context) tally {
	isEnough := func(t tally) bool { return t.isRefused() || t.isFinal() }
	return v.ask(ctx, ctx, isEnough, func(ctx context.Context, until time.Time, n *server, _ *vote) (bool, error) {
		return false, n.allows(ctx, until, v.owner.names, v.request.settings.atLeast)
	})
}

// attempt asks all nodes once for the lock. Without a majority in time it ends what they gave.
func (v *votes) attempt(ctx context.Context) (got tally, isGranted bool) {
	call, isEnough := v.request.ask(v.owner), tally.isGranted
	if v.quorum.settings.failFast {
		isEnough = func(t tally) bool { return t.isGranted() || t.isLost() }
	}
	got = v.ask(ctx, valued{v.live, ctx}, isEnough,
		func(ctx context.Context, until time.Time, n *server, of *vote) (bool, error) {
			fence, _, err := of.take(ctx, until, n, call)
			return fence > 0, err
		})
	if got.isGranted() && now()-v.sent < v.quorum.settings.counted(v.request.settings.ttl) {
		return got, true // the other nodes may still grant
	}
	if !v.request.adopts {
		v.release(ctx, all, 0) // and waits, because the next attempt would find what this one holds
	}
	return got, false
}

// extend counts the nodes that still have the hold with the fence that they gave. All are sent the command that asks for
// the lock: for the same owner token it extends the hold, and it brings a node back that has lost it.
func (v *votes) extend(
	ctx context.Context, _ time.Time, o owner, ttl time.Duration, _ int64, wanted *requestSettings,
) (answer, error) {
	settings := *wanted
	settings.ttl = ttl
	call, sent := o.lock(v.request.mode, &settings), sending()
	call.Reserved = true
	got := v.ask(ctx, valued{v.live, ctx}, tally.isCertain,
		func(ctx context.Context, until time.Time, n *server, of *vote) (bool, error) {
			fence, before, err := of.take(ctx, until, n, call)
			if code(err) == "GRACE" {
				return false, nil // it gives no new hold, so it has not got this one
			}
			return fence != 0 && fence == before, err
		})
	isHeld, err := v.outcome(got, sent)
	if isHeld {
		return answer{number: 1, sent: sent}, err
	}
	return answer{sent: sent}, err
}

// end releases on all nodes, or has the hold end after a time.
func (v *votes) end(ctx context.Context, _ owner, _ int64, after time.Duration) (bool, error) {
	wasHeld, err := v.outcome(v.release(ctx, tally.isCertain, after), sending())
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return wasHeld, err
}

// outcome is what a majority says.
func (v *votes) outcome(got tally, sent time.Duration) (isGranted bool, err error) {
	if got.isCertain() {
		return got.isGranted(), nil
	}
	return false, got.missed(v.owner.names, sent, nil)
}

// release ends the hold at all nodes, in the background at those that do not reply in time.
func (v *votes) release(ctx context.Context, isEnough func(tally) bool, after time.Duration) tally {
	v.leave()
	return v.ask(ctx, context.WithoutCancel(ctx), isEnough,
		func(ctx context.Context, until time.Time, n *server, of *vote) (bool, error) {
			call, within := v.owner.ending(of.fence.Swap(0), after)
			got, err := n.number(ctx, until, call)
			if passes(err) {
				n.deliver(ctx, call, within)
			}
			return got.number > 0, err
		})
}
