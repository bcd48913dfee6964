package slock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
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
	switch {
	case r.Err != nil:
		return r.Node + ": " + r.Err.Error()
	case r.Granted:
		return r.Node + ": granted"
	}
	return r.Node + ": refused"
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

func (t tally) count() (granted, refused, silent, final int) {
	for _, r := range t {
		switch {
		case r.Granted:
			granted++
		case r.Err == nil:
			refused++
		case r.Err == errSilent:
			silent++
		case !passes(r.Err):
			final++
		}
	}
	return granted, refused, silent, final
}

// isGranted tells whether a majority granted.
func (t tally) isGranted() bool {
	granted, _, _, _ := t.count()
	return granted > len(t)/2
}

// isRefused tells whether others have the lock at so many nodes that there can be no majority, whatever the others say.
func (t tally) isRefused() bool {
	_, refused, _, _ := t.count()
	return refused > (len(t)-1)/2
}

// isLost tells whether a majority is out of reach.
func (t tally) isLost() bool {
	granted, _, silent, _ := t.count()
	return granted+silent <= len(t)/2
}

// isFinal tells whether a majority of nodes gives errors that stay.
func (t tally) isFinal() bool {
	_, _, _, final := t.count()
	return final > len(t)/2
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
	v := q.votes(r)
	began, a := sending(), newAttempts(ctx, q.closing, q.settings, r.keys)
	a.wait(r.settings, try)
	a.polling = q.settings.strategy
	a.failed = func(bool) error { return last.missed(r.keys, began, overErr(ctx)) }
	err := a.run(func() error {
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
		case ctx.Err() == nil && (a.once || got.isFinal()):
			return a.failed(false)
		case isRefused:
			a.last, a.contact = nil, time.Now()
		default:
			a.last = errSilent
		}
		return errPoll
	})
	return taken{v, v.owner, answer{sent: v.sent}}, err
}

func (q *quorum) release(ctx context.Context, r *Request) (int, error) {
	got := q.votes(r).release(ctx, all, 0)
	if ctx.Err() != nil {
		return 0, ended(ctx)
	}
	granted, _, _, _ := got.count()
	return granted, nil
}

// votes are what the nodes gave one owner: the keeper of a hold.
type votes struct {
	quorum  *quorum
	request *Request
	owner   owner
	sent    time.Duration // before the first command was sent
	nodes   []vote
}

// vote is what one node gave.
type vote struct {
	server *server
	fence  atomic.Int64 // 0: none
}

func (q *quorum) votes(r *Request) *votes {
	v := &votes{quorum: q, request: r, owner: r.owner(), sent: sending(), nodes: make([]vote, len(q.nodes))}
	for i, n := range q.nodes {
		v.nodes[i].server = n
	}
	return v
}

func (v *votes) fences() []int64 {
	fences := make([]int64, len(v.nodes))
	for i := range v.nodes {
		fences[i] = v.nodes[i].fence.Load()
	}
	return fences
}

// all waits for all nodes.
func all(tally) bool { return false }

// ask asks all nodes at once. It gives the replies that came until they were enough, or ctx was over, or the time for
// nodes. By default that is a twentieth of the ttl, within bounds; a node that has not replied by then may still do so.
func (v *votes) ask(
	ctx context.Context, isEnough func(tally) bool,
	node func(ctx context.Context, until time.Time, n *vote) (bool, error),
) tally {
	s, ttl := v.quorum.settings, v.request.settings.ttl
	timeout := cmp.Or(max(s.nodeTimeout, 0), min(max(ttl/20, 50*time.Millisecond), s.retryFor))
	until := time.Now().Add(min(timeout, ttl*9/10))
	got, came := make(tally, len(v.nodes)), make(chan func(), len(v.nodes))
	for i := range v.nodes {
		n := &v.nodes[i]
		got[i] = NodeReply{Node: n.server.topology.Name, Err: errSilent}
		go func() {
			granted, err := node(context.WithoutCancel(ctx), until, n)
			came <- func() { got[i].Granted, got[i].Err = granted && err == nil, err }
		}()
	}
	for range v.nodes {
		select {
		case note := <-came:
			if note(); !isEnough(got) {
				continue
			}
		case <-ctx.Done():
		}
		break
	}
	return slices.Clone(got)
}

// take sends a node a command that gives a fence or 0.
func (n *vote) take(ctx context.Context, until time.Time, call Call) (bool, error) {
	got, err := n.server.number(ctx, until, call)
	if word := code(err); word == "WRONGMODE" || word == "NOTHELD" || word == "WRONGTYPE" {
		err = nil
	}
	if err == nil {
		n.fence.Store(got.number)
	}
	return got.number > 0, err
}

// attempt asks all nodes once for the lock. Without a majority in time it ends what they gave.
func (v *votes) attempt(ctx context.Context) (got tally, isGranted bool) {
	call, isEnough := v.request.ask(v.owner), tally.isGranted
	if v.quorum.settings.failFast {
		isEnough = func(t tally) bool { return t.isGranted() || t.isLost() }
	}
	got = v.ask(ctx, isEnough, func(ctx context.Context, until time.Time, n *vote) (bool, error) {
		return n.take(ctx, until, call)
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
func (v *votes) extend(ctx context.Context, _ time.Time, o owner, e extension) (answer, error) {
	settings := *e.wanted
	settings.ttl = e.ttl
	call, sent := o.lock(v.request.mode, &settings), sending()
	call.Reserved = true
	got := v.ask(ctx, tally.isCertain, func(ctx context.Context, until time.Time, n *vote) (bool, error) {
		before := n.fence.Load()
		_, err := n.take(ctx, until, call)
		if code(err) == "GRACE" {
			return false, nil // it gives no new hold, so it has not got this one
		}
		return before != 0 && n.fence.Load() == before, err
	})
	is, err := v.outcome(ctx, got, sent)
	if is {
		return answer{number: 1, sent: sent}, err
	}
	return answer{sent: sent}, err
}

// end releases on all nodes, or has the hold end after a time.
func (v *votes) end(ctx context.Context, _ owner, _ int64, after time.Duration) (bool, error) {
	return v.outcome(ctx, v.release(ctx, tally.isCertain, after), sending())
}

// outcome is what a majority says.
func (v *votes) outcome(ctx context.Context, got tally, sent time.Duration) (isGranted bool, err error) {
	switch {
	case got.isCertain():
		return got.isGranted(), nil
	case ctx.Err() != nil:
		return false, errLeft
	}
	return false, got.missed(v.owner.names, sent, nil)
}

// release ends the hold at all nodes, in the background at those that do not reply in time.
func (v *votes) release(ctx context.Context, isEnough func(tally) bool, after time.Duration) tally {
	return v.ask(ctx, isEnough, func(ctx context.Context, until time.Time, n *vote) (bool, error) {
		call, within := v.owner.ending(n.fence.Swap(0), after)
		got, err := n.server.number(ctx, until, call)
		if passes(err) {
			n.server.deliver(ctx, call, within)
		}
		return got.number > 0, err
	})
}
