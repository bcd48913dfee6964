package slock

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file has locks on several independent servers: N Locks, and arithmetic.

// Quorum takes locks on several independent servers: a hold counts while a majority of them has it, so that
// it outlives the loss of a minority. It polls, because no server knows of the others. All methods may be
// called by several goroutines at once. Close it when the program ends.
type Quorum struct {
	base
	nodes []*Locks
}

// NewQuorum makes a Quorum from clients of independent servers: not from replicas or nodes of one another.
// Their number should be odd. It sends nothing. The clients stay the caller's.
//
// Options are the defaults of all requests (such as TTL), WaitByPolling, WithHooks, WithLogger, NodeTimeout,
// DriftFactor and FailFast. Without WaitByPolling the pauses between attempts are random, of 10 to 250 ms.
func NewQuorum(clients []redis.UniversalClient, options ...Option) *Quorum {
	s := newSettings(options)
	if s.waiting != byPolling {
		s.waiting, s.strategy = byPolling, ExponentialPause(20*time.Millisecond, 250*time.Millisecond)
	}
	q := &Quorum{}
	q.init(q, s)
	s.hooks, s.log = Hooks{}, slog.New(slog.DiscardHandler) // the loss at one node is no loss
	for _, client := range clients {
		q.nodes = append(q.nodes, newLocks(client, s))
	}
	return q
}

// Close stops the watchdog. It lets requests that were given up, and releases that were begun, get to the
// servers first, for at most the time of RetryFor. It releases nothing: holds that are still there are no
// longer renewed.
func (q *Quorum) Close() error {
	q.close()
	closed := make(chan error, len(q.nodes))
	for _, n := range q.nodes {
		go func() { closed <- n.Close() }()
	}
	var err error
	for range q.nodes {
		err = errors.Join(err, <-closed)
	}
	return err
}

func (q *Quorum) drift() drift {
	return drift{factor: q.settings.driftFactor, fixed: 2 * time.Millisecond}
}

// nodeTimeout is how long to wait for one node: by default no longer than RetryFor, also with a long ttl.
func (q *Quorum) nodeTimeout(ttl time.Duration) time.Duration {
	timeout := max(q.settings.nodeTimeout, 0)
	return min(cmp.Or(timeout, min(max(ttl/20, 50*time.Millisecond), q.settings.retryFor)), ttl*9/10)
}

func (q *Quorum) check(r *Request) error {
	if len(q.nodes) == 0 {
		return invalid("a quorum needs servers")
	}
	for _, n := range q.nodes {
		if err := n.servers.check(); err != nil {
			return err
		}
	}
	if f := q.settings.driftFactor; f < 0 || f >= 1 {
		return invalid("the drift factor must be 0 or more and less than 1, not %g", f)
	}
	if q.drift().counted(r.settings.ttl) <= 0 {
		return invalid("the ttl must be more than 2 ms and the drift, not %s", r.settings.ttl)
	}
	return nil
}

func (q *Quorum) acquire(ctx context.Context, r *Request, once bool) (*Hold, error) {
	var v *votes
	a := q.acquisition(ctx, r.keys, &r.settings, once)
	err := a.run(func() (err error) {
		v, err = q.attempt(ctx, r)
		return err
	})
	if err != nil {
		return nil, err
	}
	return v.hold(ctx), nil
}

// attempt asks all nodes once, with a token of its own.
func (q *Quorum) attempt(ctx context.Context, r *Request) (*votes, error) {
	v, ttl, isEnough := q.votes(r), r.settings.ttl, (*QuorumError).isGranted
	if q.settings.failFast {
		isEnough = (*QuorumError).isDecided
	}
	got := v.ask(ctx, ttl, isEnough, v.acquire(ttl))
	if got.isGranted() && now().sub(v.sent) < q.drift().counted(ttl) {
		return v, nil // the other nodes may still grant
	}
	v.end()
	// It waits, because the next attempt would find what this one holds.
	v.ask(ctx, ttl, (*QuorumError).isWhole, v.releaseOne)
	return nil, got.missed()
}

func (q *Quorum) adopt(ctx context.Context, r *Request) (*Hold, error) {
	v := q.votes(r)
	got := v.ask(ctx, r.settings.ttl, (*QuorumError).isWhole, func(n *vote) (bool, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		granted, err := v.take(n, n.locks.retryEnd(), v.owner.refresh(r.mode, r.settings.ttl), func(int64) {})
		if errors.Is(err, ErrWrongMode) {
			return false, nil
		}
		n.doubt = n.doubt || err != nil // the token may hold the lock there
		return granted, err
	})
	if got.isGranted() {
		return v.hold(ctx), nil
	}
	v.end()
	if got.isRefusal() {
		return nil, notHeld(r.mode)
	}
	return nil, cmp.Or(ctx.Err(), got.missed())
}

