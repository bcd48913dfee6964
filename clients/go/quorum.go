package slock

import (
	"cmp"
	"context"
	"errors"
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
	q := &quorum{l.servers, &l.settings, l.closing}
	l.backend, l.counted = q, q.counted
	return l
}

type quorum struct {
	nodes    []*server
	settings *settings
	closing  context.Context
}

func (q *quorum) follow(string) {}

// counted is the part of a ttl that counts for the validity.
func (q *quorum) counted(ttl time.Duration) time.Duration {
	return ttl - time.Duration(float64(ttl)*q.settings.driftFactor) - 2*time.Millisecond
}

func (q *quorum) check(r *Request) error {
	if f := q.settings.driftFactor; len(q.nodes) == 0 || f < 0 || f >= 1 || q.counted(r.settings.ttl) <= 0 {
		return invalid("a quorum needs servers, a drift factor of at least 0 and less than 1, and a ttl above 2 ms and "+
			"the drift, not %d servers, %g and %s", len(q.nodes), f, r.settings.ttl)
	}
	for _, n := range q.nodes {
		if n.problem != nil {
			return n.problem
		}
	}
	return nil
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

// isGranted tells whether a majority granted.
func (t tally) isGranted() bool {
	return t.count(func(r NodeReply) bool { return r.Granted }) > len(t)/2
}

// isRefused tells whether others have the lock at so many nodes that there can be no majority, whatever the others say.
func (t tally) isRefused() bool {
	return t.count(func(r NodeReply) bool { return !r.Granted && r.Err == nil }) > (len(t)-1)/2
}

// isLost tells whether a majority is out of reach.
func (t tally) isLost() bool {
	return t.count(func(r NodeReply) bool { return !r.Granted && !errors.Is(r.Err, errSilent) }) > (len(t)-1)/2
}

// isFinal tells whether a majority of nodes gives errors that last.
func (t tally) isFinal() bool {
	return t.count(func(r NodeReply) bool { return r.Err != nil && !passes(r.Err) }) > len(t)/2
}

func (t tally) isCertain() bool { return t.isGranted() || t.isRefused() }

// missed is the error of a call that got no majority.
func (t tally) missed(keys []string, waited time.Duration, ended error) error {
	kind := ErrQuorumMissed
	if t.isRefused() {
		kind = ErrTimedOut
	}
	failed := failure(kind, keys, func() string {
		return fmt.Sprintf("no majority of %d nodes after %s", len(t), waited.Round(time.Millisecond))
	}, ended)
	failed.Nodes = t
	return failed
}

func (q *quorum) acquire(ctx context.Context, r *Request, try bool) (keeper, owner, grant, error) {
	var v *votes
	var last tally
	a := newAcquisition(ctx, q.closing, q.settings, r.settings, try)
	a.polling = q.settings.strategy
	a.failed = func(bool) error { return last.missed(r.keys, time.Since(a.began), overErr(ctx)) }
	a.send = func() (grant, error) {
		v = q.votes(r)
		got := v.attempt(ctx)
		if last == nil || ctx.Err() == nil || got.isRefused() {
			last = got // one that was cut short may tell less than the one before
		}
		a.last = nil
		switch isRefused := got.isRefused(); {
		case got.isGranted():
			return grant{0, v.sent}, nil
		case isRefused && try:
			return grant{}, failure(ErrNotAcquired, r.keys, plain("the lock is held"))
		case ctx.Err() == nil && (a.once || got.isFinal()):
			return grant{}, a.failed(false)
		case isRefused:
			a.contact = time.Now()
		default:
			a.last = errSilent
		}
		return grant{}, errPoll
	}
	got, err := a.run()
	return v, v.owner, got, err
}

func (q *quorum) adopt(ctx context.Context, r *Request) (keeper, owner, grant, error) {
	v := q.votes(r)
	got := v.ask(ctx, r.settings.ttl, all, func(ctx context.Context, n *vote) (bool, error) {
		return n.take(ctx, v.owner.adopt(r.mode, r.settings.ttl))
	})
	err := error(notHeld(r.keys, r.mode))
	switch {
	case got.isGranted():
		err = nil
	case ctx.Err() != nil:
		err = ended(ctx)
	case !got.isRefused():
		err = got.missed(r.keys, now()-v.sent, nil)
	}
	return v, v.owner, grant{0, v.sent}, err
}

func (q *quorum) release(ctx context.Context, r *Request) (int, error) {
	v := q.votes(r)
	got := v.ask(ctx, r.settings.ttl, all, v.release)
	if ctx.Err() != nil {
		return 0, ended(ctx)
	}
	return got.count(func(r NodeReply) bool { return r.Granted }), nil
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
	server  *server
	isAsked atomic.Bool  // a command that asks for the lock is on its way
	fence   atomic.Int64 // 0: none
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
	ctx context.Context, ttl time.Duration, isEnough func(tally) bool,
	node func(ctx context.Context, n *vote) (bool, error),
) tally {
	s := v.quorum.settings
	timeout := cmp.Or(max(s.nodeTimeout, 0), min(max(ttl/20, 50*time.Millisecond), s.retryFor))
	limited, end := context.WithTimeout(context.WithoutCancel(ctx), min(timeout, ttl*9/10))
	context.AfterFunc(limited, end) // its time ends it
	got, came := make(tally, len(v.nodes)), make(chan func(), len(v.nodes))
	for i := range v.nodes {
		n := &v.nodes[i]
		got[i] = NodeReply{Node: n.server.topology.Name, Err: errSilent}
		go func() {
			granted, err := node(limited, n)
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

// take sends a node a command that gives a fence or 0, until ctx is over.
func (n *vote) take(ctx context.Context, call Call) (bool, error) {
	if n.isAsked.Swap(true) {
		return false, errSilent // the command before has no reply yet
	}
	defer n.isAsked.Store(false)
	until, _ := ctx.Deadline()
	got, err := n.server.number(context.WithoutCancel(ctx), until, call)
	if err == nil {
		n.fence.Store(got.number)
	}
	if word := code(err); word == "WRONGMODE" || word == "NOTHELD" || word == "WRONGTYPE" {
		n.fence.Store(0)
		return false, nil
	}
	return got.number > 0, err
}

// attempt asks all nodes once for the lock. Without a majority in time it ends what they gave.
func (v *votes) attempt(ctx context.Context) tally {
	ttl, call := v.request.settings.ttl, v.owner.lock(v.request.mode, v.request.settings)
	isEnough := tally.isGranted
	if v.quorum.settings.failFast {
		isEnough = func(t tally) bool { return t.isGranted() || t.isLost() }
	}
	got := v.ask(ctx, ttl, isEnough, func(ctx context.Context, n *vote) (bool, error) { return n.take(ctx, call) })
	if got.isGranted() && now()-v.sent < v.quorum.counted(ttl) {
		return got // the other nodes may still grant
	}
	// It waits, because the next attempt would find what this one holds.
	v.ask(ctx, ttl, all, v.release)
	for i := range got {
		if got[i].Granted { // too late, or too few
			got[i].Granted, got[i].Err = false, errors.Join(got[i].Err, errTooFew)
		}
	}
	return got
}

// errTooFew is the error of a node that granted in vain.
var errTooFew = errors.New("granted, and released since there was no majority")

// extend counts the nodes that still have the hold with the fence that they gave. All are sent the command that asks for
// the lock: for the same owner token it extends the hold, and it brings a node back that has lost it.
func (v *votes) extend(ctx context.Context, _ time.Time, o owner, e extension) (answer, error) {
	settings := *e.wanted
	settings.ttl = e.ttl
	call := o.lock(v.request.mode, &settings)
	call.Reserved = true
	sent := sending()
	got := v.ask(ctx, e.ttl, tally.isCertain, func(ctx context.Context, n *vote) (bool, error) {
		before := n.fence.Load()
		_, err := n.take(ctx, call)
		if code(err) == "GRACE" {
			return false, nil // it gives no new hold, so it has not got this one
		}
		return before != 0 && n.fence.Load() == before, err
	})
	switch {
	case got.isCertain():
		return answer{number: int64(got.count(func(r NodeReply) bool { return r.Granted && got.isGranted() })), sent: sent}, nil
	case ctx.Err() != nil:
		return answer{}, errLeft
	}
	return answer{}, got.missed(o.names, sending()-sent, nil)
}

// end releases on all nodes, or has the hold end after a time.
func (v *votes) end(ctx context.Context, o owner, _ int64, after time.Duration) (bool, error) {
	node := v.release
	if after > 0 {
		node = func(ctx context.Context, n *vote) (bool, error) { return n.server.end(ctx, o, n.fence.Load(), after) }
	}
	got := v.ask(ctx, v.request.settings.ttl, tally.isCertain, node)
	switch {
	case got.isCertain():
		return got.isGranted(), nil
	case ctx.Err() != nil:
		return false, ended(ctx)
	}
	return false, got.missed(o.names, 0, nil)
}

// release ends the hold at one node, in the background if the node does not reply in time.
func (v *votes) release(ctx context.Context, n *vote) (bool, error) {
	call := v.owner.end(n.fence.Swap(0))
	until, _ := ctx.Deadline()
	got, err := n.server.number(context.WithoutCancel(ctx), until, call)
	if passes(err) {
		n.server.deliver(ctx, call, refuseFor)
	}
	return got.number > 0, err
}
