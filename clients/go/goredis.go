package slock

import (
	"cmp"
	"context"
	"errors"
	"maps"
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
	// shortestPause is the time before a command is sent again, at least. go-redis has a pause of its own.
	shortestPause = 5 * time.Millisecond
	// fullCheck is how long it counts whether the pool of the program was full.
	fullCheck = 5 * time.Millisecond
	// hooksCheck is how soon hooks that the program adds to its client see the calls.
	hooksCheck = time.Second
	// primaryCheck is how often a client of Sentinel is checked for another primary.
	primaryCheck = 500 * time.Millisecond
)

// New makes a Locks from a client of go-redis: a *redis.Client (of one server, or of Sentinel) or a
// *redis.ClusterClient. It sends nothing. The client stays the program's, which closes it after the Locks. Options are
// the defaults of all requests (such as TTL), Prefix, RetryFor, RetryWaitFor, WithHooks and WithLogger.
func New(rdb redis.UniversalClient, options ...Option) *Locks {
	return NewWith(goRedis(rdb), options...)
}

// NewQuorum makes a Locks from clients of independent servers: not from replicas or nodes of one another. Their number
// should be odd. A hold counts while a majority of the servers has it, so that it outlives the loss of a minority. A
// quorum polls, because no server knows of the others. It sends nothing. The clients stay the program's. Options are
// those of New, and Poll, NodeTimeout, DriftFactor and FailFast.
func NewQuorum(clients []redis.UniversalClient, options ...Option) *Locks {
	transports := make([]Transport, len(clients))
	for i, client := range clients {
		transports[i] = goRedis(client)
	}
	return NewQuorumWith(transports, options...)
}

// goRedisTransport is the Transport over a client of go-redis.
type goRedisTransport struct {
	rdb        redis.UniversalClient
	single     *redis.Client        // what the client is; nil: a cluster
	cluster    *redis.ClusterClient // nil: a single server, or Sentinel
	isSentinel bool
	hasRotated bool // credentials come from a provider, so a refused login may succeed later
	isPrompt   bool // a call ends soon after its ctx

	checked, made atomic.Int64 // when isFull and limited were made
	isFull        atomic.Bool  // the program's commands occupied the whole pool
	limited       atomic.Pointer[redis.Client]

	mu            sync.Mutex
	reserved      processor // for renewals; nil: none yet
	isClosed      bool
	subscriptions map[*redis.Client]*subscription
}

// processor is a client of go-redis, or a connection of one.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

func goRedis(rdb redis.UniversalClient) *goRedisTransport {
	t := &goRedisTransport{rdb: rdb, subscriptions: map[*redis.Client]*subscription{}}
	if t.single, _ = rdb.(*redis.Client); t.single != nil {
		o := t.single.Options()
		t.isSentinel, t.hasRotated = o.Addr == "FailoverClient", hasProvider(o)
		t.isPrompt = o.TLSConfig == nil && keepsHooks() // go-redis connects by TLS without ctx
	} else if t.cluster, _ = rdb.(*redis.ClusterClient); t.cluster != nil {
		o := t.cluster.Options()
		if t.hasRotated = hasProvider(o); min(o.ReadTimeout, o.WriteTimeout) < callTimeout/2 {
			t.cluster = t.duplicate().(*redis.ClusterClient)
			t.reserved = t.cluster
		}
	}
	return t
}

// Topology describes the servers. A Ring cannot be used: it moves keys to another server when one is down, and so gives
// one lock twice.
func (t *goRedisTransport) Topology() (Topology, error) {
	switch {
	case t.single != nil:
		o := t.single.Options()
		return Topology{Name: o.Addr, Failover: t.isSentinel, RepeatsAfter: min(o.MinRetryBackoff, o.MaxRetryBackoff, shortestPause)}, nil
	case t.cluster != nil:
		o := t.cluster.Options()
		name := strings.Join(o.Addrs, ", ")
		return Topology{Name: name, Cluster: true, RepeatsAfter: min(o.MinRetryBackoff, o.MaxRetryBackoff, shortestPause)}, nil
	}
	return Topology{}, invalid("the client must be a *redis.Client or a *redis.ClusterClient, not %T", t.rdb)
}

// hasProvider tells whether options have a provider of credentials. The fields differ between versions of go-redis.
func hasProvider(options any) bool {
	for _, name := range []string{"CredentialsProvider", "CredentialsProviderContext", "StreamingCredentialsProvider"} {
		if field := reflect.ValueOf(options).Elem().FieldByName(name); field.IsValid() && !field.IsNil() {
			return true
		}
	}
	return false
}

