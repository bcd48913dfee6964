package slock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// This file has what a program makes once: it gives requests, and carries them out on one server or cluster.

// Locks is what a program asks for locks. Make one for the program by New; all methods may be called by several
// goroutines at once.
type Locks struct {
	base
	server   *server
	listener *listener
	problem  error // why the client cannot be used
}

// NewWith makes a Locks over a Transport. New does that for a client of go-redis.
func NewWith(t Transport, options ...Option) *Locks {
	l := &Locks{}
	s := newSettings(options)
	l.init(l, s)
	l.server, l.problem = l.base.server(t)
	l.listener = newListener(l.server, l.broken)
	l.watchdog = newWatchdog(l.report, l.follow)
	l.holding = holding{&single{l.server, l.listener}, l.report, l.watchdog, s.retryFor, counted}
	return l
}

// broken confirms all holds: the subscription may have broken because another server is the primary now.
func (l *Locks) broken() {
	if l.server.topology.Failover && l.closing.Err() == nil {
		l.watchdog.confirmAll()
		if all := l.watchdog.all(); len(all) > 0 {
			l.follow(all[0].owner.keys[0])
		}
	}
}

// follow keeps a subscription open while there are holds, where that tells of another primary.
func (l *Locks) follow(key string) {
	if !l.server.topology.Failover {
		return
	}
	go func() {
		for failures := 0; len(l.watchdog.all()) > 0; failures++ {
			if _, err := l.listener.subscribe(l.closing, time.Now().Add(l.settings.retryFor), key); !passes(err) {
				return
			}
			pause, _ := afterErrors.pause(failures)
			sleep(l.closing, l.closing, pause)
		}
	}()
}

// Close ends the waits and the renewals. Waits, and all later calls except Unlock, end with ErrClosed. The ends of
// acquisitions that were cancelled are sent first, for at most the time of RetryFor. It releases nothing: holds that are
// still there are lost at the end of their ttl. They may still be released. The program's client stays open.
func (l *Locks) Close() error {
	l.shut([]*server{l.server})
	l.listener.close()
	return l.server.transport.Close()
}

func (l *Locks) check(*Request) error { return l.problem }

func (l *Locks) acquire(ctx context.Context, r *Request, once bool) (*Hold, error) {
	o := r.owner()
	a := newAcquisition(ctx, l.server, l.listener, o, o.lock(r.mode, r.settings), r.settings, once)
	got, err := a.run()
	if err != nil {
		if a.isOpen {
			l.server.end(ctx, o, 0)
		}
		return nil, err
	}
	return l.hold(ctx, r, o, got), nil
}

func (l *Locks) adopt(ctx context.Context, r *Request) (*Hold, error) {
	o := r.owner()
	got, err := l.server.ask(ctx, r.keys, l.settings.retryFor, o.adopt(r.mode, r.settings.ttl))
	if err == nil && got.number == 0 || errors.Is(err, ErrWrongMode) {
		err = &notHeldError{r.keys, r.mode}
	}
	if err != nil {
		return nil, err
	}
	return l.hold(ctx, r, o, grant{got.number, got.sent}), nil
}

func (l *Locks) release(ctx context.Context, r *Request) (int, error) {
	released, err := l.server.ask(ctx, r.keys, l.settings.retryFor, r.owner().end(0))
	return int(released.number), err
}

// single keeps holds on one server or cluster.
type single struct {
	server   *server
	listener *listener
}

func (k *single) extend(ctx context.Context, until time.Time, o owner, e extension) (answer, error) {
	return k.server.extend(ctx, until, o, e)
}

// extend sends an extension, and waits for replicas if it has to.
func (s *server) extend(ctx context.Context, until time.Time, o owner, e extension) (answer, error) {
	call := o.extend(e.ttl, e.fence)
	call.Reserved = true
	if e.replicas == 0 {
		return s.number(ctx, until, call)
	}
	// WAIT counts the replicas that have what its connection wrote last. An extension to the same millisecond would write
	// nothing, and any replica would do.
	call = o.extend(e.ttl+time.Millisecond, e.fence)
	call.Then = []any{"WAIT", e.replicas, milliseconds(e.within)}
	got := answer{sent: sending()}
	reply, acknowledged, err := s.try(ctx, until.Add(e.within), call)
	if err = errors.Join(err, asError(reply), asError(acknowledged)); err != nil {
		return got, err
	}
	got.number, _ = reply.(int64)
	if number, _ := acknowledged.(int64); got.number > 0 && number < int64(e.replicas) {
		err = because(ErrTooFewReplicas, fmt.Sprintf("%d of %d replicas acknowledged %s", number, e.replicas, named(o.names)))
	}
	return got, err
}

