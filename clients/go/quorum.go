package slock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// This file has locks on several independent servers: N servers, and arithmetic. The algorithm is that of redsync and of
// the Redis documentation ("Distributed Locks with Redis").

// Quorum takes locks on several independent servers: a hold counts while a majority of them has it, so that it outlives
// the loss of a minority. It polls, because no server knows of the others. All methods may be called by several
// goroutines at once.
type Quorum struct {
	base
	nodes []*server
	err   error // why a client cannot be used
}

// NewQuorumWith makes a Quorum over Transports of independent servers. NewQuorum does that for clients of go-redis.
func NewQuorumWith(transports []Transport, options ...Option) *Quorum {
	q := &Quorum{}
	s := newSettings(options)
	q.init(q, s)
	for _, t := range transports {
		node, err := q.base.server(t)
		q.nodes, q.err = append(q.nodes, node), errors.Join(q.err, err)
	}
	q.watchdog = newWatchdog(q.report, func(string) {})
	q.holding = holding{nil, q.report, q.watchdog, s.retryFor, q.counted}
	return q
}

// Close ends the waits and the renewals, as that of Locks.
func (q *Quorum) Close() error {
	q.shut(q.nodes)
	var errs []error
	for _, n := range q.nodes {
		errs = append(errs, n.transport.Close())
	}
	return errors.Join(errs...)
}

// counted is the part of a ttl that counts for the validity.
func (q *Quorum) counted(ttl time.Duration) time.Duration {
	return ttl - time.Duration(float64(ttl)*q.settings.driftFactor) - 2*time.Millisecond
}

// nodeTimeout is how long to wait for one node: by default no longer than RetryFor, also with a long ttl.
func (q *Quorum) nodeTimeout(ttl time.Duration) time.Duration {
	timeout := max(q.settings.nodeTimeout, 0)
	return min(cmp.Or(timeout, min(max(ttl/20, 50*time.Millisecond), q.settings.retryFor)), ttl*9/10)
}

func (q *Quorum) check(r *Request) error {
	f := q.settings.driftFactor
	switch {
	case len(q.nodes) == 0:
		return invalid("a quorum needs servers")
	case q.err != nil:
		return q.err
	case f < 0 || f >= 1:
		return invalid("the drift factor must be 0 or more and less than 1, not %g", f)
	case q.counted(r.settings.ttl) <= 0:
		return invalid("the ttl must be more than 2 ms and the drift, not %s", r.settings.ttl)
	}
	return nil
}

func (q *Quorum) acquire(ctx context.Context, r *Request, once bool) (*Hold, error) {
	began := time.Now()
	once = once || r.settings.hasWait && r.settings.wait == 0
	deadline, _ := ctx.Deadline()
	if r.settings.hasWait && !once {
		deadline = earlier(began.Add(r.settings.wait), deadline)
	}
	var last *QuorumError
	var contact time.Time // when a majority last replied
	for tries := 0; ; tries++ {
		v := q.votes(r)
		got := v.attempt(ctx)
		if got.isGranted() {
			return q.of(v).hold(ctx, r, v.owner, grant{0, v.sent}), nil
		}
		if last == nil || ctx.Err() == nil || got.isRefusal() {
			last = got // one that was cut short may tell less than the one before
		}
		if got.isRefusal() {
			contact = time.Now()
		}
		pause, mayTry := q.settings.strategy.pause(tries)
		now := time.Now()
		outage := began.Add(q.settings.retryFor)
		if !contact.IsZero() {
			outage = contact.Add(q.settings.retryWaitFor)
		}
		switch {
		case q.closing.Err() != nil:
			return nil, ErrClosed
		case isCancelled(ctx.Err()):
			return nil, ended(ctx)
		case once && last.isRefusal() && !r.settings.hasWait:
			return nil, because(ErrNotAcquired, named(r.keys)+" is held", last)
		case once || !mayTry || !last.mayHelp() || !last.isRefusal() && !now.Before(outage),
			ctx.Err() != nil, !deadline.IsZero() && deadline.Sub(now) < pause:
			return nil, q.missed(r, last, ctx.Err(), began)
		}
		sleep(ctx, q.closing, pause)
	}
}

// missed is the error of a call that needed a majority.
func (q *Quorum) missed(r *Request, last *QuorumError, ended error, began time.Time) error {
	if last.isRefusal() {
		return &TimedOutError{Keys: r.keys, Waited: time.Since(began), cause: errors.Join(last, ended)}
	}
	return because(ErrQuorumMissed, "no majority for "+named(r.keys), last, ended)
}

// of makes holds that the votes keep.
func (q *Quorum) of(v *votes) holding {
	k := q.holding
	k.keeper = v
	return k
}

