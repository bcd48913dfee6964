package slock

import (
	"context"
	"errors"
	"net"
	"strconv"
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
	// mostTags is how many tags of one request are kept.
	mostTags = 16
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

// standing is the channel for the key if there is one that is not lost, and notes its use.
func (l *listener) standing(key string) *channel {
	place, _ := l.place(key)
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.channels[place]
	if c == nil || c.isLost() {
		return nil
	}
	c.users[key]++
	return c
}

// open is the channel for the key, subscribed now if there was none, and notes its use. The caller waits
// until the channel is ready or lost.
func (l *listener) open(key string) (*channel, error) {
	place, _ := l.place(key)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	c := l.channels[place]
	if c == nil || c.isLost() {
		c = newChannel(place)
		l.channels[place] = c
		go l.subscribe(c, key)
	}
	c.users[key]++
	return c, nil
}

// subscribe connects if need be. It belongs to no request: one that is cancelled takes nothing from the others.
func (l *listener) subscribe(c *channel, key string) {
	n, err := l.servers.node(context.Background(), key)
	if err != nil {
		l.servers.note(err)
		c.lose(err)
		return
	}
	l.mu.Lock()
	connection := l.connections[n.address]
	if connection == nil || connection.isClosed() {
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
func (l *listener) leave(c *channel, key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.users[key]--; c.users[key] == 0 {
		delete(c.users, key)
	}
	if len(l.channels) <= mostIdleChannels {
		return
	}
	for place, idle := range l.channels {
		if len(idle.users) == 0 {
			delete(l.channels, place)
			go idle.drop()
		}
	}
}

// count is how many requests for the key use the channel.
func (l *listener) count(c *channel, key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return c.users[key]
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
		if len(c.users) > 0 && c.connection.Load() == connection {
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
	users map[string]int // how many requests use it, by their first key; guarded by the listener

	connection atomic.Pointer[subscription]
	ready      chan struct{} // closed when the server has confirmed the subscription
	gone       chan struct{} // closed when the subscription has ended

	mu   sync.Mutex
	err  error                    // why it has ended
	tags map[string]chan<- string // where the message of a tag goes
	last uint64                   // the number of the last tag
}

func newChannel(place string) *channel {
	name := "waits:" + newToken()
	if place != "" {
		name = "{" + place + "}." + name
	}
	return &channel{
		place: place, name: name,
		ready: make(chan struct{}), gone: make(chan struct{}), users: map[string]int{}, tags: map[string]chan<- string{},
	}
}

// deliver hands a message "<n> <tag>" to the request of the tag. Nobody waits for others.
func (c *channel) deliver(payload string) {
	answer, tag, _ := strings.Cut(payload, " ")
	c.mu.Lock()
	defer c.mu.Unlock()
	if messages := c.tags[tag]; messages != nil {
		delete(c.tags, tag)
		messages <- answer // it has room for one message of each tag
	}
}

func (c *channel) lose(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.gone)
	}
}

func (c *channel) isLost() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// reason is why the channel was lost.
func (c *channel) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// drop ends a subscription that nobody uses. Its name is not used again.
func (c *channel) drop() {
	c.lose(errAskAgain)
	if connection := c.connection.Load(); connection != nil {
		connection.unsubscribe(c)
	}
}

// tags are those that one request has sent. They are all kept: a repetition that arrives late takes the message to
// its own tag.
type tags struct {
	messages chan string
	sent     []tag
}

type tag struct {
	channel *channel
	name    string
}

// add takes a new tag. Its message will be among the messages.
func (t *tags) add(c *channel) string {
	if t.messages == nil {
		t.messages = make(chan string, mostTags)
	}
	if len(t.sent) == mostTags {
		t.sent[0].forget()
		t.sent = t.sent[1:]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	added := tag{channel: c, name: strconv.FormatUint(c.last, 36)}
	t.sent = append(t.sent, added)
	c.tags[added.name] = t.messages
	return added.name
}

// channel is that of the last tag, or nil.
func (t *tags) channel() *channel {
	if len(t.sent) == 0 {
		return nil
	}
	return t.sent[len(t.sent)-1].channel
}

func (t *tags) forget() {
	for _, sent := range t.sent {
		sent.forget()
	}
}

func (t tag) forget() {
	t.channel.mu.Lock()
	defer t.channel.mu.Unlock()
	delete(t.channel.tags, t.name)
}

// subscription is one connection that listens. It never connects again: when it is lost, so are its channels,
// because the server has forgotten the requests.
type subscription struct {
	listener *listener
	client   *redis.Client
	pubsub   *redis.PubSub
	ending   context.Context // done when the connection is closed
	end      context.CancelFunc

	sending sync.Mutex // held while a command is written, so that expected has the order of the commands

	mu       sync.Mutex
	closed   bool
	channels map[string]*channel // by name
	expected []*channel          // whose subscriptions are to be confirmed next; nil for a PING
	pinged   bool                // a PING has not been answered
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
	if s.closed {
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
	err := s.write(c, func(ctx context.Context) error { return s.pubsub.SSubscribe(ctx, c.name) })
	if err != nil {
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
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.pubsub.SUnsubscribe(context.Background(), c.name); err != nil {
		s.close(err)
	}
}

// write sends what is answered by a confirmation for the channel, or by a pong.
func (s *subscription) write(c *channel, send func(context.Context) error) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	s.expected = append(s.expected, c)
	s.mu.Unlock()
	return send(s.ending)
}

// read hands on what arrives, until the connection is lost.
func (s *subscription) read() {
	for !s.isClosed() {
		message, err := s.pubsub.ReceiveTimeout(context.Background(), 0)
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
	case *redis.Pong:
		s.next()
	case *redis.Subscription:
		switch message.Kind {
		case "ssubscribe":
			if c := s.next(); c != nil {
				close(c.ready)
			}
		case "sunsubscribe":
			// The slot has moved, or the server has become a replica: this program lets go only of channels
			// that it has forgotten before.
			if c := s.channel(message.Channel); c != nil {
				s.remove(c, errAskAgain)
			}
		}
	}
}

// refused handles an error instead of a confirmation or a pong.
func (s *subscription) refused(err error) {
	c := s.next()
	if c == nil {
		return
	}
	if hasCode(err, "NOPERM") {
		s.listener.forbid(err)
	}
	s.remove(c, err)
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

// next is what the answer that came is for.
func (s *subscription) next() *channel {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.expected) == 0 {
		return nil
	}
	c := s.expected[0]
	s.expected = s.expected[1:]
	if c == nil {
		s.pinged = false
	}
	return c
}

// test sends a PING while somebody waits, and ends the connection when the last one was not answered.
func (s *subscription) test() {
	used := s.listener.isUsed(s)
	s.mu.Lock()
	if s.closed {
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
		err := s.write(nil, func(ctx context.Context) error { return s.pubsub.Ping(ctx) })
		if err != nil {
			s.close(err)
		}
	}
}

func (s *subscription) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// close ends the connection and all its channels.
func (s *subscription) close(err error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
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
	s.end()
	_ = s.pubsub.Close()
	_ = s.client.Close()
	s.listener.servers.note(err)
}
