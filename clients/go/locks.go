// SPDX-License-Identifier: MIT OR Apache-2.0

package slock

import (
	"cmp"
	"context"
	"errors"
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
	running  atomic.Int64 // acquisitions, releases, and goroutines that send something
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
	l.report = &reporter{hooks: l.settings.hooks, log: l.settings.log}
	l.closing, l.begin = context.WithCancel(context.Background())
	for _, t := range transports {
		topology, err := t.Topology()
		l.problem = cmp.Or(l.problem, err)
		s := &server{
			transport: t, topology: topology, settings: &l.settings, report: l.report, closing: l.closing, running: &l.running,
			ending: make(chan struct{}, mostEnding),
		}
		s.listener = &listener{server: s, changed: l.confirm, channels: map[uint16]*channel{}}
		l.servers = append(l.servers, s)
	}
	return l
}

// Write is a request for the lock of all keys, or of none, as the one writer. It sends nothing.
func (l *Locks) Write(keys ...string) Request { return l.request(Write, keys) }

// Read is a request for the lock of all keys, or of none, as a reader. It sends nothing.
func (l *Locks) Read(keys ...string) Request { return l.request(Read, keys) }

func (l *Locks) request(mode Mode, keys []string) Request {
	r := Request{locks: l, keys: slices.Clone(keys), mode: mode, settings: &l.settings.request}
	if mode == Write && r.settings.limit != noLimit {
		r = r.With(Limit(noLimit)) // the default is that of readers
	}
	return r
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

// Close ends the waits and the renewals. Waits, and all later calls except Unlock, end with ErrClosed. Releases under way, and
// the ends of acquisitions that were cancelled, are sent first, for at most the time of RetryFor. It releases nothing else:
// holds that are still there are lost at the end of their ttl. They may still be released. The program's client stays open.
func (l *Locks) Close() error {
	l.begin()
	l.close(context.Background())
	return nil
}

// Shutdown ends the waits and the renewals as Close does, and releases all holds. It waits for the replies. When ctx is
// over it returns the error of ctx, and the releases go on in the background. If ctx is over already, Shutdown waits for
// at most the time of RetryFor.
func (l *Locks) Shutdown(ctx context.Context) error {
	ctx, end := outliving(ctx, l.settings.retryFor)
	defer end()
	l.begin() // first, because each release would grant the lock to a request that waits here
	l.settle(ctx)
	defer l.close(ctx)
	var holds []*Hold
	for h := range l.holds.Range {
		holds = append(holds, h.(*Hold))
	}
	replies, turns := make(chan error, len(holds)), make(chan struct{}, mostEnding)
	go func() {
		for _, h := range holds {
			turns <- struct{}{}
			go func() {
				replies <- h.Unlock(ctx)
				<-turns
			}()
		}
	}()
	var errs []error
	for range holds {
		select {
		case err := <-replies:
			if !errors.Is(err, ErrNotHeld) {
				errs = append(errs, err)
			}
		case <-ctx.Done():
			return errors.Join(append(errs, ctx.Err())...)
		}
	}
	return errors.Join(errs...)
}

// settle waits until nothing is running or ctx is over, at most for the time of RetryFor.
func (l *Locks) settle(ctx context.Context) {
	for end := time.Now().Add(l.settings.retryFor); l.running.Load() > 0 && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(time.Millisecond)
	}
}

func (l *Locks) close(ctx context.Context) {
	l.settle(ctx)
	for _, s := range l.servers {
		s.listener.close()
		s.transport.Close()
	}
}

func (s *server) acquire(ctx context.Context, r *Request, try bool) (taken, error) {
	o := r.owner()
	got, isOpen, err := s.request(ctx, o, r.ask(o), r.settings, try)
	if isOpen && !r.adopts {
		call, within := o.givingUp()
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
