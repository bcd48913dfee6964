package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
	"slock.example/go/slocktest"
)

// opened is what an "open" or an "open_quorum" made.
type opened struct {
	clients   []redis.UniversalClient                  // of go-redis; also for plain commands if the locks are over another library
	occupy    func(key string, duration time.Duration) // nil: go-redis
	locks     *slock.Locks
	transport slock.Transport
	options   *redis.UniversalOptions
	events    *events
}

func (a *agent) open(r Request) (any, error) {
	o := &opened{events: &events{}, options: &redis.UniversalOptions{
		Addrs:      r.Nodes,
		Username:   r.User,
		Password:   r.Password,
		MasterName: r.Service,
		// The scenarios count connections.
		PoolSize: cmp.Or(r.PoolSize, 2),
	}}
	if r.ReadTimeoutMS != nil {
		o.options.ReadTimeout = cmp.Or(ms(*r.ReadTimeoutMS), -1)
	}
	settings := []slock.Option{slock.WithHooks(o.events.hooks()), slock.Prefix(r.Prefix)}
	if r.RetryForMS != nil {
		settings = append(settings, slock.RetryFor(ms(*r.RetryForMS)))
	}
	if r.RetryWaitForMS != nil {
		settings = append(settings, slock.RetryWaitFor(ms(*r.RetryWaitForMS)))
	}
	if r.Kind == "memory" {
		a.mu.Lock()
		defer a.mu.Unlock()
		server := a.memory[r.Nodes[0]]
		if server == nil {
			server = slocktest.New()
			a.memory[r.Nodes[0]] = server
		}
		o.transport = server
		o.locks = slock.NewWith(server, settings...)
		a.locks[r.Locks] = o
		return none{}, nil
	}
	rdb, err := o.client(r)
	if err != nil {
		return nil, err
	}
	o.clients = []redis.UniversalClient{rdb}
	if a.openClient == nil {
		o.locks = slock.New(rdb, settings...)
		return a.note(r.Locks, o)
	}
	client, err := a.openClient(r)
	if err != nil {
		return nil, err
	}
	o.locks, o.occupy = slock.NewWith(client.Transport, settings...), client.FillPool
	return a.note(r.Locks, o)
}

// client is the program's client.
func (o *opened) client(r Request) (redis.UniversalClient, error) {
	login := func() (string, string) {
		password, _ := os.ReadFile(r.PasswordFile)
		return r.User, strings.TrimSpace(string(password))
	}
	switch r.Kind {
	case "", "single":
		options := o.options.Simple()
		if r.PasswordFile != "" {
			options.CredentialsProvider = login
		}
		return redis.NewClient(options), nil
	case "cluster":
		return redis.NewClusterClient(o.options.Cluster()), nil
	case "sentinel":
		return redis.NewFailoverClient(o.options.Failover()), nil
	}
	return nil, fmt.Errorf("unknown kind %q", r.Kind)
}

func (a *agent) openQuorum(r Request) (any, error) {
	o := &opened{events: &events{}}
	for _, node := range r.Nodes {
		o.clients = append(o.clients, redis.NewClient(&redis.Options{
			Addr: node, Username: r.User, Password: r.Password,
		}))
	}
	settings := []slock.Option{slock.WithHooks(o.events.hooks())}
	if r.Poll != nil {
		settings = append(settings, slock.Poll(r.Poll.strategy()))
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
	if a.openClient == nil {
		o.locks = slock.NewQuorum(o.clients, settings...)
		return a.note(r.Locks, o)
	}
	var transports []slock.Transport
	for _, node := range r.Nodes {
		client, err := a.openClient(Request{Nodes: []string{node}, User: r.User, Password: r.Password})
		if err != nil {
			return nil, err
		}
		transports = append(transports, client.Transport)
	}
	o.locks = slock.NewQuorumWith(transports, settings...)
	return a.note(r.Locks, o)
}

func (a *agent) note(name string, o *opened) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.locks[name] = o
	return none{}, nil
}

