package slock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
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

func nodeName(client redis.UniversalClient) string {
	switch client := client.(type) {
	case *redis.Client:
		return client.Options().Addr
	case *redis.ClusterClient:
		return strings.Join(client.Options().Addrs, ", ")
	}
	return fmt.Sprintf("%T", client)
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

// nodeTimeout is how long to wait for one node.
func (q *Quorum) nodeTimeout(ttl time.Duration) time.Duration {
	timeout := max(q.settings.nodeTimeout, 0)
	return min(cmp.Or(timeout, max(ttl/20, 50*time.Millisecond)), ttl*9/10)
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

func (q *Quorum) acquire(ctx context.Context, r *Request, try bool) (*Hold, error) {
	began := time.Now()
	var v *votes
	a := q.acquisition(ctx, r.keys, &r.settings, try)
	_, err := a.run(func() (g grant, err error) {
		v, err = q.attempt(ctx, r)
		return g, err
	})
	q.report.waited(r.label(), time.Since(began), outcome(err))
	if err != nil {
		return nil, err
	}
	return v.hold(ctx), nil
}

// attempt asks all nodes once, with a token of its own. It ends when a majority has granted. When the majority is out
// of reach it releases, so that others may have it, and waits for the other answers only to tell them; with FailFast
// it does not.
func (q *Quorum) attempt(ctx context.Context, r *Request) (*votes, error) {
	v, ttl := q.votes(r, r.owner()), r.settings.ttl
	round := q.ask(ttl, v.acquire(ttl))
	got := round.wait(ctx, tally.isDecided)
	if got.isGranted() && now().sub(v.sent) < q.drift().counted(ttl) {
		return v, nil // the other nodes may still grant
	}
	v.end()
	released := make(chan struct{})
	q.background.run(func() {
		defer close(released)
		q.ask(ttl, v.releaseOne).wait(context.Background(), tally.isWhole)
	})
	if !q.settings.failFast {
		got = round.wait(ctx, tally.isWhole)
	}
	// Else the next attempt would find what this one holds.
	_, _ = await(ctx, released, time.Time{}, nil, q.ending.Done())
	return nil, got.missed()
}

func (q *Quorum) adopt(ctx context.Context, r *Request) (*Hold, error) {
	if q.ending.Err() != nil {
		return nil, ErrClosed
	}
	v, ttl := q.votes(r, r.owner()), r.settings.ttl
	got := q.ask(ttl, func(i int) (bool, error) {
		n, l, wanted := &v.nodes[i], q.nodes[i], v.requestOfNode(ttl)
		n.asking <- struct{}{}
		defer n.asked()
		h, err := l.adopt(v.ctx, wanted)
		if err != nil && !errors.Is(err, ErrNotHeld) {
			n.open = v.attempts(l, wanted) // the token may hold the lock there
		}
		return v.keep(n, h, err)
	}).wait(ctx, tally.isWhole)
	switch {
	case got.isGranted():
		return v.hold(ctx), nil
	case got.isRefusal():
		return nil, notHeld(r.mode)
	}
	return nil, cmp.Or(ctx.Err(), got.missed())
}

// Release releases the keys that the token holds, in whichever mode, on all nodes, and tells how many nodes
// released something. It is for a token that another process took; a Hold has a Release of its own. A node that does
// not answer in time is not counted, and is asked again in the background.
func (q *Quorum) Release(ctx context.Context, token string, keys ...string) (int, error) {
	if token == "" || len(keys) == 0 {
		return 0, invalid("a release needs a token and keys")
	}
	got := q.ask(q.settings.request.ttl, func(i int) (bool, error) {
		released, err := q.nodes[i].Release(context.Background(), token, keys...)
		return released > 0, err
	}).wait(ctx, tally.isWhole)
	return got.count(NodeAnswer.isGrant), ctx.Err()
}

// tally is what the nodes answered.
type tally []NodeAnswer

func (a NodeAnswer) isGrant() bool   { return a.Granted }
func (a NodeAnswer) isRefusal() bool { return !a.Granted && a.Err == nil }
func (a NodeAnswer) isSilent() bool  { return a.Err == errNoAnswer }
func (a NodeAnswer) isFinal() bool   { return a.Err != nil && !isTemporary(a.Err) }

// count is at how many nodes the answer is so.
func (t tally) count(is func(NodeAnswer) bool) (n int) {
	for _, a := range t {
		if is(a) {
			n++
		}
	}
	return n
}

// majority is how many nodes are one.
func (t tally) majority() int   { return len(t)/2 + 1 }
func (t tally) isGranted() bool { return t.count(NodeAnswer.isGrant) >= t.majority() }

// isRefusal tells whether others have the lock at so many nodes that there can be no majority, whatever the
// other nodes say.
func (t tally) isRefusal() bool { return t.count(NodeAnswer.isRefusal) > len(t)-t.majority() }

// isCertain tells that a majority has granted, or that others have the lock.
func (t tally) isCertain() bool { return t.isGranted() || t.isRefusal() }

// isDecided tells that a majority has granted, or that it is out of reach.
func (t tally) isDecided() bool {
	return t.isGranted() || len(t)-t.count(NodeAnswer.isGrant)-t.count(NodeAnswer.isSilent) > len(t)-t.majority()
}

// isWhole waits for all nodes.
func (t tally) isWhole() bool { return false }

// mayHelp tells whether another attempt may end otherwise: not where a majority of nodes gives errors that
// last.
func (t tally) mayHelp() bool { return t.count(NodeAnswer.isFinal) < t.majority() }

// missed is the error of a call that needs a majority.
func (t tally) missed() error {
	return &failure{kind: ErrQuorumMissed, cause: &QuorumError{Needed: t.majority(), Answers: t}}
}

// round is one question to all nodes.
type round struct {
	quorum  *Quorum
	until   time.Time
	came    chan func()
	got     tally
	missing int // answers
}

// ask asks all nodes at once, in shuffled order.
func (q *Quorum) ask(ttl time.Duration, node func(i int) (bool, error)) *round {
	// A node may say itself that its time is over.
	r := &round{quorum: q, until: time.Now().Add(q.nodeTimeout(ttl) * 11 / 10), came: make(chan func(), len(q.nodes)), missing: len(q.nodes)}
	for _, n := range q.nodes {
		r.got = append(r.got, NodeAnswer{Node: nodeName(n.servers.rdb), Err: errNoAnswer})
	}
	for _, i := range rand.Perm(len(q.nodes)) {
		q.background.run(func() {
			granted, err := node(i)
			var f *failure
			if errors.As(err, &f) && f.kind == ErrTimedOut { // of the node: that of the wait is another
				err = cmp.Or(f.cause, errNoAnswer)
			}
			r.came <- func() { r.got[i].Granted, r.got[i].Err = granted, err }
		})
	}
	return r
}

// wait gives the answers that came until they were enough, ctx was over, or the timeout for nodes. What has no answer by
// then stays under way.
func (r *round) wait(ctx context.Context, isEnough func(tally) bool) tally {
	for r.missing > 0 {
		note, err := await(ctx, r.came, r.until, nil, r.quorum.ending.Done())
		if err != nil {
			break
		}
		r.missing--
		if note(); isEnough(r.got) {
			break
		}
	}
	return r.got
}

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
	hold   atomic.Pointer[Hold] // the last
	asking chan struct{}        // full while the node is asked for the lock
	open   *attempts            // that may have left something there which is not in the hold; nil: none
}

// asked ends what has filled asking.
func (n *vote) asked() { <-n.asking }

func (q *Quorum) votes(r *Request, o owner) *votes {
	v := &votes{quorum: q, request: r, owner: o, sent: now(), nodes: make([]vote, len(q.nodes))}
	for i := range v.nodes {
		v.nodes[i].asking = make(chan struct{}, 1)
	}
	v.ctx, v.end = context.WithCancel(q.ending)
	return v
}

// hold is the hold that a majority gave.
func (v *votes) hold(ctx context.Context) *Hold {
	g := grant{mode: v.request.mode, sent: v.sent}
	return newHold(ctx, v.request, v.owner, v, &v.quorum.base, g, v.quorum.drift())
}

// keep notes the hold that a node gave, and tells whether it did. The error of a refusal is none.
func (v *votes) keep(n *vote, h *Hold, err error) (bool, error) {
	if errors.Is(err, errTaken) || errors.Is(err, ErrNotHeld) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// The quorum knows until when it is valid: a node that was silent for long is asked whether it has it.
	_ = h.update(func(l *lease) { l.until = now().add(longestWait) })
	n.open = nil
	n.hold.Store(h)
	return true, nil
}

// requestOfNode is for one node: the quorum renews.
func (v *votes) requestOfNode(ttl time.Duration) *Request {
	r := *v.request
	r.settings.ttl, r.settings.minReplicas, r.settings.noRenewal = ttl, 0, true
	return &r
}

// attempts are those at one node. They go on for a ttl; when the hold is extended, the node is asked again.
func (v *votes) attempts(l *Locks, r *Request) *attempts {
	a := l.attempts(v.ctx, v.owner, r.mode, &r.settings, v.owner.lock(r.mode, &r.settings), true)
	a.limit = time.Now().Add(r.settings.ttl)
	return a
}

// acquire asks a node. A node that is slow may follow as long as the hold is wanted.
func (v *votes) acquire(ttl time.Duration) func(i int) (bool, error) {
	return func(i int) (bool, error) {
		n, l, r := &v.nodes[i], v.quorum.nodes[i], v.requestOfNode(ttl)
		select {
		case n.asking <- struct{}{}:
			defer n.asked()
		default:
			return false, errNoAnswer // to the one before
		}
		a := v.attempts(l, r)
		a.doubt = n.open != nil
		if h := n.hold.Load(); h != nil {
			was, err := h.begin(v.ctx) // an extension may be under way, that tells whether the hold is gone
			if err == nil {
				h.done()
				return true, nil
			}
			a.doubt = a.doubt || was.doubt
		}
		g, err := a.take()
		if err != nil {
			if a.isOpen() {
				n.open = a
			}
			return v.keep(n, nil, err)
		}
		return v.keep(n, newHold(v.ctx, r, v.owner, l, &l.base, g, oneServer), nil)
	}
}

func (v *votes) fences(*Hold) []int64 {
	fences := make([]int64, len(v.nodes))
	for i := range v.nodes {
		if h := v.nodes[i].hold.Load(); h != nil && h.Check() == nil {
			fences[i] = h.Fence()
		}
	}
	return fences
}

// extend counts the nodes that still have the hold. Where it is gone, or never was, it is asked for anew after that,
// with the same token, because a majority has it.
func (v *votes) extend(ctx context.Context, _ time.Time, _ *Hold, r renewal) (bool, error) {
	q := v.quorum
	got := q.ask(r.ttl, func(i int) (bool, error) {
		n := &v.nodes[i]
		limited, cancel := context.WithTimeout(context.Background(), q.nodeTimeout(r.ttl))
		defer cancel()
		h := n.hold.Load()
		if h == nil { // it may be about to grant
			select {
			case n.asking <- struct{}{}:
				n.asked()
			case <-limited.Done():
			}
			h = n.hold.Load()
		}
		if h == nil {
			return false, errNoAnswer
		}
		err := asSilence(h.Extend(limited, r.ttl))
		if errors.Is(err, ErrLost) {
			return false, nil
		}
		return err == nil, err
	}).wait(ctx, tally.isCertain)
	switch {
	case got.isGranted():
		q.background.run(func() { q.ask(r.ttl, v.acquire(r.ttl)).wait(v.ctx, tally.isWhole) })
		return true, nil
	case got.isRefusal():
		return false, nil
	case ctx.Err() != nil:
		return false, errLeft
	}
	return false, got.missed()
}

// release releases on all nodes. Those that do not answer in time are asked again in the background, as long as the
// hold may be there.
func (v *votes) release(ctx context.Context, _ *Hold, ending lease) (bool, error) {
	v.end()
	if ending.state == lost && v.owner.given {
		return false, nil
	}
	got := v.quorum.ask(ending.ttl, v.releaseOne).wait(ctx, tally.isCertain)
	if ending.state == lost || got.isCertain() {
		return ending.state != lost && got.isGranted(), nil
	}
	return false, got.missed()
}

func (v *votes) releaseOne(i int) (bool, error) {
	n := &v.nodes[i]
	n.asking <- struct{}{} // what is under way ends at once, because the hold is not wanted any more
	open, h := n.open, n.hold.Load()
	n.open = nil
	n.asked()
	switch {
	case open != nil: // a hold from before it is lost
		open.giveUp()
	case h != nil:
		return h.Release(context.Background())
	}
	return false, nil
}
