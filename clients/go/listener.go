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
	// pingEvery is how long a listening connection may be silent while somebody waits. Then it is tested, and the
	// answer may take as long.
	pingEvery = 5 * time.Second
	// mostMessages is how many messages and answers to one request are kept until it takes them.
	mostMessages = 4
)

// errConnectionLost is what a listening connection ends with. It is no Error: requests are asked again after it.
var errConnectionLost = errors.New("the listening connection was lost")

// listener is what a Locks hears the ends of waits by.
type listener struct {
	servers *servers
	closed  context.Context // done when the connections have to end
	denied  atomic.Bool     // the user may not subscribe

	mu          sync.Mutex
	channels    map[uint16]*channel      // by the slot of the keys; without a cluster it is 0
	connections map[string]*subscription // by the address of the node
	tags        map[string]chan<- heard  // where the messages of a tag go
	last        uint64                   // the last tag
}

// channel is one that is subscribed to. It is not used again after it was lost.
type channel struct {
	slot       uint16
	name       string
	connection *subscription   // nil before it is subscribed to; guarded by the listener
	ready      context.Context // done when the server has confirmed the subscription
	confirm    context.CancelFunc
	gone       context.Context // done when the subscription has ended; its cause is why
	lose       context.CancelCauseFunc
}

func newListener(s *servers, closed context.Context) *listener {
	return &listener{
		servers: s, closed: closed,
		channels: map[uint16]*channel{}, connections: map[string]*subscription{}, tags: map[string]chan<- heard{},
	}
}

// isForbidden tells whether requests for the key cannot wait by NOTIFY.
func (l *listener) isForbidden(key string) bool {
	_, ok := l.place(key)
	return !ok || l.denied.Load()
}

func (l *listener) forbid(err error) {
	if l.denied.CompareAndSwap(false, true) {
		l.servers.report.blocks(err)
	}
}

// isAboutChannels tells a refusal of the channel from one of the keys or of the command.
func isAboutChannels(err error) bool { return strings.Contains(err.Error(), "channel") }

// place is the part of a key that tells its slot. In a cluster a channel has to be in the slot of the keys, so it has
// that in its name. There is none for a key that is hashed as a whole and has a brace in it.
func (l *listener) place(key string) (string, bool) {
	if l.servers.cluster == nil {
		return "", true
	}
	if start := strings.IndexByte(key, '{'); start >= 0 {
		if end := strings.IndexByte(key[start+1:], '}'); end > 0 {
			return key[start+1 : start+1+end], true
		}
	}
	return key, key != "" && !strings.Contains(key, "}")
}

// slotOf is the slot of a cluster, by CRC16/XMODEM.
func slotOf(place string) (slot uint16) {
	for _, b := range []byte(place) {
		slot ^= uint16(b) << 8
		for range 8 {
			carry := slot >> 15
			slot = slot<<1 ^ carry*0x1021
		}
	}
	return slot % 16384
}

// channel is the one for the key. If there is none it subscribes to one, or gives nil. The caller waits until it is
// ready or lost.
func (l *listener) channel(key string, subscribe bool) *channel {
	place, _ := l.place(key)
	slot := slotOf(place)
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.channels[slot]
	if c != nil || !subscribe {
		return c
	}
	c = &channel{slot: slot, name: "waits:" + newToken()}
	if place != "" {
		c.name = "{" + place + "}." + c.name
	}
	c.ready, c.confirm = context.WithCancel(context.Background())
	c.gone, c.lose = context.WithCancelCause(context.Background())
	l.channels[slot] = c
	go l.subscribe(c, key)
	return c
}

// subscribe connects if need be. It belongs to no request: one that is cancelled takes nothing from the others.
func (l *listener) subscribe(c *channel, key string) {
	n, err := l.servers.find(l.closed, time.Now().Add(pingEvery), key)
	if err != nil {
		l.remove(c, err)
		return
	}
	address := n.client.Options().Addr
	l.mu.Lock()
	s := l.connections[address]
	if s == nil {
		s = newSubscription(n, l)
		l.connections[address] = s
	}
	c.connection = s
	l.mu.Unlock()
	if err := s.pubsub.SSubscribe(s.ending, c.name); err != nil {
		s.close(err)
	}
}

