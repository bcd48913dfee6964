package slock

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file has locks on several independent servers: N Locks, and arithmetic.

// Quorum takes locks on several independent servers: a hold counts while a majority of them has it, so that
// it outlives the loss of a minority. It polls, because no server knows of the others. All methods may be
// called by several goroutines at once. Close it when the program ends.
type Quorum struct {
	nodes    []*Locks
	names    []string
	settings settings
	report   *reporter

	ending     context.Context // done after Close
	end        context.CancelFunc
	background tasks
}

// NewQuorum makes a Quorum from clients of independent servers: not from replicas or nodes of one another.
// Their number should be odd. It sends nothing. The clients stay the caller's.
//
// Options are the defaults of all requests (such as TTL), WaitByPolling, WithHooks, WithLogger, NodeTimeout,
// DriftFactor and FailFast. Without WaitByPolling the pauses between attempts are random, of 10 to 250 ms.
func NewQuorum(clients []redis.UniversalClient, options ...Option) *Quorum {
	q := &Quorum{settings: newSettings(options)}
	if q.settings.waiting != byPolling {
		q.settings.strategy = ExponentialPause(20*time.Millisecond, 250*time.Millisecond)
	}
	q.report = &reporter{hooks: q.settings.hooks, log: q.settings.log}
	each := q.settings
	each.hooks = Hooks{}
	for _, client := range clients {
		q.nodes = append(q.nodes, newLocks(client, each))
		q.names = append(q.names, nodeName(client))
	}
	q.ending, q.end = context.WithCancel(context.Background())
	return q
}

func nodeName(client redis.UniversalClient) string {
	switch client := client.(type) {
	case *redis.Client:
		return client.Options().Addr
	case *redis.ClusterClient:
		if addresses := client.Options().Addrs; len(addresses) > 0 {
			return addresses[0]
		}
	}
	return "unknown"
}

// Write is a request for the lock of all keys, or of none, as the one writer. It sends nothing.
func (q *Quorum) Write(keys ...string) Request {
	return Request{by: q, keys: slices.Clone(keys), mode: Write, settings: q.settings.request}
}

// Read is a request for the lock of all keys, or of none, as a reader. It sends nothing.
func (q *Quorum) Read(keys ...string) Request {
	return Request{by: q, keys: slices.Clone(keys), mode: Read, settings: q.settings.request}
}

// Close stops the watchdog. It lets requests that were given up, and releases that were begun, get to the
// servers first, for at most the time of RetryFor. It releases nothing: holds that are still there are no
// longer renewed.
func (q *Quorum) Close() error {
	q.end()
	q.background.wait(q.settings.retryFor)
	errs := make([]error, len(q.nodes))
	var all sync.WaitGroup
	for i, n := range q.nodes {
		all.Add(1)
		go func() {
			defer all.Done()
			errs[i] = n.Close()
		}()
	}
	all.Wait()
	return errors.Join(errs...)
}

func (q *Quorum) majority() int { return len(q.nodes)/2 + 1 }

func (q *Quorum) drift() drift {
	return drift{factor: q.settings.quorum.driftFactor, fixed: 2 * time.Millisecond}
}

// nodeTimeout is how long to wait for one node.
func (q *Quorum) nodeTimeout(ttl time.Duration) time.Duration {
	timeout := q.settings.quorum.nodeTimeout
	if timeout <= 0 {
		timeout = max(ttl/20, 50*time.Millisecond)
	}
	return min(timeout, ttl*9/10)
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
	if f := q.settings.quorum.driftFactor; f < 0 || f >= 1 {
		return invalid("the drift factor must be 0 or more and less than 1, not %g", f)
	}
	if q.drift().counted(r.settings.ttl) <= 0 {
		return invalid("the ttl must be more than 2 ms and the drift, not %s", r.settings.ttl)
	}
	return nil
}

func (q *Quorum) acquire(ctx context.Context, r *Request, once bool) (*Hold, error) {
	p := &poll{quorum: q, request: r, tries: once, once: once, began: time.Now()}
	if !once && r.settings.hasWait {
		p.once, p.deadline = r.settings.wait == 0, p.began.Add(r.settings.wait)
	}
	if end, ok := ctx.Deadline(); ok && (p.deadline.IsZero() || end.Before(p.deadline)) {
		p.deadline, p.byCaller = end, true
	}
	v, sent, err := p.run(ctx)
	q.report.waited(r.label(), time.Since(p.began), outcome(err))
	if err != nil {
		return nil, err
	}
	return q.hold(ctx, r, v, sent), nil
}

