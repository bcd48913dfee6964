// SPDX-License-Identifier: MIT OR Apache-2.0

package slock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file meets go-redis. Commands go through the program's client, so what instruments that sees them. Renewals and
// subscriptions go through a second client with the same options, which no command of the program can keep busy; a client
// of Sentinel has no second one that would hear of failovers, so there one connection of its pool is kept.

const (
	// ownTimeout is the time limit of a read or write of our own clients.
	ownTimeout = 800 * time.Millisecond
	// hooksCheck is how soon hooks that the program adds to its client see the calls.
	hooksCheck = time.Second
	// seekAgain is how long a subscription is waited for before the primary of its slot is looked for again, at first.
	seekAgain = 50 * time.Millisecond
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
	rdb        redis.UniversalClient // of the program
	own        redis.UniversalClient // a second one with its options; nil: it would not hear of failovers
	topology   Topology
	hasRotated bool // credentials come from a provider, so a refused login may succeed later

	made    atomic.Int64 // when limited was made
	limited atomic.Pointer[redis.Client]

	mu            sync.Mutex
	reserved      processor // what the program's commands cannot occupy; nil: nothing now
	subscriptions map[*redis.Client]*subscription
}

// processor is a client of go-redis, or a connection of one.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

func goRedis(rdb redis.UniversalClient) *goRedisTransport {
	t := &goRedisTransport{rdb: rdb, subscriptions: map[*redis.Client]*subscription{}}
	switch client := rdb.(type) {
	case *redis.Client:
		o := *client.Options()
		t.topology = Topology{
			Name: o.Addr, Failover: o.Addr == "FailoverClient", RepeatsAfter: min(o.MinRetryBackoff, o.MaxRetryBackoff),
			Prompt: o.TLSConfig == nil && keepsHooks(), // go-redis connects by TLS without ctx
		}
		if t.hasRotated = adapt(&o); !t.topology.Failover {
			t.own = redis.NewClient(&o)
		}
	case *redis.ClusterClient:
		o := *client.Options()
		t.topology = Topology{
			Name: cmp.Or(strings.Join(o.Addrs, ", "), "cluster"), Cluster: true, RepeatsAfter: min(o.MinRetryBackoff, o.MaxRetryBackoff),
		}
		// With NewFailoverClusterClient, Sentinel tells only the program's client of another primary.
		if t.hasRotated = adapt(&o); o.ClusterSlots == nil {
			t.own = redis.NewClusterClient(&o)
		}
	}
	if t.own != nil {
		t.reserved = t.own
	}
	return t
}

// Topology describes the servers. A Ring cannot be used: it moves keys to another server when one is down, and so gives
// one lock twice.
func (t *goRedisTransport) Topology() (Topology, error) {
	if t.topology.Name == "" {
		return t.topology, invalid("the client must be a *redis.Client or a *redis.ClusterClient, not %T", t.rdb)
	}
	return t.topology, nil
}

// adapt makes options of the program those of our own client: with other time limits and another pool, and without what
// two clients must not share. It tells whether they have a provider of credentials. Not all versions have all fields.
func adapt(options any) (hasProvider bool) {
	fields := reflect.ValueOf(options).Elem()
	for name, value := range map[string]any{
		"Protocol": 2, "ReadTimeout": ownTimeout, "WriteTimeout": ownTimeout, "MaxRetries": -1, "DialerRetries": 1,
		"PoolSize": 4, "MinIdleConns": 0, "MaxIdleConns": 0, "MaxActiveConns": 0, "PushNotificationProcessor": nil,
		"MaintNotificationsConfig": nil, "ClientSideCache": nil, "ClientSideCacheConfig": nil,
	} {
		if field := fields.FieldByName(name); field.IsValid() && value != nil {
			field.Set(reflect.ValueOf(value))
		} else if field.IsValid() {
			field.SetZero()
		}
	}
	return slices.ContainsFunc(
		[]string{"CredentialsProvider", "CredentialsProviderContext", "StreamingCredentialsProvider"},
		func(name string) bool { field := fields.FieldByName(name); return field.IsValid() && !field.IsNil() },
	)
}

// keepsHooks is whether a client with other time limits has the hooks of its original. Since go-redis 9.15 it has not.
func keepsHooks() bool {
	var minor int
	_, err := fmt.Sscanf(redis.Version(), "9.%d.", &minor)
	return err == nil && minor < 15
}

