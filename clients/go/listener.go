package slock

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file has the connections that listen: channels that are subscribed to, and tags, by which each request gets
// its own messages. It knows nothing of what they say.

const (
	// pingEvery is how often a listening connection is tested while somebody waits, and how long the answer may take.
	pingEvery = 5 * time.Second
	// mostIdleChannels is how many channels are kept that nobody uses. In a cluster each hash tag has one of its own.
	mostIdleChannels = 256
)

// errConnectionLost is what a listening connection ends with. It is no Error: requests are asked again after it.
var errConnectionLost = errors.New("the listening connection was lost")

// listener is what a Locks hears the ends of waits by.
type listener struct {
	servers *servers
	denied  atomic.Bool // the user may not subscribe

	mu          sync.Mutex
	closed      bool
	channels    map[string]*channel      // by place: the hash tag in a cluster, else ""
	connections map[string]*subscription // by the address of the node
}

func newListener(s *servers) *listener {
	return &listener{servers: s, channels: map[string]*channel{}, connections: map[string]*subscription{}}
}

// isForbidden tells whether requests for the key cannot wait by NOTIFY.
func (l *listener) isForbidden(key string) bool {
	if l.denied.Load() {
		return true
	}
	_, ok := l.place(key)
	return !ok
}

func (l *listener) forbid(err error) {
	if l.denied.CompareAndSwap(false, true) {
		l.servers.report.blocks(err)
	}
}

// isAboutChannels tells a refusal of the channel from one of the keys or of the command.
func isAboutChannels(err error) bool { return strings.Contains(err.Error(), "channel") }

// place names the channel of a key. In a cluster a channel has to be in the slot of the keys, so it has their
// hash tag in its name. There is none for a key that is hashed as a whole and has a brace in it.
func (l *listener) place(key string) (string, bool) {
	if !l.servers.isCluster() {
		return "", true
	}
	if start := strings.IndexByte(key, '{'); start >= 0 {
		if end := strings.IndexByte(key[start+1:], '}'); end > 0 {
			return key[start+1 : start+1+end], true
		}
	}
	return key, key != "" && !strings.Contains(key, "}")
}

// use is the channel for the key, and notes its use. If there is none it subscribes to one, or gives nil. The caller
// waits until the channel is ready or lost.
func (l *listener) use(key string, subscribe bool) (*channel, error) {
	place, _ := l.place(key)
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.channels[place]
	switch {
	case c != nil && c.gone.Err() == nil:
	case !subscribe:
		return nil, nil
	case l.closed:
		return nil, ErrClosed
	default:
		c = newChannel(place)
		l.channels[place] = c
		go l.subscribe(c, key)
	}
	c.users++
	return c, nil
}

// subscribe connects if need be. It belongs to no request: one that is cancelled takes nothing from the others.
func (l *listener) subscribe(c *channel, key string) {
	n, err := l.servers.find(context.Background(), time.Now().Add(pingEvery), key)
	if err != nil {
		c.lose(err)
		return
	}
	l.mu.Lock()
	connection := l.connections[n.address]
	if connection == nil || connection.ending.Err() != nil {
		connection = newSubscription(n, l)
		l.connections[n.address] = connection
	}
	closed := l.closed
	l.mu.Unlock()
	if closed {
		connection.close(ErrClosed)
	}
	connection.subscribe(c)
}

// leave notes that a request no longer uses the channel, and lets go of channels that nobody uses.
func (l *listener) leave(c *channel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.users--
	if len(l.channels) <= mostIdleChannels {
		return
	}
	for place, idle := range l.channels {
		if idle.users == 0 {
			delete(l.channels, place)
			go idle.drop()
		}
	}
}

// lost forgets a channel, so that the next request subscribes to a new one.
func (l *listener) lost(c *channel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.channels[c.place] == c {
		delete(l.channels, c.place)
	}
}

// isUsed tells whether some request uses a channel of the connection.
func (l *listener) isUsed(connection *subscription) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.channels {
		if c.users > 0 && c.connection.Load() == connection {
			return true
		}
	}
	return false
}

func (l *listener) close() {
	l.mu.Lock()
	l.closed = true
	connections := l.connections
	l.connections = map[string]*subscription{}
	l.mu.Unlock()
	for _, connection := range connections {
		connection.close(ErrClosed)
	}
}

// channel is one that is subscribed to, with the requests that wait for a message on it. It is not used again after
// it was lost.
type channel struct {
	place string
	name  string
	users int // requests that use it; guarded by the listener

	connection atomic.Pointer[subscription]
	ready      chan struct{}   // closed when the server has confirmed the subscription
	gone       context.Context // done when the subscription has ended; its cause is why
	lose       context.CancelCauseFunc

	mu   sync.Mutex
	tags map[string]chan<- string // where the messages of a tag go
}

func newChannel(place string) *channel {
	name := "waits:" + newToken()
	if place != "" {
		name = "{" + place + "}." + name
	}
	c := &channel{place: place, name: name, ready: make(chan struct{}), tags: map[string]chan<- string{}}
	c.gone, c.lose = context.WithCancelCause(context.Background())
	return c
}

// note has the messages of a tag go there. Without a place to go, they are ignored.
func (c *channel) note(tag string, messages chan<- string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if messages == nil {
		delete(c.tags, tag)
	} else {
		c.tags[tag] = messages
	}
}

// deliver hands a message "<n> <tag>" to the request of the tag. Nobody waits for others.
func (c *channel) deliver(payload string) {
	answer, tag, _ := strings.Cut(payload, " ")
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case c.tags[tag] <- answer: // blocks for ever where the tag is not known
	default:
	}
}

