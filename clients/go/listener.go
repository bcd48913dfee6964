package slock

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"
)

// This file has the channels by which requests wait: one for a server, one for each slot in a cluster. Each acquisition
// has a ticket with a secret tag, so that its messages reach it and nobody else can send one. A channel whose
// subscription breaks is not used again: who waits by it sends its request once more.

// listener is what the waits of one Locks share.
type listener struct {
	server *server
	broke  func() // called when a subscription has broken

	mu       sync.Mutex
	channels map[uint16]*channel // by the slot; without a cluster it is 0
	denied   bool                // the user may not use channels
}

// channel is a subscription, or an attempt at one.
type channel struct {
	slot    uint16
	name    string
	done    chan struct{} // closed when the attempt has ended: then up and err are final
	up      bool
	err     error
	stop    func()
	tickets map[string]*ticket // by the tag; guarded by the listener
}

// ticket receives the messages of one acquisition.
type ticket struct {
	tag     string
	channel *channel     // that has it; nil: none
	heard   chan message // with room for all that can come between two looks
}

// message is what comes to a ticket. If it is again, the subscription may have missed one.
type message struct {
	fence int64
	err   error
	again bool
}

func newListener(s *server, broke func()) *listener {
	return &listener{server: s, broke: broke, channels: map[uint16]*channel{}}
}

// current is the channel for the key if its subscription stands.
func (l *listener) current(key string) *channel {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.channels[l.slot(key)]; c != nil && c.up && !l.denied {
		return c
	}
	return nil
}

// subscribe gives the channel for the key, and waits until its subscription stands. It gives nil if the user may not use
// channels. All that want the channel share one attempt, which outlives the ctx of each.
func (l *listener) subscribe(ctx context.Context, until time.Time, key string) (*channel, error) {
	l.mu.Lock()
	slot := l.slot(key)
	c := l.channels[slot]
	if l.denied {
		l.mu.Unlock()
		return nil, nil
	}
	if c == nil {
		c = &channel{slot: slot, name: l.name(slot, key), done: make(chan struct{}), tickets: map[string]*ticket{}}
		l.channels[slot] = c
		go l.open(c)
	}
	l.mu.Unlock()
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-c.done:
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.denied {
			return nil, nil
		}
		return c, c.err
	case <-timer.C:
		return nil, errSilent
	case <-l.server.closing.Done():
	case <-ctx.Done():
	}
	return nil, errLeft
}

// open subscribes to a channel.
func (l *listener) open(c *channel) {
	ctx, end := context.WithTimeout(l.server.closed, l.server.settings.retryFor)
	defer end()
	stop, err := l.server.transport.Listen(ctx, c.name,
		func(payload string) { l.deliver(c, payload) },
		func(err error) { l.drop(c, err) })
	l.server.report.reached(err)
	l.mu.Lock()
	defer l.mu.Unlock()
	c.stop = stop
	c.up = err == nil && c.err == nil
	if err != nil {
		c.err = err
		l.deny(err)
		l.forget(c)
	}
	close(c.done)
}

// deny notes that the user may not use channels, if the error says so. The listener is locked.
func (l *listener) deny(err error) {
	if code(err) == "NOPERM" && !l.denied {
		l.denied = true
		l.server.report.polls(err)
	}
}

// forbid notes that a command was refused because of its channel, if that is so.
func (l *listener) forbid(err error) bool {
	if code(err) != "NOPERM" || !strings.Contains(err.Error(), "channel") {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deny(err)
	return true
}

// forget has the next request subscribe to a new channel. The listener is locked.
func (l *listener) forget(c *channel) {
	if l.channels[c.slot] == c {
		delete(l.channels, c.slot)
	}
}

// drop ends a channel that may have missed a message.
func (l *listener) drop(c *channel, err error) {
	l.mu.Lock()
	c.up, c.err = false, err
	l.forget(c)
	stop, tickets := c.stop, c.tickets
	c.stop, c.tickets = nil, nil
	for _, t := range tickets {
		t.put(message{again: true})
	}
	l.mu.Unlock()
	if stop != nil {
		go stop()
	}
	l.broke()
}

// deliver hands a message to its ticket. Others may send to the channel: a tag that is not known is ignored.
func (l *listener) deliver(c *channel, payload string) {
	tag, fence, err := readMessage(payload)
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := c.tickets[tag]; t != nil {
		t.put(message{fence: fence, err: err})
	}
}

func newTicket() *ticket { return &ticket{tag: draw(), heard: make(chan message, 4)} }

// put never blocks. If the ticket is full, whoever has it looks soon, and sends the request again.
func (t *ticket) put(m message) {
	select {
	case t.heard <- m:
	default:
	}
}

// register has the messages of a channel reach the ticket, and no others. It is false if the channel has ended.
func (l *listener) register(t *ticket, c *channel) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.channel != c {
		if t.channel != nil {
			delete(t.channel.tickets, t.tag)
		}
		t.channel = nil
		if c != nil && c.up {
			t.channel = c
			c.tickets[t.tag] = t
		}
	}
	return t.channel != nil && t.channel.up
}

// close ends all subscriptions.
func (l *listener) close() {
	l.mu.Lock()
	all := l.channels
	l.channels = map[uint16]*channel{}
	l.mu.Unlock()
	for _, c := range all {
		<-c.done
		l.mu.Lock()
		stop := c.stop
		c.stop, c.up = nil, false
		l.mu.Unlock()
		if stop != nil {
			stop()
		}
	}
}

// slot is the slot of a key, and 0 without a cluster.
func (l *listener) slot(key string) uint16 {
	if !l.server.topology.Cluster {
		return 0
	}
	return slotOf(hashTag(key))
}

// name is a channel in the slot of the key.
func (l *listener) name(slot uint16, key string) string {
	name := "waits:" + draw()
	if !l.server.topology.Cluster {
		return name
	}
	tag := hashTag(key)
	for n := 0; strings.Contains(tag, "}"); n++ { // no name has this as its hash tag
		if found := strconv.Itoa(n); slotOf(found) == slot {
			tag = found
		}
	}
	return "{" + tag + "}." + name
}

// hashTag is the part of a key that tells its slot.
func hashTag(key string) string {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			return tag
		}
	}
	return key
}

// slotOf is the slot of a hash tag: CRC16/XMODEM, by the Redis Cluster specification.
func slotOf(tag string) (slot uint16) {
	for _, b := range []byte(tag) {
		slot ^= uint16(b) << 8
		for range 8 {
			carry := slot >> 15
			slot = slot<<1 ^ carry*0x1021
		}
	}
	return slot % 16384
}