func (q *Quorum) hold(ctx context.Context, r *Request, v *votes, sent instant) *Hold {
	l := newLease(r, grant{mode: r.mode, sent: sent}, q.drift())
	return newHold(ctx, r, v.owner, v, q.report, l)
}

func (q *Quorum) adopt(ctx context.Context, r *Request) (*Hold, error) {
	if q.ending.Err() != nil {
		return nil, ErrClosed
	}
	v := q.votes(r, r.owner())
	ttl, sent := r.settings.ttl, now()
	answers := v.each(ctx, ttl, whole, func(m *vote, limit time.Time) (int64, error) {
		_, fence, err := m.locks.ask(context.Background(), "adoption", v.owner, limit, v.owner.refresh(r.mode, ttl))
		if errors.Is(err, ErrWrongMode) {
			fence, err = 0, nil
		}
		if err == nil && fence > 0 {
			m.keep(grant{mode: r.mode, fence: fence, sent: sent})
		}
		return fence, err
	})
	switch {
	case count(answers) >= q.majority():
		return q.hold(ctx, r, v, sent), nil
	case q.isGone(answers):
		return nil, notHeld(r.mode)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, q.missed(answers)
}

// Release releases the keys that the token holds, in whichever mode, on all nodes, and tells how many nodes
// released something. It is for a token that another process took; a Hold has a Release of its own. A node that does
// not answer in time is not counted, and is asked again in the background.
func (q *Quorum) Release(ctx context.Context, token string, keys ...string) (int, error) {
	if token == "" || len(keys) == 0 {
		return 0, invalid("a release needs a token and keys")
	}
	v := q.votes(nil, owner{keys: keys, token: token, given: true})
	answers := v.each(ctx, q.settings.request.ttl, whole, func(m *vote, _ time.Time) (int64, error) {
		released, err := m.locks.Release(context.Background(), token, keys...)
		return int64(released), err
	})
	return count(answers), ctx.Err()
}

// answer is what one node said: a number above 0, or 0, or an error.
type answer struct {
	reply int64
	err   error
}

func (a answer) granted() bool { return a.err == nil && a.reply > 0 }

// isLost tells that the node says that it does not have the hold.
func (a answer) isLost() bool { return a.err == nil && a.reply == 0 || hasCode(a.err, "WRONGTYPE") }

func count(answers []answer) int {
	granted := 0
	for _, a := range answers {
		if a.granted() {
			granted++
		}
	}
	return granted
}

// isGone tells that so many nodes do not have the hold that there is no majority that has it.
func (q *Quorum) isGone(answers []answer) bool {
	gone := 0
	for _, a := range answers {
		if a.isLost() {
			gone++
		}
	}
	return gone > len(q.nodes)-q.majority()
}

func (q *Quorum) missed(answers []answer) *QuorumError {
	e := &QuorumError{Needed: q.majority()}
	for i, a := range answers {
		err := a.err
		var f *failure
		switch {
		case errors.Is(err, errTaken):
			err = nil
		case errors.As(err, &f) && f.kind == ErrTimedOut: // of the node: that of the wait is another
			err = cmp.Or(f.cause, errNoAnswer)
		}
		e.Answers = append(e.Answers, NodeAnswer{Node: q.names[i], Granted: a.granted(), Err: err})
	}
	return e
}

// votes are what the nodes gave one owner: the keeper of a hold.
type votes struct {
	quorum  *Quorum
	request *Request
	owner   owner
	all     []*vote

	ctx context.Context // done when what is granted from now on is released
	end context.CancelFunc
	mu  sync.Mutex
}

// vote is what one node gave.
type vote struct {
	of    *votes
	locks *Locks

	asking sync.Mutex // held while the node is asked for the lock or an extension: one after the other

	has   bool // guarded by votes
	grant grant
}

func (q *Quorum) votes(r *Request, o owner) *votes {
	v := &votes{quorum: q, request: r, owner: o}
	v.ctx, v.end = context.WithCancel(context.Background())
	for _, n := range q.nodes {
		v.all = append(v.all, &vote{of: v, locks: n})
	}
	return v
}

// whole waits for all nodes.
func whole([]answer) bool { return false }

// each asks all nodes at once, in shuffled order. It gives the answers that came until they were enough, ctx was over,
// or the timeout for nodes. What has no answer by then stays under way.
func (v *votes) each(
	ctx context.Context, ttl time.Duration, enough func([]answer) bool, ask func(*vote, time.Time) (int64, error),
) []answer {
	type numbered struct {
		number int
		answer
	}
	timeout := v.quorum.nodeTimeout(ttl)
	limit := time.Now().Add(timeout)
	came := make(chan numbered, len(v.all))
	for _, i := range rand.Perm(len(v.all)) {
		v.quorum.background.run(func() {
			reply, err := ask(v.all[i], limit)
			came <- numbered{i, answer{reply, err}}
		})
	}
	answers := make([]answer, len(v.all))
	for i := range answers {
		answers[i].err = errNoAnswer
	}
	timer := time.NewTimer(timeout + timeout/10) // a node may say itself that its time is over
	defer timer.Stop()
	for range v.all {
		select {
		case a := <-came:
			answers[a.number] = a.answer
		case <-timer.C:
			return answers
		case <-ctx.Done():
			return answers
		case <-v.quorum.ending.Done():
			return answers
		}
		if enough(answers) {
			return answers
		}
	}
	return answers
}

// keep notes a grant. One that comes too late is released.
func (m *vote) keep(g grant) {
	m.of.mu.Lock()
	over := m.of.ctx.Err() != nil
	if !over {
		m.has, m.grant = true, g
	}
	m.of.mu.Unlock()
	if over {
		m.of.quorum.background.run(func() { _, _ = m.release(g) })
	}
}

func (m *vote) current() (grant, bool) {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	return m.grant, m.has
}

// acquire asks the node. A node that is slow may follow as long as the hold is wanted, for at most the ttl; then it is
// given up.
func (m *vote) acquire(ttl time.Duration) (int64, error) {
	m.asking.Lock()
	defer m.asking.Unlock()
	if g, has := m.current(); has {
		return g.fence, nil
	}
	r := *m.of.request
	r.settings.ttl, r.settings.minReplicas = ttl, 0
	a := m.locks.acquisition(&r, m.of.owner)
	a.once, a.strict, a.began = true, true, time.Now()
	a.limit = a.began.Add(ttl)
	g, err := a.run(m.of.ctx)
	if err != nil {
		return 0, err
	}
	m.keep(g)
	return g.fence, nil
}

func (m *vote) release(g grant) (bool, error) {
	r := &release{locks: m.locks, owner: m.of.owner, grant: g, until: now().add(m.of.request.settings.ttl)}
	return r.repeat(context.Background(), time.Now().Add(r.until.until()))
}

// stop has what is granted from now on released, and gives up what has no answer.
func (v *votes) stop() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.end()
}