func (c *channel) isReady() bool {
	select {
	case <-c.ready:
		return true
	default:
		return false
	}
}

// drop ends a subscription that nobody uses. Its name is not used again.
func (c *channel) drop() {
	c.lose(errAskAgain)
	if connection := c.connection.Load(); connection != nil {
		connection.unsubscribe(c)
	}
}

// subscription is one connection that listens. It never connects again: when it is lost, so are its channels,
// because the server has forgotten the requests.
type subscription struct {
	listener *listener
	client   *redis.Client
	pubsub   *redis.PubSub
	ending   context.Context // done when the connection is closed
	end      context.CancelFunc

	mu       sync.Mutex
	channels map[string]*channel // by name
	pinged   bool                // nothing has come since the last PING
	timer    *time.Timer
}

func newSubscription(n *node, l *listener) *subscription {
	s := &subscription{listener: l, channels: map[string]*channel{}}
	s.ending, s.end = context.WithCancel(context.Background())
	options := n.options
	options.PoolSize = 1
	if options.ReadTimeout <= 0 { // for the answers when the connection is made: messages are read without an end
		options.ReadTimeout = 3 * time.Second
	}
	dial := options.Dialer
	var dialed atomic.Bool
	// go-redis connects again by itself, and would hide the loss.
	options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dialed.Load() {
			return nil, errConnectionLost
		}
		connection, err := dial(ctx, network, address)
		if err == nil {
			dialed.Store(true)
			// go-redis cannot close a connection that it is still making.
			context.AfterFunc(s.ending, func() { _ = connection.Close() })
		}
		return connection, err
	}
	s.client = redis.NewClient(&options)
	s.pubsub = s.client.SSubscribe(context.Background())
	return s
}

// subscribe asks for the channel. The channel is ready or lost later.
func (s *subscription) subscribe(c *channel) {
	c.connection.Store(s)
	s.mu.Lock()
	if s.ending.Err() != nil {
		s.mu.Unlock()
		c.lose(errConnectionLost)
		return
	}
	first := s.timer == nil
	if first {
		s.timer = time.AfterFunc(pingEvery, s.test)
	}
	s.channels[c.name] = c
	s.mu.Unlock()
	if err := s.pubsub.SSubscribe(s.ending, c.name); err != nil {
		s.close(err)
		return
	}
	if first {
		go s.read()
	}
}

// unsubscribe lets go of a channel that is not used again.
func (s *subscription) unsubscribe(c *channel) {
	s.mu.Lock()
	delete(s.channels, c.name)
	s.mu.Unlock()
	if err := s.pubsub.SUnsubscribe(context.Background(), c.name); err != nil {
		s.close(err)
	}
}

// read hands on what arrives, until the connection is lost.
func (s *subscription) read() {
	for s.ending.Err() == nil {
		message, err := s.pubsub.ReceiveTimeout(context.Background(), 0)
		s.mu.Lock()
		s.pinged = false
		s.mu.Unlock()
		var reply redis.Error
		switch {
		case err == nil:
			s.handle(message)
		case errors.As(err, &reply):
			s.refused(err)
		default:
			s.close(err)
		}
	}
}

func (s *subscription) handle(message any) {
	switch message := message.(type) {
	case *redis.Message:
		if c := s.channel(message.Channel); c != nil {
			c.deliver(message.Payload)
		}
	case *redis.Subscription:
		c := s.channel(message.Channel)
		switch {
		case c == nil: // this program lets go only of channels that it has forgotten before
		case message.Kind == "ssubscribe":
			close(c.ready)
		case message.Kind == "sunsubscribe": // the slot has moved, or the server has become a replica
			s.remove(c, errAskAgain)
		}
	}
}

// refused handles an error. It does not say for which channel: those that are not ready are subscribed to again.
func (s *subscription) refused(err error) {
	if hasCode(err, "NOPERM") {
		s.listener.forbid(err)
	}
	s.mu.Lock()
	channels := slices.Collect(maps.Values(s.channels))
	s.mu.Unlock()
	for _, c := range channels {
		if !c.isReady() {
			s.remove(c, err)
		}
	}
}

// remove loses one channel.
func (s *subscription) remove(c *channel, err error) {
	s.mu.Lock()
	delete(s.channels, c.name)
	s.mu.Unlock()
	s.listener.lost(c)
	s.listener.servers.note(err)
	c.lose(err)
}

func (s *subscription) channel(name string) *channel {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.channels[name]
}

// test sends a PING while somebody waits, and ends the connection when the last one was not answered.
func (s *subscription) test() {
	used := s.listener.isUsed(s)
	s.mu.Lock()
	if s.ending.Err() != nil {
		s.mu.Unlock()
		return
	}
	lost := s.pinged
	s.pinged = used
	s.timer.Reset(pingEvery)
	s.mu.Unlock()
	switch {
	case lost:
		s.close(errConnectionLost)
	case used:
		if err := s.pubsub.Ping(s.ending); err != nil {
			s.close(err)
		}
	}
}

// close ends the connection and all its channels.
func (s *subscription) close(err error) {
	s.mu.Lock()
	if s.ending.Err() != nil {
		s.mu.Unlock()
		return
	}
	s.end()
	if s.timer != nil {
		s.timer.Stop()
	}
	channels := s.channels
	s.channels = nil
	s.mu.Unlock()
	for _, c := range channels {
		s.listener.lost(c)
		c.lose(err)
	}
	_ = s.pubsub.Close()
	_ = s.client.Close()
	s.listener.servers.note(err)
}