// program is the program's client, if possible with our time limits. Then it shares the pool, and the hooks that the
// program had added when it was made.
func (t *goRedisTransport) program() redis.UniversalClient {
	if !t.topology.Prompt {
		return t.rdb
	}
	if at := monotonic(); t.limited.Load() == nil || at-time.Duration(t.made.Load()) > hooksCheck {
		t.made.Store(int64(at))
		t.limited.Store(t.rdb.(*redis.Client).WithTimeout(ownTimeout))
	}
	return t.limited.Load()
}

// Call sends a command.
func (t *goRedisTransport) Call(ctx context.Context, call Call) (reply, then any, err error) {
	over := processor(t.program())
	if call.Reserved != call.Again {
		t.mu.Lock()
		over = cmp.Or(t.reserved, over)
		t.mu.Unlock()
	}
	cluster, isCluster := over.(*redis.ClusterClient)
	switch {
	case call.Key == "":
		reply, err = t.everywhere(ctx, over, call)
		return reply, nil, err
	case len(call.Then) == 0:
		reply, err = t.send(ctx, over, call)
		return reply, nil, err
	case isCluster: // a command without a key goes to the same node
		if over, err = cluster.MasterForKey(ctx, call.Key); err != nil {
			return nil, nil, err
		}
	}
	cmd, next := redis.NewCmd(ctx, call.Command...), redis.NewCmd(ctx, call.Then...)
	pipeline := over.Pipeline()
	_, _ = pipeline.Process(ctx, cmd), pipeline.Process(ctx, next)
	_, _ = pipeline.Exec(ctx)
	if reply, err = t.reply(cmd); err == nil {
		then, err = t.reply(next)
	}
	return reply, then, err
}

func (t *goRedisTransport) send(ctx context.Context, over processor, call Call) (any, error) {
	cmd := redis.NewCmd(ctx, call.Command...)
	cmd.SetFirstKeyPos(call.KeyAt)
	_ = over.Process(ctx, cmd)
	return t.reply(cmd)
}

// everywhere sends a command to each primary.
func (t *goRedisTransport) everywhere(ctx context.Context, over processor, call Call) (any, error) {
	cluster, ok := over.(*redis.ClusterClient)
	if !ok {
		reply, err := t.send(ctx, over, call)
		return []any{reply}, err
	}
	var mu sync.Mutex
	var replies []any
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		reply, err := t.send(ctx, node, call)
		mu.Lock()
		defer mu.Unlock()
		replies = append(replies, reply)
		return err
	})
	return replies, err
}

// reply is the reply to a command, or the error that there is none.
func (t *goRedisTransport) reply(cmd *redis.Cmd) (any, error) {
	value, err := cmd.Result()
	if err == nil || err == redis.Nil {
		return value, nil
	}
	var reply redis.Error
	isReply := errors.As(err, &reply)
	isLogin := isReply && (redis.HasErrorPrefix(reply, "WRONGPASS") || redis.HasErrorPrefix(reply, "NOAUTH"))
	if isReply && !(isLogin && t.hasRotated) || errors.Is(err, redis.ErrClosed) && !t.topology.Failover {
		return &ReplyError{err}, nil
	}
	if cluster, ok := t.rdb.(*redis.ClusterClient); ok {
		cluster.ReloadState(context.Background())
	}
	return nil, err
}

// Close ends what the Transport has made. Calls go on over the program's client.
func (t *goRedisTransport) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reserved = nil
	if t.own != nil {
		_ = t.own.Close()
	}
}

// subscription is the channels of one server, over one connection. go-redis tests it, and subscribes again when it is
// lost.
type subscription struct {
	node     *redis.Client
	pubsub   *redis.PubSub
	channels map[string]func(message string, ok bool) // guarded by the transport
	turn     sync.Mutex                               // of settle
}

// Listen subscribes to a channel.
func (t *goRedisTransport) Listen(channel string, heard func(message string, ok bool)) (stop func()) {
	if cluster, ok := cmp.Or(t.own, t.rdb).(*redis.ClusterClient); ok {
		ctx, stop := context.WithCancel(context.Background())
		go t.seek(ctx, cluster, channel, heard)
		return stop
	}
	node, _ := cmp.Or(t.own, t.rdb).(*redis.Client)
	t.join(node, channel, heard)
	return func() {
		select {
		case <-t.leave(node, channel): // before its client is closed, because go-redis would log a lost connection
		case <-time.After(ownTimeout):
		}
	}
}