func (v *votes) fences(*Hold) []int64 {
	fences := make([]int64, len(v.all))
	for i, m := range v.all {
		if g, has := m.current(); has {
			fences[i] = g.fence
		}
	}
	return fences
}

// extend counts the nodes that still have the hold. Where it is gone, or never was, it is asked for anew after that,
// with the same token, because a majority has it.
func (v *votes) extend(ctx context.Context, _ *Hold, ttl time.Duration) (bool, instant, error) {
	q, sent := v.quorum, now()
	answers := v.each(ctx, ttl, func(got []answer) bool {
		return count(got) >= q.majority() || q.isGone(got)
	}, func(m *vote, limit time.Time) (int64, error) {
		m.asking.Lock()
		defer m.asking.Unlock()
		g, has := m.current()
		if !has {
			return 0, errNoAnswer
		}
		_, held, err := m.locks.ask(context.Background(), "extension", v.owner, limit, v.owner.extend(ttl, g.fence))
		if (answer{held, err}).isLost() {
			v.mu.Lock()
			m.has = m.has && m.grant.fence != g.fence
			v.mu.Unlock()
		}
		return held, err
	})
	switch {
	case count(answers) >= q.majority():
		q.background.run(func() { v.regain(ttl) })
		return true, sent, nil
	case q.isGone(answers):
		return false, sent, nil
	case ctx.Err() != nil:
		return false, sent, ctx.Err()
	}
	return false, sent, q.missed(answers)
}

func (v *votes) renew(h *Hold, r renewal) {
	if v.quorum.ending.Err() == nil {
		held, _, err := v.extend(context.Background(), h, r.ttl)
		h.renewed(r, held, err)
	}
}