func (k *single) end(ctx context.Context, o owner, fence int64) (bool, error) {
	return k.finish(ctx, o, o.end(fence), len(o.keys), refuseFor)
}

func (k *single) keep(ctx context.Context, o owner, fence int64, ttl time.Duration) (bool, error) {
	return k.finish(ctx, o, o.keep(ttl, fence), 1, ttl)
}

// finish sends the last command of a hold, and tells whether the reply is that of a whole one. Without a reply it is
// delivered in the background, for a time.
func (k *single) finish(ctx context.Context, o owner, call Call, whole int, most time.Duration) (bool, error) {
	var got answer
	err := ctx.Err()
	if err == nil {
		got, err = repeat(ctx, k.server, o.names, k.server.settings.retryFor, func(until time.Time) (answer, error) {
			return k.server.untimed(ctx, until, call)
		})
	}
	if errors.Is(err, ErrNoAnswer) || err != nil && ctx.Err() != nil {
		k.server.deliver(ctx, call, most)
	}
	// The server does not remember the end of a token of the program's: of two copies the second finds nothing.
	return got.number == int64(whole) || o.given && !got.alone, err
}

// base is what Locks and Quorum have in common.
type base struct {
	holding
	by       asked
	settings settings

	closing, closed  context.Context // done when Close begins, and when it has ended
	begin, endClosed context.CancelFunc
}

// asked is who carries a request out.
type asked interface {
	check(r *Request) error
	Close() error
	acquire(ctx context.Context, r *Request, once bool) (*Hold, error)
	adopt(ctx context.Context, r *Request) (*Hold, error)
	// release tells on how many keys, or on how many nodes, it released what a token holds.
	release(ctx context.Context, r *Request) (int, error)
}

func (b *base) init(by asked, s settings) {
	b.by, b.settings = by, s
	b.report = &reporter{hooks: s.hooks, log: s.log}
	b.closing, b.begin = context.WithCancel(context.Background())
	b.closed, b.endClosed = context.WithCancel(context.Background())
}

func (b *base) server(t Transport) (*server, error) {
	topology, err := t.Topology()
	return &server{
		transport: t, topology: topology, settings: &b.settings, report: b.report, closing: b.closing, closed: b.closed,
	}, err
}

// Write is a request for the lock of all keys, or of none, as the one writer. It sends nothing.
func (b *base) Write(keys ...string) Request { return b.request(Write, keys) }

// Read is a request for the lock of all keys, or of none, as a reader. It sends nothing.
func (b *base) Read(keys ...string) Request { return b.request(Read, keys) }

func (b *base) request(mode Mode, keys []string) Request {
	return Request{base: b, keys: slices.Clone(keys), mode: mode, settings: &b.settings.request}
}

// Release releases what the owner token holds of the keys, in whichever mode, and tells on how many keys it did, or on
// how many nodes of a Quorum. It is for a token that another process took; a Hold has Unlock.
func (b *base) Release(ctx context.Context, token string, keys ...string) (int, error) {
	r := b.Read(keys...).With(Token(token))
	if err := r.checkToken(); err != nil {
		return 0, err
	}
	return b.by.release(ctx, &r)
}

// Shutdown releases all holds, and then closes as Close does. Until ctx is over it waits for the replies.
func (b *base) Shutdown(ctx context.Context) error {
	var errs []error
	for _, h := range b.watchdog.all() {
		if err := h.Unlock(ctx); err != nil && !errors.Is(err, ErrNotHeld) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, b.by.Close())...)
}

// shut closes what is common to Locks and Quorum.
func (b *base) shut(servers []*server) {
	b.begin()
	b.watchdog.close()
	for end := time.Now().Add(b.settings.retryFor); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if !slices.ContainsFunc(servers, func(s *server) bool { return !s.ends.isIdle() }) {
			break
		}
	}
	b.endClosed()
}

func (b *base) prefixed(keys []string) []string {
	if b.settings.prefix == "" {
		return keys
	}
	all := make([]string, len(keys))
	for i, key := range keys {
		all[i] = b.settings.prefix + key
	}
	return all
}

func (b *base) unprefixed(key string) string { return strings.TrimPrefix(key, b.settings.prefix) }
