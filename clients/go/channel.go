package slock

import (
	"strings"
	"sync"
	"sync/atomic"
)

// channel is a subscription, with the requests that wait for a message on it. It is not used again after it
// was lost.
type channel struct {
	place string
	name  string
	users int // requests that use it; guarded by listening

	connection atomic.Pointer[listener]
	ready      chan struct{} // closed when the server has confirmed the subscription
	gone       chan struct{} // closed when the subscription has ended

	mu      sync.Mutex
	err     error                  // why it has ended
	waiting map[string]chan string // by tag
}

func newChannel(place string) *channel {
	name := "waits:" + newToken()
	if place != "" {
		name = "{" + place + "}." + name
	}
	return &channel{
		place:   place,
		name:    name,
		ready:   make(chan struct{}),
		gone:    make(chan struct{}),
		waiting: map[string]chan string{},
	}
}

// note takes a new tag for a request. Its message will be in the Go channel.
func (c *channel) note() (tag string, message <-chan string) {
	tag = newToken()
	messages := make(chan string, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting[tag] = messages
	return tag, messages
}

func (c *channel) forget(tag string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, tag)
}

// deliver hands a message "<n> <tag>" to the request of the tag. Nobody waits for others.
func (c *channel) deliver(payload string) {
	answer, tag, _ := strings.Cut(payload, " ")
	c.mu.Lock()
	defer c.mu.Unlock()
	if messages := c.waiting[tag]; messages != nil {
		delete(c.waiting, tag)
		messages <- answer
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

// hashTag is what Redis hashes of a key, if it can be the hash tag of another name.
func hashTag(key string) (string, bool) {
	if start := strings.IndexByte(key, '{'); start >= 0 {
		if end := strings.IndexByte(key[start+1:], '}'); end > 0 {
			return key[start+1 : start+1+end], true
		}
	}
	return key, key != "" && !strings.Contains(key, "}")
}
