package slock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file has what a program makes once: it gives requests, and carries them out on one server or cluster.

// Locks is what a program asks for locks. Make one for the program by New; all methods may be called by
// several goroutines at once. Close it when the program ends.
type Locks struct {
	settings settings
	servers  *servers
	listener *listener
	watchdog *watchdog
	report   *reporter

	ending, closed context.Context // done from the beginning of Close on, and when it has waited
	end, endAll    context.CancelFunc
	background     tasks
	releases       [3]atomic.Bool // the user may release one key for write, one for read, several
}

// New makes a Locks from a client of go-redis: a *redis.Client (of one server, or of Sentinel) or a
// *redis.ClusterClient. It sends nothing, and makes connections of its own with the options of the client. The
// client stays the caller's, who closes it after the Locks.
//
// Options are the defaults of all requests (such as TTL), how to wait, RetryFor, RetryWaitFor, WithHooks and
// WithLogger.
func New(rdb redis.UniversalClient, options ...Option) *Locks {
	return newLocks(rdb, newSettings(options))
}

func newLocks(rdb redis.UniversalClient, s settings) *Locks {
	l := &Locks{settings: s, report: &reporter{hooks: s.hooks, log: s.log}}
	l.ending, l.end = context.WithCancel(context.Background())
	l.closed, l.endAll = context.WithCancel(context.Background())
	l.servers = newServers(rdb, l.report)
	l.listener = newListener(l.servers)
	l.watchdog = newWatchdog(l.renew)
	return l
}

// Write is a request for the lock of all keys, or of none, as the one writer. It sends nothing.
func (l *Locks) Write(keys ...string) Request {
	return Request{by: l, keys: slices.Clone(keys), mode: Write, settings: l.settings.request}
}

// Read is a request for the lock of all keys, or of none, as a reader. It sends nothing.
func (l *Locks) Read(keys ...string) Request {
	return Request{by: l, keys: slices.Clone(keys), mode: Read, settings: l.settings.request}
}

func (l *Locks) check(*Request) error { return l.servers.check() }

func (l *Locks) acquire(ctx context.Context, r *Request, once bool) (*Hold, error) {
	began := time.Now()
	o := r.owner()
	a := l.acquisition(r, o)
	if a.began, a.once = began, once; !once {
		a.setWait(began, &r.settings)
	}
	g, err := a.run(ctx)
	l.report.waited(r.label(), time.Since(began), outcome(err))
	if err != nil {
		return nil, err
	}
	return newHold(ctx, r, o, l, l.report, l.watchdog, newLease(r, g, oneServer)), nil
}

func (l *Locks) acquisition(r *Request, o owner) *acquisition {
	return &acquisition{
		locks: l, owner: o, mode: r.mode, ttl: r.settings.ttl, ask: o.lock(r.mode, &r.settings),
		minReplicas: r.settings.minReplicas, replicaTimeout: r.settings.replicaTimeout,
	}
}

// permitted tells whether the user may release what is asked for.
func (l *Locks) permitted(o owner, mode Mode) *atomic.Bool {
	switch {
	case len(o.keys) > 1:
		return &l.releases[2]
	case mode == Read:
		return &l.releases[1]
	}
	return &l.releases[0]
}

func (l *Locks) adopt(ctx context.Context, r *Request) (*Hold, error) {
	if l.ending.Err() != nil {
		return nil, ErrClosed
	}
	o := r.owner()
	sent, fence, err := l.fence(ctx, o, r.mode, r.settings.ttl)
	if err != nil {
		return nil, err
	}
	g := grant{mode: r.mode, fence: fence, sent: sent}
	return newHold(ctx, r, o, l, l.report, l.watchdog, newLease(r, g, oneServer)), nil
}

// fence asks for the fence of what the token holds in the mode.
func (l *Locks) fence(ctx context.Context, o owner, mode Mode, ttl time.Duration) (instant, int64, error) {
	sent, fence, err := l.repeat(ctx, "adoption", o, l.retryEnd(), o.refresh(mode, ttl))
	if err == nil && fence == 0 || errors.Is(err, ErrWrongMode) {
		err = notHeld(mode)
	}
	return sent, fence, err
}

// Release releases the keys that the token holds, in whichever mode, and tells how many those were. It is for
// a token that another process took; a Hold has a Release of its own. If ctx ends meanwhile, the last attempt stays
// under way.
func (l *Locks) Release(ctx context.Context, token string, keys ...string) (int, error) {
	if token == "" || len(keys) == 0 {
		return 0, invalid("a release needs a token and keys")
	}
	if l.ending.Err() != nil {
		return 0, ErrClosed
	}
	o := owner{keys: keys, token: token, given: true}
	if len(keys) > 1 {
		_, released, err := l.repeat(ctx, "release", o, l.retryEnd(), o.command("", "SLOCK.MUNLOCK"))
		return int(released), err
	}
	_, released, err := l.repeat(ctx, "release", o, l.retryEnd(), o.command("SLOCK.UNLOCK", ""))
	if err == nil && released == 0 {
		_, released, err = l.repeat(ctx, "release", o, l.retryEnd(), o.command("SLOCK.RUNLOCK", ""))
	}
	return int(released), err
}