func (q *Quorum) adopt(ctx context.Context, r *Request) (*Hold, error) {
	v := q.votes(r)
	got := v.ask(ctx, r.settings.ttl, never, func(ctx context.Context, n *vote) (bool, error) {
		return v.lock(ctx, n, v.owner.adopt(r.mode, r.settings.ttl))
	})
	switch {
	case got.isGranted():
		return q.of(v).hold(ctx, r, v.owner, grant{0, v.sent}), nil
	case ctx.Err() != nil:
		return nil, ended(ctx)
	case got.isRefusal():
		return nil, &notHeldError{r.keys, r.mode}
	}
	return nil, q.missed(r, got, nil, time.Now())
}

func (q *Quorum) release(ctx context.Context, r *Request) (int, error) {
	v := q.votes(r)
	got := v.ask(ctx, r.settings.ttl, never, func(ctx context.Context, n *vote) (bool, error) {
		return v.endOne(ctx, n, 0)
	})
	if ctx.Err() != nil {
		return 0, ended(ctx)
	}
	return got.count(NodeAnswer.isGrant), nil
}

func (a NodeAnswer) isGrant() bool   { return a.Granted }
func (a NodeAnswer) isRefusal() bool { return !a.Granted && a.Err == nil }
func (a NodeAnswer) isSilent() bool  { return errors.Is(a.Err, errSilent) }
func (a NodeAnswer) isFinal() bool   { return a.Err != nil && !passes(a.Err) }

// count is at how many nodes the reply is so.
func (e *QuorumError) count(is func(NodeAnswer) bool) (n int) {
	for _, a := range e.Answers {
		if is(a) {
			n++
		}
	}
	return n
}

func (e *QuorumError) isGranted() bool { return e.count(NodeAnswer.isGrant) >= e.Needed }

// most is how many nodes may fail to grant.
func (e *QuorumError) most() int { return len(e.Answers) - e.Needed }

// isRefusal tells whether others have the lock at so many nodes that there can be no majority, whatever the other nodes
// say.
func (e *QuorumError) isRefusal() bool { return e.count(NodeAnswer.isRefusal) > e.most() }

// isCertain tells that a majority has granted, or that others have the lock.
func (e *QuorumError) isCertain() bool { return e.isGranted() || e.isRefusal() }

// isDecided tells that a majority has granted, or that it is out of reach.
func (e *QuorumError) isDecided() bool {
	failed := len(e.Answers) - e.count(NodeAnswer.isGrant) - e.count(NodeAnswer.isSilent)
	return e.isGranted() || failed > e.most()
}

// never waits for all nodes.
func never(*QuorumError) bool { return false }

// mayHelp tells whether another attempt may end otherwise: not where a majority of nodes gives errors that last.
func (e *QuorumError) mayHelp() bool { return e.count(NodeAnswer.isFinal) < e.Needed }

// votes are what the nodes gave one owner: the keeper of a hold.
type votes struct {
	quorum  *Quorum
	request *Request
	owner   owner
	sent    instant // before the first command was sent
	nodes   []vote
}

// vote is what one node gave. A node is sent the command that asks for the lock to renew it as well: to the same owner
// token that is the same hold, and it brings a node back that has lost it.
type vote struct {
	server *server
	asked  chan struct{} // held while a command is on its way
	mu     sync.Mutex
	fence  int64 // 0: none
}

func (q *Quorum) votes(r *Request) *votes {
	v := &votes{quorum: q, request: r, owner: r.owner(), sent: sending(), nodes: make([]vote, len(q.nodes))}
	for i, n := range q.nodes {
		v.nodes[i].server, v.nodes[i].asked = n, make(chan struct{}, 1)
	}
	return v
}

// ask asks all nodes at once. It gives the replies that came until they were enough, or ctx was over, or the timeout for
// nodes. A node that has not replied by then may still do so.
func (v *votes) ask(
	ctx context.Context, ttl time.Duration, isEnough func(*QuorumError) bool,
	node func(ctx context.Context, n *vote) (bool, error),
) *QuorumError {
	got := &QuorumError{Needed: len(v.nodes)/2 + 1}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), v.quorum.nodeTimeout(ttl))
	came := make(chan func(), len(v.nodes))
	var left sync.WaitGroup
	for i := range v.nodes {
		n := &v.nodes[i]
		got.Answers = append(got.Answers, NodeAnswer{Node: n.server.topology.Name, Err: errSilent})
		left.Add(1)
		go func() {
			defer left.Done()
			granted, err := node(limited, n)
			came <- func() { got.Answers[i].Granted, got.Answers[i].Err = granted, err }
		}()
	}
	go func() {
		left.Wait()
		cancel()
	}()
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
	return got
}

