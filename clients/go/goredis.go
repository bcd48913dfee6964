package slock

import (
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file meets go-redis. Commands go through the program's client, so what instruments that sees them. Renewals go
// through a second client with the same options, which no command of the program can keep busy; a client of Sentinel has
// no second one that would hear of failovers, so there one connection of its pool is kept.

const (
	// callTimeout is the time limit of a read or write, whatever that of the program's client is. Without a reply go-redis
	// sends the command again, over another connection.
	callTimeout = 800 * time.Millisecond
	// shortTimeout and longTimeout are between what a cluster client's own limits may be, since only a client of a
	// single server can be had with others.
	shortTimeout, longTimeout = 500 * time.Millisecond, 5 * time.Second
	// fullCheck is how long it counts whether the pool of the program was full.
	fullCheck = 5 * time.Millisecond
	// hooksCheck is how soon hooks that the program adds to its client see the calls.
	hooksCheck = time.Second
	// reservedConnections is how many connections renewals may use.
	reservedConnections = 4
)

// New makes a Locks from a client of go-redis: a *redis.Client (of one server, or of Sentinel) or a
// *redis.ClusterClient. It sends nothing. The client stays the program's, which closes it after the Locks. Options are
// the defaults of all requests (such as TTL), Prefix, RetryFor, RetryWaitFor, WithHooks and WithLogger.
func New(rdb redis.UniversalClient, options ...Option) *Locks {
	return NewWith(goRedis(rdb), options...)
}

// NewQuorum makes a Quorum from clients of independent servers: not from replicas or nodes of one another. Their number
// should be odd. It sends nothing. The clients stay the program's. Options are those of New, and Poll, NodeTimeout,
// DriftFactor and FailFast.
func NewQuorum(clients []redis.UniversalClient, options ...Option) *Quorum {
	transports := make([]Transport, len(clients))
	for i, client := range clients {
		transports[i] = goRedis(client)
	}
	return NewQuorumWith(transports, options...)
}

// processor is a client of go-redis, or a connection of one.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// goRedisTransport is the Transport over a client of go-redis.
type goRedisTransport struct {
	rdb        redis.UniversalClient
	single     *redis.Client        // what the client is; nil: a cluster
	cluster    *redis.ClusterClient // nil: a single server, or Sentinel
	isSentinel bool
	hasRotated bool // credentials come from a provider, so a refused login may succeed later
	isPrompt   bool // a call ends soon after its ctx
	poolSize   int

	checked atomic.Int64 // when it was checked whether the pool is full
	full    atomic.Bool
	made    atomic.Int64                 // when limited was made
	limited atomic.Pointer[redis.Client] // single with other time limits

	mu            sync.Mutex
	reserved      processor // for renewals; nil: none yet
	isClosed      bool
	subscriptions map[*redis.Client]*subscription
}

func goRedis(rdb redis.UniversalClient) *goRedisTransport {
	t := &goRedisTransport{rdb: rdb, poolSize: math.MaxInt, subscriptions: map[*redis.Client]*subscription{}}
	if t.single, _ = rdb.(*redis.Client); t.single != nil {
		o := t.single.Options()
		t.isSentinel, t.hasRotated, t.poolSize = o.Addr == "FailoverClient", hasProvider(o), o.PoolSize
		t.isPrompt = o.TLSConfig == nil // go-redis connects by TLS without ctx
	} else if t.cluster, _ = rdb.(*redis.ClusterClient); t.cluster != nil {
		o := t.cluster.Options()
		t.hasRotated = hasProvider(o)
		if min(o.ReadTimeout, o.WriteTimeout) < shortTimeout || o.ReadTimeout > longTimeout {
			t.reserved = t.duplicate()
			t.cluster = t.reserved.(*redis.ClusterClient)
		}
	}
	return t
}

// program is the program's client. That of a single server gets other time limits, and shares the pool and the hooks
// that the program had added by the time at which it was made.
func (t *goRedisTransport) program(at instant) processor {
	if t.single == nil {
		return t.cluster
	}
	if t.limited.Load() == nil || at.sub(instant(t.made.Load())) > hooksCheck {
		t.made.Store(int64(at))
		t.limited.Store(t.single.WithTimeout(callTimeout))
	}
	return t.limited.Load()
}

// Topology describes the servers. A Ring cannot be used: it moves keys to another server when one is down, and so gives
// one lock twice.
func (t *goRedisTransport) Topology() (Topology, error) {
	switch {
	case t.single != nil:
		return Topology{Name: t.single.Options().Addr, Failover: t.isSentinel}, nil
	case t.cluster != nil:
		return Topology{Name: strings.Join(t.cluster.Options().Addrs, ", "), Cluster: true}, nil
	}
	return Topology{}, invalid("the client must be a *redis.Client or a *redis.ClusterClient, not %T", t.rdb)
}

// hasProvider tells whether options have a provider of credentials. The fields differ between versions of go-redis.
func hasProvider(options any) bool {
	return slices.ContainsFunc(
		[]string{"CredentialsProvider", "CredentialsProviderContext", "StreamingCredentialsProvider"},
		func(name string) bool {
			field := reflect.ValueOf(options).Elem().FieldByName(name)
			return field.IsValid() && !field.IsNil()
		})
}

// duplicate is a client with the program's options, except for time limits, the size of the pool, and what two clients
// must not share.
func (t *goRedisTransport) duplicate() processor {
	set := func(options any) {
		for name, value := range map[string]any{
			"Protocol": 2, "ReadTimeout": callTimeout, "WriteTimeout": callTimeout, "PoolTimeout": callTimeout,
			"PoolSize": reservedConnections, "MinIdleConns": 0, "MaxIdleConns": 0, "MaxActiveConns": 0,
			"PushNotificationProcessor": nil, "MaintNotificationsConfig": nil, "Limiter": nil,
			"ClientSideCache": nil, "ClientSideCacheConfig": nil,
		} {
			if field := reflect.ValueOf(options).Elem().FieldByName(name); field.IsValid() && value != nil {
				field.Set(reflect.ValueOf(value))
			} else if field.IsValid() {
				field.SetZero()
			}
		}
	}
	if t.cluster != nil {
		o := *t.cluster.Options()
		set(&o)
		return redis.NewClusterClient(&o)
	}
	o := *t.single.Options()
	set(&o)
	return redis.NewClient(&o)
}

// over is what a call goes over: the reserved connections also while the program uses all of its own.
func (t *goRedisTransport) over(isReserved bool) processor {
	at := monotonic()
	if !isReserved && !t.isFull(at) {
		return t.program(at)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reserved == nil && !t.isClosed && !t.isSentinel {
		t.reserved = t.duplicate()
	}
	if t.reserved != nil {
		return t.reserved
	}
	return t.program(at)
}

// isFull tells whether the program's commands occupied the whole pool when that was last checked.
func (t *goRedisTransport) isFull(at instant) bool {
	if at.sub(instant(t.checked.Load())) > fullCheck {
		t.checked.Store(int64(at))
		stats := t.rdb.PoolStats()
		t.full.Store(stats.IdleConns == 0 && int(stats.TotalConns) >= t.poolSize)
	}
	return t.full.Load()
}

// Call sends a command. Where go-redis may take long to notice that ctx is over, it goes on by itself.
func (t *goRedisTransport) Call(ctx context.Context, call Call) (reply, then any, err error) {
	if t.isPrompt {
		return t.send(ctx, call)
	}
	came := make(chan func(), 1)
	go func() {
		r, next, failed := t.send(ctx, call)
		came <- func() { reply, then, err = r, next, failed }
	}()
	select {
	case note := <-came:
		note()
		return reply, then, err
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

func (t *goRedisTransport) send(ctx context.Context, call Call) (reply, then any, err error) {
	if call.Key == "" {
		reply, err = t.everywhere(ctx, call.Command)
		return reply, nil, err
	}
	over, cmd := t.over(call.Reserved), redis.NewCmd(ctx, call.Command...)
	cmd.SetFirstKeyPos(call.KeyAt)
	if len(call.Then) == 0 {
		_ = over.Process(ctx, cmd)
		reply, err = t.reply(cmd)
		return reply, nil, err
	}
	if t.cluster != nil { // a command without a key goes to the same node
		if over, err = t.cluster.MasterForKey(ctx, call.Key); err != nil {
			return nil, nil, err
		}
	}
	pipeline, next := over.Pipeline(), redis.NewCmd(ctx, call.Then...)
	_, _ = pipeline.Process(ctx, cmd), pipeline.Process(ctx, next)
	_, _ = pipeline.Exec(ctx)
	if reply, err = t.reply(cmd); err == nil {
		then, err = t.reply(next)
	}
	return reply, then, err
}

// everywhere sends a command to each primary.
func (t *goRedisTransport) everywhere(ctx context.Context, command []any) (any, error) {
	var mu sync.Mutex
	var replies []any
	ask := func(ctx context.Context, over processor) error {
		cmd := redis.NewCmd(ctx, command...)
		_ = over.Process(ctx, cmd)
		reply, err := t.reply(cmd)
		mu.Lock()
		defer mu.Unlock()
		replies = append(replies, reply)
		return err
	}
	if t.cluster == nil {
		err := ask(ctx, t.over(false))
		return replies, err
	}
	err := t.cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return ask(ctx, node) })
	return replies, err
}

// reply is the reply to a command, or the error that there is none.
func (t *goRedisTransport) reply(cmd *redis.Cmd) (any, error) {
	value, err := cmd.Result()
	var reply redis.Error
	switch {
	case err == nil || errors.Is(err, redis.Nil):
		return value, nil
	case errors.Is(err, redis.ErrClosed) && !t.isSentinel:
		return nil, &UnusableError{err}
	case errors.As(err, &reply) && !(t.hasRotated && isLogin(reply)):
		return &ReplyError{err}, nil
	case t.cluster != nil:
		t.cluster.ReloadState(context.Background())
	}
	return nil, err
}

// isLogin tells whether an error says that the credentials are wrong.
func isLogin(err redis.Error) bool {
	return redis.HasErrorPrefix(err, "WRONGPASS") || redis.HasErrorPrefix(err, "NOAUTH")
}

// Close ends what the Transport has made.
func (t *goRedisTransport) Close() (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.isClosed = true
	if client, ok := t.reserved.(redis.UniversalClient); ok && t.single != nil {
		t.reserved, err = nil, client.Close()
	}
	return err
}