func (l *Locks) retryEnd() time.Time { return time.Now().Add(l.settings.retryFor) }

// repeat sends a command until it is answered, ctx is over, or the time has ended, and gives the moment before the
// copy was sent that was answered.
func (l *Locks) repeat(ctx context.Context, what string, o owner, end time.Time, w words) (instant, int64, error) {
	var pauses backoff
	var last error
	for {
		sent := now()
		reply, err := l.servers.send(ctx, end.Add(lateAnswer), o.keys[0], w, nil)
		switch {
		case errors.Is(err, errLeft):
			return 0, 0, ctx.Err()
		case !isTemporary(err):
			return sent, reply, named(err)
		}
		if last == nil || !isSilence(err) {
			last = err
		}
		left := time.Until(end)
		if left <= 0 || !sleep(ctx, l.closed, min(pauses.next(), left)) {
			return 0, 0, join(ctx.Err(), &timeout{what: what, keys: o.keys, cause: last})
		}
	}
}

// extend is for a Hold.
func (l *Locks) extend(ctx context.Context, h *Hold, ttl time.Duration) (bool, instant, error) {
	is := h.snapshot()
	end := time.Now().Add(min(is.until.until(), l.settings.retryFor))
	sent, reply, err := l.repeat(ctx, "extension", h.owner, end, h.owner.extend(ttl, is.fence))
	return reply == 1, sent, err
}

func (l *Locks) fences(h *Hold) []int64 { return []int64{h.Fence()} }

// release is for a Hold.
func (l *Locks) release(ctx context.Context, h *Hold, ending lease) (bool, error) {
	r := &release{
		locks: l, owner: h.owner, until: ending.until,
		grant: grant{mode: ending.mode, fence: ending.fence, doubt: ending.doubt || ending.changing},
	}
	isWhole := ending.reason == Gone && len(h.owner.keys) == 1 && !r.grant.doubt
	if ending.state == lost && (isWhole || h.owner.given) {
		return false, nil // nothing is left, or the token may have a later hold by now
	}
	return r.run(ctx)
}

// mostInPipeline is how many renewals are sent in one go.
const mostInPipeline = 1000

// renew is for the watchdog. What goes to different nodes is kept apart: a pipeline ends with the last answer, so a
// node that is silent would keep the answers of the others away.
func (l *Locks) renew(due []dueRenewal) {
	groups := map[string][]dueRenewal{}
	for _, d := range due {
		address := "" // of a node that is not known now
		if l.servers.isCluster() {
			if n, err := l.servers.node(l.closed, d.hold.owner.keys[0]); err == nil {
				address = n.address
			}
		}
		groups[address] = append(groups[address], d)
	}
	for _, group := range groups {
		for together := range slices.Chunk(group, mostInPipeline) {
			go l.renewTogether(together)
		}
	}
}

func (l *Locks) renewTogether(due []dueRenewal) {
	commands := make([]words, len(due))
	longest := time.Duration(0)
	for i, d := range due {
		commands[i] = d.hold.owner.extend(d.ttl, d.fence)
		longest = max(longest, d.ttl)
	}
	limit := time.Now().Add(longest)
	answers, err := l.servers.pipeline(due[0].hold.owner.keys[0], forRenewals, limit, commands)
	for i, d := range due {
		held := int64(0)
		if answers != nil {
			held, err = answers[i].Int64()
		}
		d.hold.renewed(d.renewal, held == 1, err)
	}
}

// Close stops the watchdog and closes all connections. Requests that wait end with ErrClosed. It lets requests that
// were given up get off the server first, for at most the time of RetryFor. It releases nothing: holds that are still
// there are no longer renewed, and lost at the end of their ttl. They may still be released, over the program's
// client.
func (l *Locks) Close() error {
	l.end()
	l.background.wait(l.settings.retryFor)
	l.endAll()
	l.watchdog.close()
	l.listener.close()
	return l.servers.close()
}

// tasks counts what goes on: acquisitions, and what is sent in the background.
type tasks struct {
	mu    sync.Mutex
	count int
	idle  chan struct{} // closed when the count is 0; nil while nobody waits for that
}

func (t *tasks) run(task func()) {
	t.enter()
	go func() {
		defer t.leave()
		task()
	}()
}

func (t *tasks) enter() {
	t.mu.Lock()
	t.count++
	t.mu.Unlock()
}

func (t *tasks) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count--
	if t.count == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// wait waits until nothing goes on, for at most the time.
func (t *tasks) wait(most time.Duration) {
	t.mu.Lock()
	if t.count == 0 {
		t.mu.Unlock()
		return
	}
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	idle := t.idle
	t.mu.Unlock()
	select {
	case <-idle:
	case <-time.After(most):
	}
}