// lock sends a node a command that gives a fence or 0, for as long as ctx.
func (v *votes) lock(ctx context.Context, n *vote, call Call) (bool, error) {
	select {
	case n.asked <- struct{}{}:
	default:
		return false, errSilent // the command before has no reply yet
	}
	defer func() { <-n.asked }()
	until, _ := ctx.Deadline()
	got, err := n.server.number(context.WithoutCancel(ctx), until, call)
	if err == nil {
		n.mu.Lock()
		n.fence = got.number
		n.mu.Unlock()
	}
	if err = kinded(err); errors.Is(err, ErrWrongMode) || errors.Is(err, ErrNotHeld) {
		return false, nil
	}
	return got.number > 0 && err == nil, err
}

// attempt asks all nodes once for the lock. Without a majority in time it ends what they gave.
func (v *votes) attempt(ctx context.Context) *QuorumError {
	isEnough := (*QuorumError).isGranted
	if v.quorum.settings.failFast {
		isEnough = (*QuorumError).isDecided
	}
	ttl := v.request.settings.ttl
	call := v.owner.lock(v.request.mode, v.request.settings)
	got := v.ask(ctx, ttl, isEnough, func(ctx context.Context, n *vote) (bool, error) { return v.lock(ctx, n, call) })
	if got.isGranted() && now().sub(v.sent) < v.quorum.counted(ttl) {
		return got // the other nodes may still grant
	}
	// It waits, because the next attempt would find what this one holds.
	v.ask(ctx, ttl, never, func(ctx context.Context, n *vote) (bool, error) { return v.endOne(ctx, n, 0) })
	if got.isGranted() {
		got.Answers = slices.Clone(got.Answers)
		for i := range got.Answers {
			got.Answers[i].Granted, got.Answers[i].Err = false, errSilent
		}
	}
	return got
}

func (v *votes) fences() []int64 {
	fences := make([]int64, len(v.nodes))
	for i := range v.nodes {
		v.nodes[i].mu.Lock()
		fences[i] = v.nodes[i].fence
		v.nodes[i].mu.Unlock()
	}
	return fences
}

// extend counts the nodes that still have the hold with the fence that they gave. Nodes that have lost it grant it anew.
func (v *votes) extend(ctx context.Context, _ time.Time, o owner, e extension) (answer, error) {
	settings := *v.request.settings
	settings.ttl = e.ttl
	sent, fences := sending(), v.fences()
	at := make(map[*vote]int64, len(fences))
	for i, fence := range fences {
		at[&v.nodes[i]] = fence
	}
	call := o.lock(v.request.mode, &settings)
	call.Reserved = true
	got := v.ask(ctx, e.ttl, (*QuorumError).isCertain, func(ctx context.Context, n *vote) (bool, error) {
		_, err := v.lock(ctx, n, call)
		n.mu.Lock()
		defer n.mu.Unlock()
		return err == nil && n.fence != 0 && n.fence == at[n], err
	})
	switch {
	case got.isGranted():
		return answer{number: 1, sent: sent}, nil
	case got.isRefusal():
		return answer{sent: sent}, nil
	case ctx.Err() != nil:
		return answer{}, errLeft
	}
	return answer{}, because(ErrQuorumMissed, "", got)
}

// end releases on all nodes. Those that do not reply in time get the end in the background.
func (v *votes) end(ctx context.Context, _ owner, fence int64) (bool, error) {
	return v.finish(ctx, func(ctx context.Context, n *vote) (bool, error) { return v.endOne(ctx, n, fence) })
}

func (v *votes) keep(ctx context.Context, o owner, _ int64, ttl time.Duration) (bool, error) {
	return v.finish(ctx, func(ctx context.Context, n *vote) (bool, error) {
		k := single{server: n.server}
		return k.keep(ctx, o, 0, ttl)
	})
}

func (v *votes) finish(ctx context.Context, node func(ctx context.Context, n *vote) (bool, error)) (bool, error) {
	got := v.ask(ctx, v.request.settings.ttl, (*QuorumError).isCertain, node)
	if got.isCertain() {
		return got.isGranted(), nil
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	return false, because(ErrQuorumMissed, "", got)
}

// endOne ends the hold at one node.
func (v *votes) endOne(ctx context.Context, n *vote, _ int64) (bool, error) {
	n.mu.Lock()
	fence := n.fence
	n.fence = 0
	n.mu.Unlock()
	call := v.owner.end(fence)
	until, _ := ctx.Deadline()
	got, err := n.server.number(context.WithoutCancel(ctx), until, call)
	if passes(err) {
		n.server.deliver(ctx, call, refuseFor)
	}
	return got.number > 0 && err == nil, kinded(err)
}