// duplicate is a client with the program's options, except for time limits, the size of the pool, and what two clients
// must not share.
func (t *goRedisTransport) duplicate() redis.UniversalClient {
	set := func(options any) {
		for name, value := range map[string]any{
			"Protocol": 2, "ReadTimeout": callTimeout, "WriteTimeout": callTimeout, "PoolTimeout": callTimeout,
			"DialerRetries": 1, "PoolSize": 4, "MinIdleConns": 0, "MaxIdleConns": 0, "MaxActiveConns": 0, "Limiter": nil,
			"PushNotificationProcessor": nil, "MaintNotificationsConfig": nil, "ClientSideCache": nil, "ClientSideCacheConfig": nil,
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

// over is what a call goes over: the program's client, or connections that its commands cannot occupy, also while they
// occupy the whole pool.
func (t *goRedisTransport) over(isReserved bool) processor {
	at := monotonic()
	if t.single != nil && at-time.Duration(t.checked.Load()) > fullCheck {
		t.checked.Store(int64(at))
		stats := t.single.PoolStats()
		t.isFull.Store(stats.IdleConns == 0 && int(stats.TotalConns) >= t.single.Options().PoolSize)
	}
	if isReserved || t.isFull.Load() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.reserved == nil && !t.isClosed && !t.isSentinel {
			t.reserved = t.duplicate()
		}
		if t.reserved != nil {
			return t.reserved
		}
	}
	switch {
	case t.single == nil:
		return t.cluster
	case !keepsHooks():
		return t.single
	}
	return t.program(at)
}

// keepsHooks is whether a client with other time limits has the hooks of its original: that of go-redis 9.9 has them, that
// of 9.19 has not.
var keepsHooks = sync.OnceValue(func() bool {
	p := &probe{}
	original := redis.NewClient(&redis.Options{Limiter: p, MaxRetries: -1})
	defer original.Close()
	original.AddHook(p)
	_ = original.WithTimeout(callTimeout).Ping(context.Background())
	return p.isHooked
})

// probe is a hook that notes whether commands come by, and a limiter that lets none connect.
type probe struct{ isHooked bool }

func (p *probe) Allow() error       { return errSilent }
func (p *probe) ReportResult(error) {}

func (p *probe) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p *probe) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		p.isHooked = true
		return next(ctx, cmd)
	}
}

func (p *probe) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// program is the program's client of a single server with our time limits. It shares the pool, and the hooks that the
// program had added when it was made.
func (t *goRedisTransport) program(at time.Duration) *redis.Client {
	if t.limited.Load() == nil || at-time.Duration(t.made.Load()) > hooksCheck {
		t.made.Store(int64(at))
		t.limited.Store(t.single.WithTimeout(callTimeout))
	}
	return t.limited.Load()
}

// Call sends a command. If go-redis may take long to notice that ctx is over, it goes on by itself; without a reply the
// command is sent again over the reserved connections, because the time limits may be the program's.
func (t *goRedisTransport) Call(ctx context.Context, call Call) (reply, then any, err error) {
	if t.isPrompt {
		return t.send(ctx, call)
	}
	patience := callTimeout
	if end, ok := ctx.Deadline(); ok {
		patience = max(shortestPause, min(patience, time.Until(end)/2))
	}
	came, silent := make(chan func(), 2), time.NewTimer(patience)
	defer silent.Stop()
	attempt := func() {
		this := call
		call.Reserved = !call.Reserved // the next one
		go func() {
			r, next, failed := t.send(ctx, this)
			came <- func() { reply, then, err = r, next, failed }
		}()
	}
	attempt()
	for attempts, pending := 1, 1; ; {
		select {
		case note := <-came:
			note()
			pending--
			var unusable *UnusableError
			if err == nil || errors.As(err, &unusable) || attempts == 2 && pending == 0 {
				return reply, then, err
			}
			silent.Reset(shortestPause)
		case <-silent.C:
			if attempts == 1 {
				attempts, pending = 2, pending+1
				attempt()
			}
		case <-ctx.Done():
			return nil, nil, cmp.Or(err, ctx.Err())
		}
	}
}

func (t *goRedisTransport) send(ctx context.Context, call Call) (reply, then any, err error) {
	over, cmd := t.over(call.Reserved), redis.NewCmd(ctx, call.Command...)
	cmd.SetFirstKeyPos(call.KeyAt)
	switch {
	case call.Key == "":
		reply, err = t.everywhere(ctx, over, call.Command)
		return reply, nil, err
	case len(call.Then) == 0:
		_ = over.Process(ctx, cmd)
		reply, err = t.reply(cmd)
		return reply, nil, err
	case t.cluster != nil: // a command without a key goes to the same node
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
func (t *goRedisTransport) everywhere(ctx context.Context, over processor, command []any) (any, error) {
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
	var err error
	if t.cluster == nil {
		err = ask(ctx, over)
	} else {
		err = t.cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return ask(ctx, node) })
	}
	return replies, err
}