// remove forgets a channel that is lost, so that the next request subscribes to a new one.
func (l *listener) remove(c *channel, err error) {
	l.mu.Lock()
	if l.channels[c.slot] == c {
		delete(l.channels, c.slot)
	}
	l.mu.Unlock()
	l.servers.note(err)
	c.lose(err)
}

// addTag has the messages of a new tag come.
func (l *listener) addTag(messages chan<- heard) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	tag := strconv.FormatUint(l.last, 10)
	l.tags[tag] = messages
	return tag
}

func (l *listener) removeTag(tag string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.tags, tag)
}

// deliver hands a message "<n> <tag>" to the request of the tag. Nobody waits for others.
func (l *listener) deliver(payload string) {
	answer, tag, _ := strings.Cut(payload, " ")
	var h heard
	h.fence, h.err = readMessage(answer)
	l.mu.Lock()
	messages := l.tags[tag]
	l.mu.Unlock() // who is woken may need it
	select {
	case messages <- h: // blocks for ever where the tag is not known
	default:
	}
}

// isAwaited tells whether somebody waits for a message.
func (l *listener) isAwaited() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.tags) > 0
}

// subscription is one connection that listens. It never connects again: when it is lost, so are its channels,
// because the server has forgotten the requests.
type subscription struct {
	listener *listener
	client   *redis.Client
	pubsub   *redis.PubSub
	ending   context.Context // done when the connection is closed
	end      context.CancelFunc
}

func newSubscription(n *node, l *listener) *subscription {
	options := *n.client.Options()
	s := &subscription{listener: l}
	s.ending, s.end = context.WithCancel(l.closed)
	options.PoolSize = 1
	options.ReadTimeout = 3 * time.Second // for the answers when the connection is made
	dial, once := options.Dialer, make(chan struct{}, 1)
	// go-redis connects again by itself, and would hide the loss.
	options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		select {
		case once <- struct{}{}:
		default:
			return nil, errConnectionLost
		}
		connection, err := dial(ctx, network, address)
		if err == nil { // go-redis cannot close a connection that it is still making
			context.AfterFunc(s.ending, func() { _ = connection.Close() })
		}
		return connection, err
	}
	s.client = redis.NewClient(&options)
	s.pubsub = s.client.SSubscribe(context.Background())
	go s.read()
	return s
}

// read hands on what arrives, until the connection is lost: while somebody waits it may not be silent for long.
func (s *subscription) read() {
	for tested := false; ; {
		message, err := s.pubsub.ReceiveTimeout(context.Background(), pingEvery)
		wasTested := tested
		tested = isSilence(err) && s.listener.isAwaited() // else nobody misses anything
		var reply redis.Error
		switch {
		case err == nil:
			s.handle(message)
		case errors.As(err, &reply):
			s.refused(err)
		case tested && !wasTested:
			_ = s.pubsub.Ping(s.ending) // the next read says whether it failed
		case tested || !isSilence(err):
			s.close(err)
			return
		}
	}
}

func (s *subscription) handle(message any) {
	switch message := message.(type) {
	case *redis.Message:
		s.listener.deliver(message.Payload)
	case *redis.Subscription:
		for _, c := range s.channels() {
			if c.name == message.Channel && message.Kind == "ssubscribe" {
				c.confirm()
			} else if c.name == message.Channel { // the slot has moved, or the server has become a replica
				s.listener.remove(c, errAskAgain)
			}
		}
	}
}

// refused handles an error. It does not say for which channel: those that are not ready are subscribed to again.
func (s *subscription) refused(err error) {
	if hasCode(err, "NOPERM") {
		s.listener.forbid(err)
	}
	for _, c := range s.channels() {
		if c.ready.Err() == nil {
			s.listener.remove(c, err)
		}
	}
}

// channels are those of the connection.
func (s *subscription) channels() (all []*channel) {
	s.listener.mu.Lock()
	defer s.listener.mu.Unlock()
	for _, c := range s.listener.channels {
		if c.connection == s {
			all = append(all, c)
		}
	}
	return all
}

// close ends the connection and all its channels.
func (s *subscription) close(err error) {
	address := s.client.Options().Addr
	s.listener.mu.Lock()
	wasOpen := s.listener.connections[address] == s
	if wasOpen {
		delete(s.listener.connections, address)
	}
	s.listener.mu.Unlock()
	if !wasOpen {
		return
	}
	s.end()
	for _, c := range s.channels() {
		s.listener.remove(c, err)
	}
	_ = s.pubsub.Close()
	_ = s.client.Close()
}