// seek subscribes on the primary that has the channel's slot, and leaves when ctx is over. Our client, which may have sent
// nothing since the slot moved, has to be told to look for it.
func (t *goRedisTransport) seek(
	ctx context.Context, cluster *redis.ClusterClient, channel string, heard func(message string, ok bool),
) {
	var at *redis.Client
	seeking, found := context.WithCancel(ctx)
	defer found()
	for pause := seekAgain; seeking.Err() == nil; pause = min(2*pause, ownTimeout) {
		limited, end := context.WithTimeout(seeking, ownTimeout)
		node, err := cluster.MasterForKey(limited, channel)
		end()
		if err == nil && node != at {
			t.leave(at, channel)
			at = node
			t.join(at, channel, func(message string, ok bool) {
				found()
				heard(message, ok)
			})
		}
		sleep(seeking, seeking, pause)
		cluster.ReloadState(seeking)
	}
	<-ctx.Done()
	t.leave(at, channel)
}

// join adds a channel to the connection of a server.
func (t *goRedisTransport) join(node *redis.Client, channel string, heard func(message string, ok bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.subscriptions[node]; s != nil {
		s.channels[channel] = heard
		go t.settle(s, channel)
	} else {
		t.subscribe(node, map[string]func(string, bool){channel: heard})
	}
}

// subscribe makes a connection for channels. The transport is locked.
func (t *goRedisTransport) subscribe(node *redis.Client, channels map[string]func(message string, ok bool)) {
	s := &subscription{node: node, pubsub: node.SSubscribe(context.Background()), channels: channels}
	t.subscriptions[node] = s
	go t.read(s)
	for channel := range channels {
		go t.settle(s, channel)
	}
	if t.topology.Failover && node.Options().PoolSize > 1 {
		go t.follow(s)
	}
}

// leave ends a channel, and the connection with the last one. It does not wait: left is closed after that.
func (t *goRedisTransport) leave(node *redis.Client, channel string) (left chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, left := t.subscriptions[node], make(chan struct{})
	if s == nil {
		close(left)
		return left
	}
	if delete(s.channels, channel); len(s.channels) == 0 {
		delete(t.subscriptions, node)
	}
	go func() {
		t.settle(s, channel)
		close(left)
	}()
	return left
}

// settle sends what the last join or leave of a channel wants. Before that go-redis may connect, which may take long.
func (t *goRedisTransport) settle(s *subscription, channel string) {
	s.turn.Lock()
	defer s.turn.Unlock()
	t.mu.Lock()
	isOver, isWanted := t.subscriptions[s.node] != s, s.channels[channel] != nil
	t.mu.Unlock()
	switch {
	case isOver:
		_ = s.pubsub.Close()
	case isWanted:
		_ = s.pubsub.SSubscribe(context.Background(), channel)
	default:
		_ = s.pubsub.SUnsubscribe(context.Background(), channel)
	}
}

// read hands on what arrives, until the subscription is closed.
func (t *goRedisTransport) read(s *subscription) {
	for event := range s.pubsub.ChannelWithSubscriptions(redis.WithChannelSize(1000)) {
		message, ok := event.(*redis.Message)
		if change, isChange := event.(*redis.Subscription); isChange {
			message = &redis.Message{Channel: change.Channel}
		}
		t.mu.Lock()
		heard := s.channels[message.Channel]
		t.mu.Unlock()
		if heard != nil {
			heard(message.Payload, ok)
		}
	}
}

// follow keeps one connection of the pool for renewals. go-redis closes it at the moment in which Sentinel names another
// primary. Then the subscription, which may stay with the former one, is made again, and its confirmation tells that
// messages may have been missed.
func (t *goRedisTransport) follow(s *subscription) {
	kept := t.program().(*redis.Client).Conn()
	defer kept.Close()
	for isCurrent, isMoved := true, false; isCurrent && !isMoved; time.Sleep(primaryCheck) {
		err := kept.Ping(context.Background()).Err()
		t.mu.Lock()
		isCurrent = t.subscriptions[s.node] == s
		isMoved = isCurrent && err != nil && !errors.Is(err, redis.ErrPoolTimeout)
		if t.reserved = nil; isCurrent && !isMoved {
			t.reserved = kept
		}
		if isMoved {
			t.subscribe(s.node, s.channels)
			go s.pubsub.Close()
		}
		t.mu.Unlock()
	}
}
