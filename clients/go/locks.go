package slock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file has what a program makes once: it gives requests, and carries them out on one server or cluster.

// Locks is what a program asks for locks. Make one for the program by New; all methods may be called by
// several goroutines at once. Close it when the program ends.
type Locks struct {
	requests
	settings settings
	servers  *servers
	listener *listener
	report   *reporter

	ending, closed context.Context // done from the beginning of Close on, and when it has waited
	end, endAll    context.CancelFunc
	background     tasks
	permitted      sync.Map // the releases that the user may run, by the name of their command
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
	l.requests = requests{by: l, defaults: s.request}
	l.ending, l.end = context.WithCancel(context.Background())
	l.closed, l.endAll = context.WithCancel(context.Background())
	l.servers = newServers(rdb, l.report)
	l.listener = newListener(l.servers)
	return l
}

func (l *Locks) check(*Request) error { return l.servers.check() }

func (l *Locks) acquire(ctx context.Context, r *Request, once bool) (*Hold, error) {
	began := time.Now()
	o := r.owner()
	a := l.acquisition(o, r.mode, r.settings, once)
	a.ask = o.lock(r.mode, &r.settings)
	g, err := a.run(ctx)
	l.report.waited(r.label(), time.Since(began), outcome(err))
	if err != nil {
		return nil, err
	}
	return newHold(ctx, r, o, l, l.report, g, oneServer), nil
}

func (l *Locks) adopt(ctx context.Context, r *Request) (*Hold, error) {
	if l.ending.Err() != nil {
		return nil, ErrClosed
	}
	o := r.owner()
	sent, fence, err := l.ask(ctx, "adoption", o, l.retryEnd(), o.refresh(r.mode, r.settings.ttl))
	if err == nil && fence == 0 || errors.Is(err, ErrWrongMode) {
		err = notHeld(r.mode)
	}
	if err != nil {
		return nil, err
	}
	g := grant{mode: r.mode, fence: fence, sent: sent}
	return newHold(ctx, r, o, l, l.report, g, oneServer), nil
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
	_, released, err := l.ask(ctx, "release", o, l.retryEnd(), o.command("SLOCK.UNLOCK", "SLOCK.MUNLOCK"))
	if err == nil && released == 0 && len(keys) == 1 {
		_, released, err = l.ask(ctx, "release", o, l.retryEnd(), o.command("SLOCK.RUNLOCK", ""))
	}
	return int(released), err
}

func (l *Locks) retryEnd() time.Time { return time.Now().Add(l.settings.retryFor) }

// ask sends a command until it is answered, ctx is over, or the time has ended, and gives the moment before the copy
// was sent that was answered.
func (l *Locks) ask(
	ctx context.Context, what string, o owner, end time.Time, w words,
) (sent instant, reply int64, err error) {
	err = l.repeat(ctx, what, o, end, func(ctx context.Context, limit time.Time) (err error) {
		sent = now()
		reply, err = l.servers.send(ctx, o.keys[0], newCall(limit, w))
		return err
	})
	return sent, reply, err
}

// try sends a command once, and waits for its answer until the limit.
type try func(ctx context.Context, limit time.Time) error

// repeat tries until there is an answer, ctx is over, or the time has ended. No try takes longer than RetryFor.
func (l *Locks) repeat(ctx context.Context, what string, o owner, end time.Time, send try) error {
	var last error
	for failures := 0; ; failures++ {
		err := send(ctx, earlier(end, l.retryEnd()).Add(lateAnswer))
		switch {
		case errors.Is(err, errLeft):
			return ctx.Err()
		case !isTemporary(err):
			return named(err)
		}
		if last == nil || !isSilence(err) {
			last = err
		}
		left := time.Until(end)
		pause, _ := afterErrors.pause(failures)
		if left <= 0 || !sleep(ctx, l.closed, min(pause, left)) {
			return errors.Join(ctx.Err(), timedOut(what, o.keys, last))
		}
	}
}

// insist repeats for the caller until RetryFor or ctx is over, and then in the background for the rest of the time.
// It calls done when it does not go on.
func (l *Locks) insist(
	ctx context.Context, what string, o owner, most time.Duration, send try, done func(),
) (err error) {
	end := time.Now().Add(most)
	if err = ctx.Err(); err == nil {
		err = l.repeat(ctx, what, o, l.retryEnd(), send)
	}
	if err == nil || !isUnanswered(err) && ctx.Err() == nil {
		done()
		return err
	}
	l.background.run(func() {
		defer done()
		_ = l.repeat(context.Background(), what, o, end, send)
	})
	return err
}

// isUnanswered tells that a command was repeated in vain.
func isUnanswered(err error) bool { return errors.Is(err, ErrTimedOut) }

// extend is for a Hold.
func (l *Locks) extend(ctx context.Context, h *Hold, ttl time.Duration) (bool, instant, error) {
	is := h.snapshot()
	end := time.Now().Add(min(is.until.until(), l.settings.retryFor))
	sent, reply, err := l.ask(ctx, "extension", h.owner, end, h.owner.extend(ttl, is.fence))
	return reply == 1, sent, err
}

func (l *Locks) fences(h *Hold) []int64 { return []int64{h.Fence()} }

// Close ends renewals and closes all connections. Requests that wait end with ErrClosed. It lets requests that
// were given up get off the server first, for at most the time of RetryFor. It releases nothing: holds that are still
// there are no longer renewed, and lost at the end of their ttl. They may still be released, over the program's
// client.
func (l *Locks) Close() error {
	l.end()
	l.background.wait(l.settings.retryFor)
	l.endAll()
	l.listener.close()
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
