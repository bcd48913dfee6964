package slock

import (
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file meets go-redis. Commands go through the program's client, so what instruments that sees them. Renewals go
// through a second client with the same options, which no command of the program can keep busy; a client of Sentinel has
// no second one that would hear of failovers, so there one connection of its pool is kept.

const (
	// callTimeout is the time limit of a read or write where the program's client has none, or one that is too short.
	callTimeout = 3 * time.Second
	// shortTimeout is the shortest time limit that is long enough for a busy server.
	shortTimeout = 500 * time.Millisecond
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
	hasRotated bool      // credentials come from a provider, so a refused login may succeed later
	calls      processor // the program's client, or the same with time limits
	poolSize   int

	mu            sync.Mutex
	reserved      processor // for renewals; nil: none yet
	isClosed      bool
	subscriptions map[*redis.Client]*subscription
}

func goRedis(rdb redis.UniversalClient) *goRedisTransport {
	t := &goRedisTransport{rdb: rdb, calls: rdb, subscriptions: map[*redis.Client]*subscription{}}
	isShort := func(read, write time.Duration) bool { return min(read, write) < shortTimeout }
	if t.single, _ = rdb.(*redis.Client); t.single != nil {
		o := t.single.Options()
		t.isSentinel, t.hasRotated, t.poolSize = o.Addr == "FailoverClient", hasProvider(o), o.PoolSize
		if isShort(o.ReadTimeout, o.WriteTimeout) {
			t.single = t.single.WithTimeout(callTimeout)
			t.calls = t.single
		}
	} else if t.cluster, _ = rdb.(*redis.ClusterClient); t.cluster != nil {
		o := t.cluster.Options()
		t.hasRotated, t.poolSize = hasProvider(o), math.MaxInt // of each node
		if isShort(o.ReadTimeout, o.WriteTimeout) {
			t.reserved = t.duplicate()
			t.calls = t.reserved
		}
	}
	return t
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
func (t *goRedisTransport) over(call Call) processor {
	if stats := t.rdb.PoolStats(); !call.Reserved && (stats.IdleConns > 0 || int(stats.TotalConns) < t.poolSize) {
		return t.calls
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reserved == nil && !t.isClosed && !t.isSentinel {
		t.reserved = t.duplicate()
	}
	if t.reserved != nil {
		return t.reserved
	}
	return t.calls
}

// Call sends commands. go-redis may go on with them after ctx is over.
func (t *goRedisTransport) Call(ctx context.Context, call Call) ([]any, error) {
	type outcome struct {
		replies []any
		err     error
	}
	came := make(chan outcome, 1)
	go func() {
		replies, err := t.send(ctx, call)
		came <- outcome{replies, err}
	}()
	select {
	case o := <-came:
		return o.replies, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (t *goRedisTransport) send(ctx context.Context, call Call) (replies []any, err error) {
	over := t.over(call)
	if call.Key == "" && t.cluster != nil {
		var mu sync.Mutex
		err = t.cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			cmd := redis.NewCmd(ctx, call.Commands[0]...)
			_ = node.Process(ctx, cmd)
			reply, err := t.reply(cmd)
			mu.Lock()
			defer mu.Unlock()
			replies = append(replies, reply)
			return err
		})
		return replies, err
	}
	if len(call.Commands) == 1 {
		cmd := redis.NewCmd(ctx, call.Commands[0]...)
		cmd.SetFirstKeyPos(call.KeyAt)
		_ = over.Process(ctx, cmd)
		reply, err := t.reply(cmd)
		return []any{reply}, err
	}
	if t.cluster != nil { // a command without a key goes to the same node
		if over, err = t.cluster.MasterForKey(ctx, call.Key); err != nil {
			return nil, err
		}
	}
	pipeline := over.Pipeline()
	for _, words := range call.Commands {
		_ = pipeline.Process(ctx, redis.NewCmd(ctx, words...))
	}
	commands, _ := pipeline.Exec(ctx)
	for i := 0; i < len(commands) && err == nil; i++ {
		var reply any
		reply, err = t.reply(commands[i].(*redis.Cmd))
		replies = append(replies, reply)
	}
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
	if client, ok := t.reserved.(redis.UniversalClient); ok && client != t.calls {
		t.reserved, err = nil, client.Close()
	}
	return err
}
