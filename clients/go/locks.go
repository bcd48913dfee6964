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

// This file has what a program makes once: it gives requests, and carries them out on one server or cluster.

// Locks is what a program asks for locks. Make one for the program by New, or by NewQuorum for several independent
// servers; all methods may be called by several goroutines at once.
type Locks struct {
	backend  backend
	servers  []*server
	problem  error // why it cannot be used
	settings settings
	report   *reporter
	holds    sync.Map     // the live ones: *Hold to nothing
	running  atomic.Int64 // acquisitions
	closing  context.Context
	begin    context.CancelFunc // of closing
}

// backend is what carries requests out: a server, or a quorum.
type backend interface {
	acquire(ctx context.Context, r *Request, try bool) (taken, error)
	// release tells on how many keys, or on how many nodes, it released what a token holds.
	release(ctx context.Context, r *Request) (int, error)
}

// taken is a lock that was granted.
type taken struct {
	keeper keeper
	owner  owner
	grant  answer
}

// NewWith makes a Locks over a Transport. New does that for a client of go-redis.
func NewWith(t Transport, options ...Option) *Locks {
	l := newLocks([]Transport{t}, options)
	// A clock that is slewed runs up to 500 ppm fast, on both sides, and the server counts in milliseconds.
	l.settings.driftFactor, l.settings.driftMargin = 0.001, time.Millisecond
	l.backend = l.servers[0]
	return l
}

func newLocks(transports []Transport, options []Option) *Locks {
	l := &Locks{settings: newSettings(options)}
	l.report = &reporter{hooks: l.settings.hooks.complete(), log: l.settings.log}
	l.closing, l.begin = context.WithCancel(context.Background())
	for _, t := range transports {
		topology, err := t.Topology()
		l.problem = cmp.Or(l.problem, err)
		s := &server{transport: t, topology: topology, settings: &l.settings, report: l.report, closing: l.closing}
		s.listener = newListener(s, l.confirm)
		l.servers = append(l.servers, s)
	}
	return l
}

// Write is a request for the lock of all keys, or of none, as the one writer. It sends nothing.
func (l *Locks) Write(keys ...string) Request { return l.request(Write, keys) }

// Read is a request for the lock of all keys, or of none, as a reader. It sends nothing.
func (l *Locks) Read(keys ...string) Request { return l.request(Read, keys) }

func (l *Locks) request(mode Mode, keys []string) Request {
	return Request{locks: l, keys: slices.Clone(keys), mode: mode, settings: &l.settings.request}
}

// usable is the error of a call that is not made at all.
func (l *Locks) usable() error {
	if l.problem == nil && l.closing.Err() != nil {
		return closed()
	}
	return l.problem
}

// Release releases what an owner token holds of the keys, in whichever mode, and tells on how many keys it did, or on how
// many nodes of a quorum. It is for a token that another process took; a Hold has Unlock.
func (l *Locks) Release(ctx context.Context, token string, keys ...string) (int, error) {
	r := l.Read(keys...).With(Token(token))
	if err := r.check(); err != nil {
		return 0, err
	}
	return l.backend.release(ctx, &r)
}

// Close ends the waits and the renewals. Waits, and all later calls except Unlock, end with ErrClosed. The ends of
// acquisitions that were cancelled are sent first, for at most the time of RetryFor. It releases nothing: holds that are
// still there are lost at the end of their ttl. They may still be released. The program's client stays open.
func (l *Locks) Close() error {
	l.begin()
	isBusy := func() bool {
		return l.running.Load() > 0 || slices.ContainsFunc(l.servers, func(s *server) bool { return !s.ends.isIdle() })
	}
	for end := time.Now().Add(l.settings.retryFor); isBusy() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	for _, s := range l.servers {
		s.listener.close()
		s.transport.Close()
	}
	return nil
}

// Shutdown releases all holds, and then closes as Close does. Until ctx is over it waits for the replies.
func (l *Locks) Shutdown(ctx context.Context) error {
	var errs []error
	for h := range l.holds.Range {
		if err := h.(*Hold).Unlock(ctx); !errors.Is(err, ErrNotHeld) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, l.Close())...)
}

func (s *server) acquire(ctx context.Context, r *Request, try bool) (taken, error) {
	o := r.owner()
	got, isOpen, err := s.request(ctx, o, r.ask(o), r.settings, try)
	if isOpen && !r.adopts {
		call, within := o.ending(0, 0)
		s.deliver(ctx, call, within)
	}
	return taken{s, o, got}, err
}

func (s *server) release(ctx context.Context, r *Request) (int, error) {
	call, _ := r.owner().ending(0, 0)
	released, err := s.ask(ctx, r.keys, s.settings.retryFor, call)
	return int(released.number), err
}

// follow keeps a channel open while there are holds, where its end tells of another primary.
func (s *server) follow(key string) {
	if s.topology.Failover && s.closing.Err() == nil {
		s.listener.channel(key, true)
	}
}

// replicasReply is how long one command waits for replicas, so that its reply comes before it would count as missing.
const replicasReply = silentAfter / 2

// extend sends an extension, and waits for replicas if it has to.
func (s *server) extend(ctx context.Context, until time.Time, o owner, e extension) (answer, error) {
	replicas, last := e.wanted.minReplicas, time.Now().Add(e.wanted.replicaTimeout)
	if replicas == 0 {
		return s.number(ctx, until, o.extend(e.ttl, e.fence, true))
	}
	for {
		// WAIT counts the replicas that have what its connection wrote last. An extension to the same millisecond would
		// write nothing, and any replica would do.
		call := o.extend(e.ttl+time.Millisecond, e.fence, true)
		call.Then = []any{"WAIT", replicas, milliseconds(max(min(time.Until(last), replicasReply), time.Millisecond))}
		extended := answer{sent: sending()}
		got, err := s.try(ctx, until.Add(e.wanted.replicaTimeout), call)
		if err != nil {
			return extended, err
		}
		if extended.number, err = asNumber(got.reply); err != nil || extended.number == 0 {
			return extended, err
		}
		number, err := asNumber(got.then)
		if err != nil || number >= int64(replicas) {
			return extended, err
		}
		if !time.Now().Before(last) {
			return extended, failure(ErrTooFewReplicas, o.names, fmt.Sprintf("%d of %d replicas acknowledged", number, replicas))
		}
	}
}

func (s *server) end(ctx context.Context, o owner, fence int64, after time.Duration) (bool, error) {
	call, within := o.ending(fence, after)
	var got answer
	err := ctx.Err()
	if err == nil {
		got, err = s.ask(ctx, o.names, s.settings.retryFor, call)
	}
	if errors.Is(err, ErrNoAnswer) || err != nil && ctx.Err() != nil {
		s.deliver(ctx, call, within)
	}
	whole := int64(len(o.keys))
	if after > 0 {
		whole = 1
	}
	// The server does not remember the end of a token of the program's: of two copies the second finds nothing.
	return got.number == whole || o.given && !got.alone, err
}
