package slock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// This file has what a program makes once: it gives requests, and carries them out on one server or cluster.

// Locks is what a program asks for locks. Make one for the program by New, or by NewQuorum for several independent
// servers; all methods may be called by several goroutines at once.
type Locks struct {
	backend  backend
	servers  []*server
	settings settings
	report   *reporter
	holds    holds
	counted  func(ttl time.Duration) time.Duration // the part of a ttl that counts for the validity

	running          atomic.Int64    // acquisitions
	closing, closed  context.Context // done when Close begins, and when it has ended
	begin, endClosed context.CancelFunc
}

// backend is what carries requests out: a server, or a quorum.
type backend interface {
	check(r *Request) error
	acquire(ctx context.Context, r *Request, try bool) (keeper, owner, grant, error)
	adopt(ctx context.Context, r *Request) (keeper, owner, grant, error)
	// release tells on how many keys, or on how many nodes, it released what a token holds.
	release(ctx context.Context, r *Request) (int, error)
	// follow has a change of the primary noticed while there are holds.
	follow(key string)
}

// NewWith makes a Locks over a Transport. New does that for a client of go-redis.
func NewWith(t Transport, options ...Option) *Locks {
	l := newLocks([]Transport{t}, options)
	l.backend, l.counted = l.servers[0], counted
	return l
}

func newLocks(transports []Transport, options []Option) *Locks {
	l := &Locks{settings: newSettings(options), holds: holds{all: map[*Hold]struct{}{}}}
	l.report = &reporter{hooks: l.settings.hooks, log: l.settings.log}
	l.closing, l.begin = context.WithCancel(context.Background())
	l.closed, l.endClosed = context.WithCancel(context.Background())
	for _, t := range transports {
		s := &server{transport: t, settings: &l.settings, report: l.report, closing: l.closing, closed: l.closed}
		s.topology, s.problem = t.Topology()
		s.listener = newListener(s, func() {
			if s.topology.Failover {
				l.confirm()
			}
		})
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
	l.endClosed()
	var errs []error
	for _, s := range l.servers {
		s.listener.close()
		errs = append(errs, s.transport.Close())
	}
	return errors.Join(errs...)
}

// Shutdown releases all holds, and then closes as Close does. Until ctx is over it waits for the replies.
func (l *Locks) Shutdown(ctx context.Context) error {
	var errs []error
	for _, h := range l.holds.list() {
		if err := h.Unlock(ctx); !errors.Is(err, ErrNotHeld) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, l.Close())...)
}

func (s *server) check(*Request) error { return s.problem }

func (s *server) acquire(ctx context.Context, r *Request, try bool) (keeper, owner, grant, error) {
	o := r.owner()
	got, isOpen, err := s.request(ctx, o, o.lock(r.mode, r.settings), r.settings, try)
	if err != nil && isOpen {
		s.deliver(ctx, o.end(0), refuseFor)
	}
	return s, o, got, err
}

func (s *server) adopt(ctx context.Context, r *Request) (keeper, owner, grant, error) {
	o := r.owner()
	got, err := s.ask(ctx, r.keys, s.settings.retryFor, o.adopt(r.mode, r.settings.ttl))
	if err == nil && got.number == 0 || errors.Is(err, ErrWrongMode) {
		err = notHeld(r.keys, r.mode)
	}
	return s, o, grant{got.number, got.sent}, err
}

func (s *server) release(ctx context.Context, r *Request) (int, error) {
	released, err := s.ask(ctx, r.keys, s.settings.retryFor, r.owner().end(0))
	return int(released.number), err
}

// follow keeps a channel open, where its end tells of another primary.
func (s *server) follow(key string) {
	if s.topology.Failover && s.closing.Err() == nil {
		s.listener.channel(key, true)
	}
}

// extend sends an extension, and waits for replicas if it has to.
func (s *server) extend(ctx context.Context, until time.Time, o owner, e extension) (answer, error) {
	replicas := e.wanted.minReplicas
	if replicas == 0 {
		return s.number(ctx, until, o.extend(e.ttl, e.fence, true))
	}
	// WAIT counts the replicas that have what its connection wrote last. An extension to the same millisecond would write
	// nothing, and any replica would do.
	call := o.extend(e.ttl+time.Millisecond, e.fence, true)
	call.Then = []any{"WAIT", replicas, milliseconds(e.wanted.replicaTimeout)}
	got := answer{sent: sending()}
	extended, acknowledged, err := s.try(ctx, until.Add(e.wanted.replicaTimeout), call)
	if err != nil {
		return got, err
	}
	if got.number, err = asNumber(extended); err != nil || got.number == 0 {
		return got, err
	}
	number, err := asNumber(acknowledged)
	if err == nil && number < int64(replicas) {
		err = failure(ErrTooFewReplicas, o.names, plain(fmt.Sprintf("%d of %d replicas acknowledged", number, replicas)))
	}
	return got, err
}

func (s *server) end(ctx context.Context, o owner, fence int64, after time.Duration) (bool, error) {
	call, whole, most := o.end(fence), int64(len(o.keys)), refuseFor
	if after > 0 {
		call, whole, most = o.extend(after, fence, false), 1, after
	}
	var got answer
	err := ctx.Err()
	if err == nil {
		got, err = s.ask(ctx, o.names, s.settings.retryFor, call)
	}
	if errors.Is(err, ErrNoAnswer) || err != nil && ctx.Err() != nil {
		s.deliver(ctx, call, most)
	}
	// The server does not remember the end of a token of the program's: of two copies the second finds nothing.
	return got.number == whole || o.given && !got.alone, err
}