func (q *Quorum) releaseToken(ctx context.Context, r *Request) (int, error) {
	v := q.votes(r)
	defer v.end()
	got := v.ask(ctx, r.settings.ttl, (*QuorumError).isWhole, func(n *vote) (bool, error) {
		released, err := n.locks.releaseToken(context.Background(), r)
		return released > 0, err
	})
	return got.count(NodeAnswer.isGrant), ctx.Err()
}

func (a NodeAnswer) isGrant() bool   { return a.Granted }
func (a NodeAnswer) isRefusal() bool { return !a.Granted && a.Err == nil }
func (a NodeAnswer) isSilent() bool  { return a.Err == errNoAnswer }
func (a NodeAnswer) isFinal() bool   { return a.Err != nil && !isTemporary(a.Err) }

// count is at how many nodes the answer is so.
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

// isRefusal tells whether others have the lock at so many nodes that there can be no majority, whatever the
// other nodes say.
func (e *QuorumError) isRefusal() bool { return e.count(NodeAnswer.isRefusal) > e.most() }

// isCertain tells that a majority has granted, or that others have the lock.
func (e *QuorumError) isCertain() bool { return e.isGranted() || e.isRefusal() }

// isDecided tells that a majority has granted, or that it is out of reach.
func (e *QuorumError) isDecided() bool {
	failed := len(e.Answers) - e.count(NodeAnswer.isGrant) - e.count(NodeAnswer.isSilent)
	return e.isGranted() || failed > e.most()
}

// isWhole waits for all nodes.
func (e *QuorumError) isWhole() bool { return false }

// mayHelp tells whether another attempt may end otherwise: not where a majority of nodes gives errors that
// last.
func (e *QuorumError) mayHelp() bool { return e.count(NodeAnswer.isFinal) < e.Needed }

// missed is the error of a call that needs a majority.
func (e *QuorumError) missed() error { return &failure{kind: ErrQuorumMissed, cause: e} }

// votes are what the nodes gave one owner: the keeper of a hold.
type votes struct {
	quorum  *Quorum
	request *Request
	owner   owner
	sent    instant // before the first command was sent
	nodes   []vote

	ctx context.Context // done when the hold is not wanted any more: then no node is asked for it
	end context.CancelFunc
}

// vote is what one node gave. As long as the hold is wanted, what had no answer there is not given up: its late end could
// remove what the node grants the same token after that, and the node would refuse the token.
type vote struct {
	locks *Locks
	lease atomic.Pointer[lease]
	asked atomic.Bool // it is being asked to grant

	mu    sync.Mutex // held while the node is asked; who holds it may change the rest
	doubt bool       // something may be left there that is not in the lease
}

func (q *Quorum) votes(r *Request) *votes {
	v := &votes{quorum: q, request: r, owner: r.owner(), sent: now(), nodes: make([]vote, len(q.nodes))}
	for i, l := range q.nodes {
		v.nodes[i].locks = l
	}
	v.ctx, v.end = context.WithCancel(q.ending)
	return v
}

// hold is the hold that a majority gave.
func (v *votes) hold(ctx context.Context) *Hold {
	return newHold(ctx, v.request, v.owner, v, reply{sent: v.sent}, v.quorum.drift())
}

// ask asks all nodes at once. It gives the answers that came until they were enough, ctx was over, or the timeout for
// nodes. What has no answer by then stays under way.
func (v *votes) ask(
	ctx context.Context, ttl time.Duration, isEnough func(*QuorumError) bool, node func(n *vote) (bool, error),
) *QuorumError {
	q, got := v.quorum, &QuorumError{Needed: len(v.nodes)/2 + 1}
	until := time.Now().Add(q.nodeTimeout(ttl) * 11 / 10) // a node may say itself that its time is over
	came := make(chan func(), len(v.nodes))
	ending := q.ending.Done()
	if v.ctx.Err() != nil {
		ending = nil // a release goes on when the Quorum is closed
	}
	for i := range v.nodes {
		n := &v.nodes[i]
		got.Answers = append(got.Answers, NodeAnswer{Node: n.locks.servers.name(), Err: errNoAnswer})
		q.background.run(func() {
			granted, err := node(n)
			var f *failure
			if errors.As(err, &f) && f.kind == ErrTimedOut { // of the node: that of the wait is another
				err = cmp.Or(f.cause, errNoAnswer)
			}
			came <- func() { got.Answers[i].Granted, got.Answers[i].Err = granted, err }
		})
	}
	for range v.nodes {
		note, err := await(ctx, came, until, nil, ending)
		if err != nil {
			break
		}
		if note(); isEnough(got) {
			break
		}
	}
	return got
}

