package slock

import (
	"context"
	"sync"
	"sync/atomic"
)

// listening is what a Locks hears the ends of waits by: channels, and the connections that have subscribed to
// them.
type listening struct {
	server server
	denied atomic.Bool // the user may not subscribe

	mu          sync.Mutex
	closed      bool
	channels    map[string]*channel  // by place: the hash tag in a cluster, else ""
	connections map[string]*listener // by the address of the node
}

func newListening(s server) *listening {
	return &listening{server: s, channels: map[string]*channel{}, connections: map[string]*listener{}}
}

// mostIdleChannels is how many channels are kept that nobody uses. In a cluster each hash tag has one of its
// own.
const mostIdleChannels = 256

// forbidden tells whether requests for the key cannot wait by NOTIFY.
func (l *listening) forbidden(key string) bool {
	if l.denied.Load() {
		return true
	}
	_, ok := l.place(key)
	return !ok
}

// place names the channel of a key. In a cluster a channel has to be in the slot of the keys, so it has their
// hash tag in its name. There is none for a key that is hashed as a whole and has a brace in it.
func (l *listening) place(key string) (string, bool) {
	if !l.server.isCluster() {
		return "", true
	}
	return hashTag(key)
}

// known is the channel for the key if there is one that is not lost, and notes its use.
func (l *listening) known(key string) *channel {
	place, _ := l.place(key)
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.channels[place]
	if c == nil || c.isLost() {
		return nil
	}
	c.users++
	return c
}

// open is the channel for the key, subscribed now if there was none, and notes its use. The caller waits
// until the channel is ready or lost.
func (l *listening) open(key string) (*channel, error) {
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
	c.users++
	return c, nil
}

// subscribe connects if need be. It belongs to no request: one that is cancelled takes nothing from the
// others.
func (l *listening) subscribe(c *channel, key string) {
	node, err := l.server.node(context.Background(), key)
	if err != nil {
		l.server.noticeError(err)
		c.lose(err)
		return
	}
	l.mu.Lock()
	address := node.Options().Addr
	connection := l.connections[address]
	if connection == nil || connection.isClosed() {
		connection = newListener(node, l)
		l.connections[address] = connection
	}
	closed := l.closed
	l.mu.Unlock()
	if closed {
		connection.close(ErrClosed)
	}
	connection.subscribe(c)
}

// leave notes that a request no longer uses the channel, and lets go of channels that nobody uses.
func (l *listening) leave(c *channel) {
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
func (l *listening) lost(c *channel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.channels[c.place] == c {
		delete(l.channels, c.place)
	}
}

// inUse tells whether some request uses a channel of the connection.
func (l *listening) inUse(connection *listener) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.channels {
		if c.users > 0 && c.connection.Load() == connection {
			return true
		}
	}
	return false
}

func (l *listening) close() {
	l.mu.Lock()
	l.closed = true
	connections := l.connections
	l.connections = map[string]*listener{}
	l.mu.Unlock()
	for _, connection := range connections {
		connection.close(ErrClosed)
	}
}
