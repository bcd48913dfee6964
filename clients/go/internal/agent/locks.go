package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// opened is what an "open" or an "open_quorum" made.
type opened struct {
	clients []redis.UniversalClient
	locks   *slock.Locks
	quorum  *slock.Quorum
	events  *events
}

func (a *agent) open(r request) (any, error) {
	options := &redis.UniversalOptions{
		Addrs:    r.Nodes,
		Username: r.User,
		Password: r.Password,
		// The scenarios count connections.
		PoolSize:         2,
		PipelinePoolSize: -1,
	}
	var rdb redis.UniversalClient
	switch r.Kind {
	case "", "single":
		rdb = redis.NewClient(options.Simple())
	case "cluster":
		rdb = redis.NewClusterClient(options.Cluster())
	case "sentinel":
		options.MasterName = r.Service
		rdb = redis.NewFailoverClient(options.Failover())
	default:
		return nil, fmt.Errorf("unknown kind %q", r.Kind)
	}
	o := &opened{clients: []redis.UniversalClient{rdb}, events: &events{}}
	settings := []slock.Option{slock.WithObserver(o.events)}
	switch r.Waiting {
	case "block":
		settings = append(settings, slock.WaitByBlocking())
	case "poll":
		settings = append(settings, slock.WaitByPolling(r.Poll.strategy()))
	}
	if r.RetryForMS != nil {
		settings = append(settings, slock.RetryFor(ms(*r.RetryForMS)))
	}
	o.locks = slock.New(rdb, settings...)
	return a.note(r.Locks, o)
}

func (a *agent) openQuorum(r request) (any, error) {
	o := &opened{events: &events{}}
	for _, node := range r.Nodes {
		o.clients = append(o.clients, redis.NewClient(&redis.Options{
			Addr: node, Username: r.User, Password: r.Password,
		}))
	}
	settings := []slock.Option{slock.WithObserver(o.events)}
	if r.Poll != nil {
		settings = append(settings, slock.WaitByPolling(r.Poll.strategy()))
	}
	if r.NodeTimeoutMS != nil {
		settings = append(settings, slock.NodeTimeout(ms(*r.NodeTimeoutMS)))
	}
	if r.DriftFactor != nil {
		settings = append(settings, slock.DriftFactor(*r.DriftFactor))
	}
	if r.FailFast {
		settings = append(settings, slock.FailFast())
	}
	o.quorum = slock.NewQuorum(o.clients, settings...)
	return a.note(r.Locks, o)
}

func (a *agent) note(name string, o *opened) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.locks[name] = o
	return none{}, nil
}

func (o *opened) close() (any, error) {
	var err error
	if o.quorum != nil {
		err = o.quorum.Close()
	} else {
		err = o.locks.Close()
	}
	for _, client := range o.clients {
		if closeErr := client.Close(); !errors.Is(closeErr, redis.ErrClosed) {
			err = errors.Join(err, closeErr)
		}
	}
	return none{}, err
}

func (a *agent) withLocks(ctx context.Context, r request) (any, error) {
	a.mu.Lock()
	o := a.locks[r.Locks]
	a.mu.Unlock()
	if o == nil {
		return nil, fmt.Errorf("no locks %q", r.Locks)
	}
	switch r.Op {
	case "acquire":
		h, err := o.lock(ctx, r)
		return a.keep(r, h, err)
	case "try_acquire":
		h, ok, err := o.tryLock(ctx, r)
		if err == nil && !ok {
			return map[string]any{"refused": true}, nil
		}
		return a.keep(r, h, err)
	case "adopt":
		h, err := o.adopt(ctx, r)
		return a.keep(r, h, err)
	case "release_token":
		n, err := o.releaseToken(ctx, r)
		return map[string]any{"released": n}, err
	case "block":
		return none{}, o.do(ctx, r, func(ctx context.Context) error {
			select {
			case <-time.After(ms(r.WorkMS)):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	case "work":
		return o.work(ctx, r)
	case "wait_many":
		return o.waitMany(ctx, r)
	case "cost":
		return o.cost(ctx, r.Rounds)
	case "events":
		return map[string]any{"events": o.events.take()}, nil
	case "close":
		return o.close()
	}
	return nil, fmt.Errorf("unknown operation %q", r.Op)
}

func (o *opened) request(r request) slock.Request {
	if r.Mode == "read" {
		return o.locks.Read(r.keys()...).With(r.options()...)
	}
	return o.locks.Write(r.keys()...).With(r.options()...)
}

func (o *opened) quorumRequest(r request) slock.QuorumRequest {
	if r.Mode == "read" {
		return o.quorum.Read(r.keys()...).With(r.options()...)
	}
	return o.quorum.Write(r.keys()...).With(r.options()...)
}

func (o *opened) lock(ctx context.Context, r request) (hold, error) {
	if o.quorum != nil {
		return o.quorumRequest(r).Lock(ctx)
	}
	return o.request(r).Lock(ctx)
}

func (o *opened) tryLock(ctx context.Context, r request) (hold, bool, error) {
	if o.quorum != nil {
		return o.quorumRequest(r).TryLock(ctx)
	}
	return o.request(r).TryLock(ctx)
}

func (o *opened) adopt(ctx context.Context, r request) (hold, error) {
	if o.quorum != nil {
		return o.quorumRequest(r).Adopt(ctx, r.Token)
	}
	return o.request(r).Adopt(ctx, r.Token)
}

func (o *opened) releaseToken(ctx context.Context, r request) (int, error) {
	if o.quorum != nil {
		return o.quorum.Release(ctx, r.Token, r.Keys...)
	}
	return o.locks.Release(ctx, r.Token, r.Keys...)
}

func (o *opened) do(ctx context.Context, r request, work func(context.Context) error) error {
	if o.quorum != nil {
		return o.quorumRequest(r).Do(ctx, work)
	}
	return o.request(r).Do(ctx, work)
}

// events notes what an observer hears.
type events struct {
	mu   sync.Mutex
	list []map[string]any
}

func (e *events) add(event map[string]any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, event)
}

func (e *events) take() []map[string]any {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.list
	e.list = nil
	if list == nil {
		list = []map[string]any{}
	}
	return list
}

func (e *events) Waited(label string, duration time.Duration, outcome string) {
	e.add(map[string]any{
		"event": "waited", "label": label, "outcome": outcome, "duration_ms": duration.Milliseconds(),
	})
}

func (e *events) Held(label string, duration time.Duration) {
	e.add(map[string]any{"event": "held", "label": label, "duration_ms": duration.Milliseconds()})
}

func (e *events) Lost(label string, reason slock.Reason) {
	e.add(map[string]any{"event": "lost", "label": label, "reason": reason})
}
