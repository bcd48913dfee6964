package slock

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// pingEvery is how often the connection is tested while somebody waits, and how long the answer may take.
const pingEvery = 5 * time.Second

// errConnectionLost is what a listening connection ends with. It is no Error: requests are asked again after
// it.
var errConnectionLost = errors.New("the listening connection was lost")

// listener is one connection that listens. It never connects again: when it is lost, so are its channels,
// because the server has forgotten the requests.
type listener struct {
	listening *listening
	client    *redis.Client
	pubsub    *redis.PubSub
	ending    context.Context // done when the connection is closed
	end       context.CancelFunc

	sending sync.Mutex // held while a command is written, so that expected has the order of the commands

	mu       sync.Mutex
	closed   bool
	channels map[string]*channel // by name
	expected []*channel          // whose subscriptions are to be confirmed next; nil for a PING
	pinged   bool                // a PING has not been answered
	timer    *time.Timer
}

func newListener(node *redis.Client, owner *listening) *listener {
	options := withoutTimeouts(node)
	options.PoolSize = 1
	// It ends only the wait for the answers when the connection is made: messages are read without an end.
	if options.ReadTimeout = node.Options().ReadTimeout; options.ReadTimeout <= 0 {
		options.ReadTimeout = 3 * time.Second
	}
	l := &listener{listening: owner, channels: map[string]*channel{}}
	l.ending, l.end = context.WithCancel(context.Background())
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
			context.AfterFunc(l.ending, func() { _ = connection.Close() })
		}
		return connection, err
	}
	l.client = redis.NewClient(options)
	l.pubsub = l.client.SSubscribe(context.Background())
	return l
}

// subscribe asks for the channel. The channel is ready or lost later.
func (l *listener) subscribe(c *channel) {
	c.connection.Store(l)
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		c.lose(errConnectionLost)
		return
	}
	first := l.timer == nil
	if first {
		l.timer = time.AfterFunc(pingEvery, l.test)
	}
	l.channels[c.name] = c
	l.mu.Unlock()
	err := l.write(c, func(ctx context.Context) error { return l.pubsub.SSubscribe(ctx, c.name) })
	if err != nil {
		l.close(err)
		return
	}
	if first {
		go l.read()
	}
}

// unsubscribe lets go of a channel that is not used again.
func (l *listener) unsubscribe(c *channel) {
	l.mu.Lock()
	delete(l.channels, c.name)
	l.mu.Unlock()
	l.sending.Lock()
	defer l.sending.Unlock()
	if err := l.pubsub.SUnsubscribe(context.Background(), c.name); err != nil {
		l.close(err)
	}
}

// write sends what is answered by a confirmation for the channel, or by a pong.
func (l *listener) write(c *channel, send func(context.Context) error) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	l.mu.Lock()
	l.expected = append(l.expected, c)
	l.mu.Unlock()
	return send(l.ending)
}

// read hands on what arrives, until the connection is lost.
func (l *listener) read() {
	for {
		message, err := l.pubsub.ReceiveTimeout(context.Background(), 0)
		var reply redis.Error
		switch {
		case err == nil:
			l.handle(message)
		case errors.As(err, &reply):
			l.refused(err)
		default:
			l.close(err)
			return
		}
		if l.isClosed() {
			return
		}
	}
}

func (l *listener) handle(message any) {
	switch message := message.(type) {
	case *redis.Message:
		if c := l.channel(message.Channel); c != nil {
			c.deliver(message.Payload)
		}
	case *redis.Pong:
		l.next()
	case *redis.Subscription:
		switch message.Kind {
		case "ssubscribe":
			if c := l.next(); c != nil {
				close(c.ready)
			}
		case "sunsubscribe":
			// The slot has moved, or the server has become a replica: this program lets go only of channels
			// that it has forgotten before.
			if c := l.channel(message.Channel); c != nil {
				l.remove(c, errAskAgain)
			}
		}
	}
}

// refused handles an error instead of a confirmation or a pong.
func (l *listener) refused(err error) {
	c := l.next()
	if c == nil {
		return
	}
	if hasCode(err, "NOPERM") {
		l.listening.denied.Store(true)
	}
	l.remove(c, err)
}

// remove loses one channel.
func (l *listener) remove(c *channel, err error) {
	l.mu.Lock()
	delete(l.channels, c.name)
	l.mu.Unlock()
	l.listening.lost(c)
	l.listening.server.noticeError(err)
	c.lose(err)
}

func (l *listener) channel(name string) *channel {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.channels[name]
}

// next is what the answer that came is for.
func (l *listener) next() *channel {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.expected) == 0 {
		return nil
	}
	c := l.expected[0]
	l.expected = l.expected[1:]
	if c == nil {
		l.pinged = false
	}
	return c
}

// test sends a PING while somebody waits, and ends the connection when the last one was not answered.
func (l *listener) test() {
	used := l.listening.inUse(l)
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	lost := l.pinged
	l.pinged = used
	l.timer.Reset(pingEvery)
	l.mu.Unlock()
	switch {
	case lost:
		l.close(errConnectionLost)
	case used:
		err := l.write(nil, func(ctx context.Context) error { return l.pubsub.Ping(ctx) })
		if err != nil {
			l.close(err)
		}
	}
}

func (l *listener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// close ends the connection and all its channels.
func (l *listener) close(err error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	l.closed = true
	if l.timer != nil {
		l.timer.Stop()
	}
	channels := l.channels
	l.channels = nil
	l.mu.Unlock()
	for _, c := range channels {
		l.listening.lost(c)
		c.lose(err)
	}
	l.end()
	_ = l.pubsub.Close()
	_ = l.client.Close()
	l.listening.server.noticeError(err)
}