// regain asks the nodes that do not have the hold to grant it anew.
func (v *votes) regain(ttl time.Duration) {
	v.each(v.ctx, ttl, whole, func(m *vote, _ time.Time) (int64, error) { return m.acquire(ttl) })
}

// release releases on all nodes. Those that do not answer in time are asked again in the background, as long as the
// hold may be there.
func (v *votes) release(ctx context.Context, _ *Hold, ending lease) (bool, error) {
	v.stop()
	q := v.quorum
	if ending.state == lost && v.owner.given {
		return false, nil
	}
	answers := v.each(ctx, ending.ttl, func(got []answer) bool {
		return count(got) >= q.majority() || q.isGone(got)
	}, v.releaseOne)
	switch {
	case ending.state == lost || q.isGone(answers):
		return false, nil
	case count(answers) >= q.majority():
		return true, nil
	}
	return false, q.missed(answers)
}

func (v *votes) releaseOne(m *vote, _ time.Time) (int64, error) {
	g, has := m.current()
	if !has {
		return 0, nil
	}
	if released, err := m.release(g); err != nil || !released {
		return 0, err
	}
	return 1, nil
}

// poll is one use of a request.
type poll struct {
	quorum   *Quorum
	request  *Request
	began    time.Time
	tries    bool // a TryLock: it may be refused
	once     bool
	deadline time.Time // zero: none
	byCaller bool      // whether that is the deadline of the caller's context
}

// run asks until a majority has granted, and gives the time before the first request of that attempt.
func (p *poll) run(ctx context.Context) (*votes, instant, error) {
	q := p.quorum
	var last *QuorumError
	for attempts := 0; ctx.Err() == nil && q.ending.Err() == nil; attempts++ {
		v, sent, missed := p.attempt(ctx)
		if missed == nil {
			return v, sent, nil
		}
		if ctx.Err() != nil || q.ending.Err() != nil {
			// It was cut short, so the attempt before may tell more.
			if last == nil || missed.isRefusal() {
				last = missed
			}
			break
		}
		last = missed
		pause, more := q.settings.strategy.pause(attempts)
		switch {
		case p.tries && missed.isRefusal():
			return nil, 0, errTaken
		case p.once || !missed.mayHelp() || !more:
			return nil, 0, p.over(missed, nil)
		case !p.deadline.IsZero() && time.Until(p.deadline) < pause:
			return nil, 0, p.over(missed, p.deadlineError())
		}
		sleep(ctx, q.ending, pause)
	}
	if last != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, 0, p.over(last, ctx.Err())
	}
	return nil, 0, leftBy(ctx, q.ending, p.request.keys, nil)
}

// deadlineError is the error of the caller's context at the deadline, if it is that of the context.
func (p *poll) deadlineError() error {
	if p.byCaller {
		return context.DeadlineExceeded
	}
	return nil
}

// over is the error when the wait is over, with what ended it, if that was the context.
func (p *poll) over(last *QuorumError, cause error) error {
	last.ended = cause
	if last.isRefusal() {
		last.heldKeys = p.request.keys
	}
	return last
}

// attempt asks all nodes once, with a token of its own. It ends when a majority has granted. When the majority is out
// of reach it releases, so that others may have it, and waits for the other answers only to tell them; with FailFast
// it does not.
func (p *poll) attempt(ctx context.Context) (*votes, instant, *QuorumError) {
	q, ttl := p.quorum, p.request.settings.ttl
	v := q.votes(p.request, p.request.owner())
	var released chan struct{}
	release := func() {
		if released == nil {
			released = make(chan struct{})
			v.stop()
			q.background.run(func() {
				defer close(released)
				v.each(context.Background(), ttl, whole, v.releaseOne)
			})
		}
	}
	sent := now()
	answers := v.each(ctx, ttl, func(got []answer) bool {
		failed := 0
		for _, a := range got {
			if a.err != nil && a.err != errNoAnswer {
				failed++
			}
		}
		if failed > len(q.nodes)-q.majority() {
			release()
		}
		return count(got) >= q.majority() || released != nil && q.settings.quorum.failFast
	}, func(m *vote, _ time.Time) (int64, error) { return m.acquire(ttl) })
	if count(answers) >= q.majority() && now().sub(sent) < q.drift().counted(ttl) {
		return v, sent, nil // the other nodes may still grant
	}
	release()
	select { // else the next attempt would find what this one holds
	case <-released:
	case <-ctx.Done():
	case <-q.ending.Done():
	}
	return nil, 0, q.missed(answers)
}