func (a *agent) withLocks(ctx context.Context, r Request) (any, error) {
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
		h, err := o.request(r).TryLock(ctx)
		if errors.Is(err, slock.ErrNotAcquired) {
			return map[string]any{"refused": true}, nil
		}
		return a.keep(r, h, err)
	case "adopt":
		h, err := o.request(r).Adopt(ctx, *r.Token)
		return a.keep(r, h, err)
	case "release_token":
		n, err := o.locks.Release(ctx, *r.Token, r.Keys...)
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
	case "fill_pool":
		return o.fillPool(r)
	case "raw":
		return o.raw(ctx, r.Command)
	case "close": // the clients stay open: a hold may still be released over them
		if r.Release {
			return none{}, o.locks.Shutdown(ctx)
		}
		return none{}, o.locks.Close()
	}
	return nil, fmt.Errorf("unknown operation %q", r.Op)
}

func (o *opened) request(r Request) slock.Request {
	if r.Mode == "read" {
		return o.locks.Read(r.keys()...).With(r.options()...)
	}
	return o.locks.Write(r.keys()...).With(r.options()...)
}

func (o *opened) info(ctx context.Context, key string) (any, error) {
	info, err := o.locks.Info(ctx, key)
	tokens := []string{}
	for _, holder := range info.Holders {
		tokens = append(tokens, holder.Token)
	}
	return map[string]any{
		"key": key, "mode": info.Mode, "readers": info.Readers, "waiters": info.Waiters,
		"holders": len(info.Holders), "queue": len(info.Queue), "tokens": tokens,
	}, err
}

// fillPool occupies each connection of the program's pool.
func (o *opened) fillPool(r Request) (any, error) {
	if o.occupy != nil {
		o.occupy("occupied:"+r.Locks, ms(r.MS))
		return none{}, nil
	}
	rdb := o.clients[0]
	size := rdb.PoolStats().TotalConns
	for range o.options.PoolSize {
		go rdb.BLPop(context.Background(), ms(r.MS), "occupied:"+r.Locks)
	}
	for size = 0; int(size) < o.options.PoolSize; time.Sleep(time.Millisecond) {
		stats := rdb.PoolStats()
		size = stats.TotalConns - stats.IdleConns
	}
	return none{}, nil
}

// raw sends a command word for word.
func (o *opened) raw(ctx context.Context, command []string) (any, error) {
	words := make([]any, len(command))
	for i, word := range command {
		words[i] = word
	}
	var reply any
	var err error
	if o.transport != nil {
		reply, _, err = o.transport.Call(ctx, slock.Call{Key: "raw", Command: words})
	} else if reply, err = o.clients[0].Do(ctx, words...).Result(); err == redis.Nil {
		reply, err = nil, nil
	}
	if err != nil {
		reply = err
	}
	return map[string]any{"reply": asJSON(reply)}, nil
}

func asJSON(reply any) any {
	switch reply := reply.(type) {
	case error:
		return reply.Error()
	case []any:
		for i := range reply {
			reply[i] = asJSON(reply[i])
		}
	case map[any]any:
		object := map[string]any{}
		for key, value := range reply {
			object[fmt.Sprint(key)] = asJSON(value)
		}
		return object
	}
	return reply
}

func (o *opened) queues(ctx context.Context) (any, error) {
	queues, err := o.locks.Queues(ctx)
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
		Waited: func(_ context.Context, label string, duration time.Duration, outcome string) {
			e.add(map[string]any{
				"event": "waited", "label": label, "outcome": outcome, "duration_ms": duration.Milliseconds(),
			})
		},
		Held: func(_ context.Context, label string, duration time.Duration) {
			e.add(map[string]any{"event": "held", "label": label, "duration_ms": duration.Milliseconds()})
		},
		Lost: func(_ context.Context, label string, loss *slock.Error) {
			e.add(map[string]any{"event": "lost", "label": label, "keys": loss.Keys, "reason": loss.Reason})
		},
		RenewalFailed: func(_ context.Context, label string, err error) {
			e.add(map[string]any{"event": "renewal failed", "label": label, "error": err.Error()})
		},
		ReleaseFailed: func(_ context.Context, label string, err error) {
			e.add(map[string]any{"event": "release failed", "label": label, "error": err.Error()})
		},
	}
}
