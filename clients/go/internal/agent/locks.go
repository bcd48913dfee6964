package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// opened is what an "open" or an "open_quorum" made.
type opened struct {
	clients []redis.UniversalClient
	locks   slock.Locker
	options *redis.UniversalOptions
	events  *events
}

func (a *agent) open(r request) (any, error) {
	options := &redis.UniversalOptions{
		Addrs:    r.Nodes,
		Username: r.User,
		Password: r.Password,
		// The scenarios count connections.
		PoolSize: 2,
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
	o := &opened{clients: []redis.UniversalClient{rdb}, options: options, events: &events{}}
	settings := []slock.Option{slock.WithHooks(o.events.hooks())}
	switch r.Waiting {
	case "block":
		settings = append(settings, slock.WaitByBlocking())
	case "poll":
		settings = append(settings, slock.WaitByPolling(r.Poll.strategy()))
	}
	if r.RetryForMS != nil {
		settings = append(settings, slock.RetryFor(ms(*r.RetryForMS)))
	}
	if r.RetryWaitForMS != nil {
		settings = append(settings, slock.RetryWaitFor(ms(*r.RetryWaitForMS)))
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
	settings := []slock.Option{slock.WithHooks(o.events.hooks())}
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
	o.locks = slock.NewQuorum(o.clients, settings...)
	return a.note(r.Locks, o)
}

func (a *agent) note(name string, o *opened) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.locks[name] = o
	return none{}, nil
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
		h, err := o.request(r).Lock(ctx)
		return a.keep(r, h, err)
	case "try_acquire":
		h, ok, err := o.request(r).TryLock(ctx)
		if err == nil && !ok {
			return map[string]any{"refused": true}, nil
		}
		return a.keep(r, h, err)
	case "adopt":
		h, err := o.request(r).Adopt(ctx, r.Token)
		return a.keep(r, h, err)
	case "release_token":
		n, err := o.locks.Release(ctx, r.Token, r.Keys...)
		return map[string]any{"released": n}, err
	case "block":
		return none{}, o.request(r).Do(ctx, func(ctx context.Context) error {
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
	case "pairs":
		return o.pairs(r)
	case "handoffs":
		return o.handoffs(r)
	case "info":
		return o.info(ctx, r.Key)
	case "queues":
		return o.queues(ctx)
	case "events":
		return map[string]any{"events": o.events.take()}, nil
	case "close":
		return none{}, o.locks.Close() // the clients stay open: a hold may still be released over them
	}
	return nil, fmt.Errorf("unknown operation %q", r.Op)
}

func (o *opened) request(r request) slock.Request {
	if r.Mode == "read" {
		return o.locks.Read(r.keys()...).With(r.options()...)
	}
	return o.locks.Write(r.keys()...).With(r.options()...)
}

func (o *opened) info(ctx context.Context, key string) (any, error) {
	info, err := o.locks.(*slock.Locks).Info(ctx, key)
	return map[string]any{
		"mode": info.Mode, "readers": info.Readers, "waiters": info.Waiters,
		"holders": len(info.Holders), "queue": len(info.Queue),
	}, err
}

func (o *opened) queues(ctx context.Context) (any, error) {
	queues, err := o.locks.(*slock.Locks).Queues(ctx)
	names := []string{}
	for _, queue := range queues {
		names = append(names, queue.Key)
	}
	return map[string]any{"names": names}, err
}

// events notes what hooks hear.
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

func (e *events) hooks() slock.Hooks {
	return slock.Hooks{
		Waited: func(label string, duration time.Duration, outcome string) {
			e.add(map[string]any{
				"event": "waited", "label": label, "outcome": outcome, "duration_ms": duration.Milliseconds(),
			})
		},
		Held: func(label string, duration time.Duration) {
			e.add(map[string]any{"event": "held", "label": label, "duration_ms": duration.Milliseconds()})
		},
		Lost: func(label string, reason slock.Reason) {
			e.add(map[string]any{"event": "lost", "label": label, "reason": reason})
		},
		RenewalFailed: func(label string, err error) {
			e.add(map[string]any{"event": "renewal failed", "label": label, "error": err.Error()})
		},
		ReleaseFailed: func(label string, err error) {
			e.add(map[string]any{"event": "release failed", "label": label, "error": err.Error()})
		},
	}
}
