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

// Locker is what a program asks for locks: a Locks, or a Quorum.
type Locker interface {
	// Write is a request for the lock of all keys, or of none, as the one writer. It sends nothing.
	Write(keys ...string) Request
	// Read is a request for the lock of all keys, or of none, as a reader. It sends nothing.
	Read(keys ...string) Request
	// Release releases what a token holds that another process took, in whichever mode, and tells on how many keys,
	// or on how many nodes of a Quorum.
	Release(ctx context.Context, token string, keys ...string) (int, error)
	// Close ends all waits, and releases nothing.
	Close() error
}

// base is what Locks and Quorum have in common.
type base struct {
	by       asked
	settings settings
	report   *reporter

	ending, closed context.Context // done from the beginning of Close on, and when it has waited
	end, endAll    context.CancelFunc
	background     tasks
}

// asked is who carries a request out.
type asked interface {
	check(r *Request) error
	// acquire gives errTaken when a request that asks once is refused.
	acquire(ctx context.Context, r *Request, once bool) (*Hold, error)
	adopt(ctx context.Context, r *Request) (*Hold, error)
	// releaseToken tells on how many keys, or on how many nodes, it released what a token holds.
	releaseToken(ctx context.Context, r *Request) (int, error)
}

func (b *base) init(by asked, s settings) {
	b.by, b.settings, b.report = by, s, &reporter{hooks: s.hooks, log: s.log}
	b.ending, b.end = context.WithCancel(context.Background())
	b.closed, b.endAll = context.WithCancel(context.Background())
}

// Write is a request for the lock of all keys, or of none, as the one writer. It sends nothing.
func (b *base) Write(keys ...string) Request {
	return Request{base: b, keys: slices.Clone(keys), mode: Write, settings: b.settings.request}
}

// Read is a request for the lock of all keys, or of none, as a reader. It sends nothing.
func (b *base) Read(keys ...string) Request {
	return Request{base: b, keys: slices.Clone(keys), mode: Read, settings: b.settings.request}
}

// Release releases the keys that the token holds, in whichever mode, and tells on how many keys it did, or on how many
// nodes of a Quorum. It is for a token that another process took; a Hold has a Release of its own. A node of a Quorum
// that does not answer in time is not counted, and is asked again in the background. If ctx ends meanwhile, the last
// attempt stays under way.
func (b *base) Release(ctx context.Context, token string, keys ...string) (int, error) {
	r := b.Read(keys...).With(Token(token))
	if err := r.checkToken(); err != nil {
		return 0, err
	}
	return b.by.releaseToken(ctx, &r)
}

// close lets what goes on end, for at most the time of RetryFor.
func (b *base) close() {
	b.end()
	b.background.wait(b.settings.retryFor)
	b.endAll()
}

// Locks is what a program asks for locks. Make one for the program by New; all methods may be called by
// several goroutines at once. Close it when the program ends.
type Locks struct {
	base
	servers   *servers
	listener  *listener
	permitted sync.Map // what the user may release: one key by its mode, or several
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
	l := &Locks{}
	l.init(l, s)
	l.servers = newServers(rdb, l.report)
	l.listener = newListener(l.servers, l.closed)
	return l
}

func (l *Locks) check(*Request) error { return l.servers.check() }

func (l *Locks) acquire(ctx context.Context, r *Request, once bool) (*Hold, error) {
	o := r.owner()
	a := l.attempts(ctx, o, r.mode, &r.settings, o.lock(r.mode, &r.settings), once)
	err := a.run(func() error {
		if err := l.mayRelease(ctx, a.answerBy(), o.keys, r.mode); err != nil {
			return err
		}
		return a.attempt()
	})
	if err != nil && a.isOpen() {
		a.giveUp()
	} else {
		a.forget()
	}
	if err != nil {
		return nil, err
	}
	return newHold(ctx, r, o, l, a.granted, oneServer), nil
}

func (l *Locks) adopt(ctx context.Context, r *Request) (*Hold, error) {
	o := r.owner()
	is, err := l.ask(ctx, "adoption", o, l.retryEnd(), o.refresh(r.mode, r.settings.ttl))
	if err == nil && is.number == 0 || errors.Is(err, ErrWrongMode) {
		err = notHeld(r.mode)
	}
	if err != nil {
		return nil, err
	}
	is.late = false // a copy that comes late gives nothing
	return newHold(ctx, r, o, l, is, oneServer), nil
}

func (l *Locks) releaseToken(ctx context.Context, r *Request) (int, error) {
	o := r.owner()
	released, err := l.ask(ctx, "release", o, l.retryEnd(), o.releaseInAnyMode())
	return int(released.number), err
}

func (b *base) retryEnd() time.Time { return time.Now().Add(b.settings.retryFor) }

// reply is the answer to a command that may have been sent several times.
type reply struct {
	number int64   // such as a fence
	sent   instant // before the copy was sent that was answered, or the command from which the ttl counts
	// late is set when a copy had no answer: it may still be carried out. The end of what it may give is that of an
	// acquisition that is given up.
	late bool
}

// ask sends a command until it is answered, ctx is over, or the time has ended.
func (l *Locks) ask(ctx context.Context, what string, o owner, end time.Time, w words) (reply, error) {
	return l.repeat(ctx, what, o, end, func(ctx context.Context, limit time.Time) (int64, error) {
		return l.askOnce(ctx, limit, o, w)
	})
}

func (l *Locks) askOnce(ctx context.Context, limit time.Time, o owner, w words) (int64, error) {
	answers, err := l.servers.send(ctx, limit, o.keys[0], w)
	if err != nil {
		return 0, err
	}
	return answers[0].Int64()
}

func (l *Locks) extend(ctx context.Context, limit time.Time, o owner, r renewal) (int64, error) {
	return l.askOnce(ctx, limit, o, o.extend(r.ttl, r.fence))
}

// mayRelease asks, before anything is held, whether the user may release what is asked for: a token that nobody has
// asks for the end of a hold that nobody has. After any answer but NOPERM it does not ask again.
func (l *Locks) mayRelease(ctx context.Context, limit time.Time, keys []string, mode Mode) error {
	kind := mode
	if len(keys) > 1 {
		kind = "several keys"
	}
	if _, ok := l.permitted.Load(kind); ok {
		return nil
	}
	o := owner{keys: keys, token: newToken(), given: true}
	commands := append(o.cancel(), o.release(mode, noFence), o.releaseInAnyMode("FENCE", noFence))
	answers, err := l.servers.send(ctx, limit, keys[0], commands...)
	if err != nil {
		return err
	}
	for _, answer := range answers {
		if hasCode(answer.Err(), "NOPERM") {
			return answer.Err()
		}
	}
	l.permitted.Store(kind, true)
	return nil
}

// Close ends renewals and closes all connections. Requests that wait end with ErrClosed. It lets requests that
// were given up get off the server first, for at most the time of RetryFor. It releases nothing: holds that are still
// there are no longer renewed, and lost at the end of their ttl. They may still be released, over the program's
// client.
func (l *Locks) Close() error {
	l.close()
	return l.servers.close()
}

// tasks counts what goes on: acquisitions, and what is sent in the background.
type tasks struct{ count atomic.Int64 }

func (t *tasks) run(task func()) {
	t.count.Add(1)
	go func() {
		defer t.count.Add(-1)
		task()
	}()
}

// wait waits until nothing goes on, for at most the time. It looks now and then: it is for the end of a program.
func (t *tasks) wait(most time.Duration) {
	for end := time.Now().Add(most); t.count.Load() > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}