// reply is the reply to a command, or the error that there is none.
func (t *goRedisTransport) reply(cmd *redis.Cmd) (any, error) {
	value, err := cmd.Result()
	var reply redis.Error
	isReply := errors.As(err, &reply)
	switch isLogin := isReply && (redis.HasErrorPrefix(reply, "WRONGPASS") || redis.HasErrorPrefix(reply, "NOAUTH")); {
	case err == nil || errors.Is(err, redis.Nil):
		return value, nil
	case errors.Is(err, redis.ErrClosed) && !t.isSentinel:
		return nil, &UnusableError{err}
	case isReply && !(isLogin && t.hasRotated):
		return &ReplyError{err}, nil
	case t.cluster != nil:
		t.cluster.ReloadState(context.Background())
	}
	return nil, err
}

// Close ends what the Transport has made.
func (t *goRedisTransport) Close() (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.isClosed = true
	if client, ok := t.reserved.(redis.UniversalClient); ok && t.reserved != processor(t.cluster) {
		t.reserved, err = nil, client.Close()
	}
	return err
}

// subscription is the channels of one server, over one connection. go-redis tests it, and subscribes again when it is
// lost.
type subscription struct {
	node     *redis.Client
	pubsub   *redis.PubSub
	channels map[string]subscriber // guarded by the transport
}

type subscriber struct {
	heard   func(payload string)
	changed func()
}

// Listen subscribes to a channel.
func (t *goRedisTransport) Listen(channel string, heard func(payload string), changed func()) (stop func()) {
	node := t.single
	if t.cluster != nil {
		ctx, end := context.WithTimeout(context.Background(), callTimeout)
		defer end()
		if node, _ = t.cluster.MasterForKey(ctx, channel); node == nil {
			return func() {} // the request finds no subscriber, and listens again
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.subscriptions[node]; s != nil {
		s.channels[channel] = subscriber{heard, changed}
		go s.pubsub.SSubscribe(context.Background(), channel)
	} else {
		t.subscribe(node, map[string]subscriber{channel: {heard, changed}})
	}
	return func() { t.leave(node, channel) }
}

// subscribe makes a connection for channels. The transport is locked.
func (t *goRedisTransport) subscribe(node *redis.Client, channels map[string]subscriber) {
	from := node
	if t.single != nil {
		from = t.program(monotonic())
	}
	names := slices.Collect(maps.Keys(channels))
	s := &subscription{node: node, pubsub: from.SSubscribe(context.Background(), names...), channels: channels}
	t.subscriptions[node] = s
	go t.read(s)
	if t.isSentinel && node.Options().PoolSize > 1 {
		go t.follow(s, from.Conn())
	}
}

// leave ends a channel, and the connection with the last one.
func (t *goRedisTransport) leave(node *redis.Client, channel string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.subscriptions[node]
	if s == nil {
		return
	}
	if delete(s.channels, channel); len(s.channels) > 0 {
		_ = s.pubsub.SUnsubscribe(context.Background(), channel)
		return
	}
	delete(t.subscriptions, node)
	_ = s.pubsub.Close()
}

// read hands on what arrives, until the subscription is closed.
func (t *goRedisTransport) read(s *subscription) {
	channel := func(name string) subscriber {
		t.mu.Lock()
		defer t.mu.Unlock()
		return s.channels[name]
	}
	for message := range s.pubsub.ChannelWithSubscriptions(redis.WithChannelSize(1000)) {
		switch m := message.(type) {
		case *redis.Message:
			if c := channel(m.Channel); c.heard != nil {
				c.heard(m.Payload)
			}
		case *redis.Subscription:
			if c := channel(m.Channel); c.changed != nil {
				c.changed()
			}
		}
	}
}

// follow keeps one connection of the pool for renewals. go-redis closes it at the moment in which Sentinel names another
// primary. Then the subscription, which may stay with the former one, is made again.
func (t *goRedisTransport) follow(s *subscription, kept *redis.Conn) {
	defer kept.Close()
	for isUp := true; isUp; time.Sleep(primaryCheck) {
		err := kept.Ping(context.Background()).Err()
		t.mu.Lock()
		isCurrent := t.subscriptions[s.node] == s
		isUp = isCurrent && (err == nil || errors.Is(err, redis.ErrPoolTimeout))
		if isUp {
			t.reserved = kept
		} else if t.reserved == processor(kept) {
			t.reserved = nil
		}
		channels := slices.Collect(maps.Values(s.channels))
		if isCurrent && !isUp {
			t.subscribe(s.node, s.channels)
		}
		t.mu.Unlock()
		if isCurrent && !isUp {
			_ = s.pubsub.Close()
			for _, c := range channels {
				c.changed()
			}
			return
		}
	}
}