// acquire asks a node for as long as the ttl; when the hold is extended after that, the node is asked again. So a node
// that is slow may follow as long as the hold is wanted.
func (v *votes) acquire(ttl time.Duration) func(n *vote) (bool, error) {
	end, mode, settings := time.Now().Add(ttl), v.request.mode, v.request.settings
	settings.ttl = ttl
	return func(n *vote) (bool, error) {
		if n.asked.Swap(true) {
			return false, errNoAnswer
		}
		defer n.asked.Store(false)
		n.mu.Lock()
		defer n.mu.Unlock()
		if is := n.lease.Load(); is != nil && is.state == live {
			return true, nil
		}
		return v.take(n, end, v.owner.lock(mode, &settings), func(fence int64) {
			_, _ = n.locks.askOnce(context.Background(), n.locks.retryEnd(), v.owner, v.owner.release(mode, fence))
		})
	}
}

// take asks a node by a command that gives a fence, or 0. It tells of a fence that comes when the hold is not wanted any
// more.
func (v *votes) take(n *vote, end time.Time, w words, unwanted func(fence int64)) (bool, error) {
	l, o, mode := n.locks, v.owner, v.request.mode
	r, err := l.repeat(v.ctx, "lock", o, end, func(ctx context.Context, limit time.Time) (int64, error) {
		return within(ctx, limit, func() (int64, error) {
			if err := l.mayRelease(ctx, limit, o.keys, mode); err != nil {
				return 0, err
			}
			fence, err := l.askOnce(context.Background(), limit, o, w)
			if fence > 0 && ctx.Err() != nil {
				unwanted(fence)
			}
			return fence, err
		})
	})
	n.doubt = n.doubt || r.late
	if r.number > 0 {
		// The quorum knows until when it is valid: a node that was silent for long is asked whether it has it.
		n.lease.Store(&lease{mode: mode, fence: r.number, ttl: v.request.settings.ttl, until: now().add(longestWait)})
	}
	return r.number > 0, err
}

func (v *votes) fences() []int64 {
	fences := make([]int64, len(v.nodes))
	for i := range v.nodes {
		if is := v.nodes[i].lease.Load(); is != nil && is.state == live {
			fences[i] = is.fence
		}
	}
	return fences
}

// extend counts the nodes that still have the hold. Where it is gone, or never was, it is asked for anew after that,
// with the same token, because a majority has it.
func (v *votes) extend(ctx context.Context, _ time.Time, o owner, r renewal) (int64, error) {
	end := time.Now().Add(v.quorum.nodeTimeout(r.ttl))
	got := v.ask(ctx, r.ttl, (*QuorumError).isCertain, func(n *vote) (bool, error) {
		is := n.lease.Load()
		if is == nil {
			return false, errNoAnswer // it may be asked to grant for long
		}
		if is.state == lost {
			return false, nil // the same
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		is = cmp.Or(n.lease.Load(), is) // none: it was released, and is not asked any more
		answer, err := n.locks.ask(v.ctx, "extension", o, end, o.extend(r.ttl, is.fence))
		if err == nil && answer.number == 0 || hasCode(err, "WRONGTYPE") {
			gone := *is
			gone.lose(Gone)
			n.lease.Store(&gone)
			return false, nil
		}
		return err == nil, err
	})
	switch {
	case got.isGranted():
		v.quorum.background.run(func() { v.ask(v.ctx, r.ttl, (*QuorumError).isWhole, v.acquire(r.ttl)) })
		return 1, nil
	case got.isRefusal():
		return 0, nil
	case ctx.Err() != nil:
		return 0, errLeft
	}
	return 0, got.missed()
}

// release releases on all nodes. Those that do not answer in time are asked again in the background, as long as the
// hold may be there.
func (v *votes) release(ctx context.Context, _ owner, ending lease) (bool, error) {
	v.end()
	if ending.state == lost && v.owner.given {
		return false, nil
	}
	got := v.ask(ctx, ending.ttl, (*QuorumError).isCertain, v.releaseOne)
	if ending.state == lost || got.isCertain() {
		return ending.state != lost && got.isGranted(), nil
	}
	return false, got.missed()
}

// releaseOne releases at one node. What was under way there has ended at once, because the hold is not wanted any more.
func (v *votes) releaseOne(n *vote) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	is, doubt := n.lease.Swap(nil), n.doubt
	n.doubt = false
	if is == nil && !doubt {
		return false, nil
	}
	ending := *cmp.Or(is, &lease{mode: v.request.mode, fence: noFence, ttl: v.request.settings.ttl})
	ending.doubt = doubt
	if is == nil || is.state == lost {
		_, _ = n.locks.release(over(), v.owner, ending) // it is not waited for
		return false, nil
	}
	return n.locks.release(context.Background(), v.owner, ending)
}
