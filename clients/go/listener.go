// SPDX-License-Identifier: MIT OR Apache-2.0

package slock

import (
	"crypto/rand"
	"strconv"
	"strings"
	"sync"
	"time"
)

// This file has the channels by which requests wait: one for a server, one for each slot in a cluster. Each copy of a
// request has a ticket with a secret tag, so that its message reaches it and nobody else can send one. A message that is
// late may tell of a hold that ended before the next copy was sent: its ticket is gone.

// channelTrial is how long a channel may have no subscription on a server that replies. Then requests poll for a while.
const channelTrial = 3 * time.Second

// listener is what the waits of one Locks share.
type listener struct {
	server  *server
	changed func() // called when another server may have become the primary

	mu       sync.Mutex
	channels map[uint16]*channel // by the slot; without a cluster it is 0
	denied   time.Time           // until when requests poll, because the user may not use channels
}

type channel struct {
	slot    uint16
	name    string
	stop    func()
	since   time.Time          // without a subscription; zero: it had one
	tickets map[string]*ticket // by the tag
}

// ticket receives the messages for one copy of a request.
type ticket struct {
	channel *channel
	tag     string
	heard   chan message // with room for all that can come between two looks
	wasUp   bool         // the channel had its subscription when the request was sent
}

// message is what comes to a ticket. With errAgain, one may have been missed.
type message struct {
	fence int64
	err   error
}

// ticket is a new ticket for a key, or nil if there is no channel. With open it subscribes to one, and waits for the
// confirmation of the server, but not for long.
func (l *listener) ticket(key string, open bool) *ticket {
	c, isNew := l.channel(key, open)
	if c == nil {
		return nil
	}
	t := &ticket{channel: c, tag: rand.Text(), heard: make(chan message, 2)}
	l.mu.Lock()
	c.tickets[t.tag] = t
	l.mu.Unlock()
	if isNew {
		select {
		case <-t.heard:
		case <-time.After(subscribing):
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t.wasUp = c.since.IsZero()
	return t
}

// channel is the channel for a key, or nil if there is none that has its subscription. With open it subscribes to one, or
// gives one that waits for its subscription.
func (l *listener) channel(key string, open bool) (c *channel, isNew bool) {
	slot := uint16(0)
	if l.server.topology.Cluster {
		slot = slotOf(hashTag(key))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c = l.channels[slot]
	switch {
	case !open && (c == nil || !c.since.IsZero()), time.Now().Before(l.denied):
		return nil, false
	case c != nil:
		return c, false
	}
	c = &channel{slot: slot, name: "waits:" + rand.Text(), since: time.Now(), tickets: map[string]*ticket{}}
	if l.server.topology.Cluster {
		c.name = "{" + tagIn(slot) + "}." + c.name
	}
	l.channels[slot] = c
	c.stop = l.server.transport.Listen(c.name, func(message string, ok bool) {
		if ok {
			l.deliver(c, message)
		} else {
			l.confirmed(c)
		}
	})
	return c, true
}

// failed notes that a request was refused because of its channel, and tells whether the user may not use it.
func (l *listener) failed(t *ticket, err error) (isDenied bool) {
	c := t.channel
	isDenied = code(err) == "NOPERM" && strings.Contains(err.Error(), "channel")
	l.mu.Lock()
	defer l.mu.Unlock()
	if !isDenied && code(err) != "NOSUBSCRIBER" || l.channels[c.slot] != c {
		return isDenied
	}
	hasWaited := !c.since.IsZero() && time.Since(c.since) > channelTrial
	if isDenied || hasWaited {
		l.denied = time.Now().Add(10 * channelTrial)
		l.server.report.polls(err)
	}
	if isDenied || hasWaited || t.wasUp { // in the last case the server that has the key is another one
		delete(l.channels, c.slot)
		go c.stop()
		c.again()
	}
	return isDenied
}

// again has all requests of the channel sent again.
func (c *channel) again() {
	for _, t := range c.tickets {
		t.put(message{err: errAgain})
	}
}

// confirmed notes that a channel has its subscription.
func (l *listener) confirmed(c *channel) {
	l.mu.Lock()
	c.since = time.Time{}
	c.again()
	l.mu.Unlock()
	if l.server.topology.Failover { // a new channel may be there because another server became the primary
		l.changed()
	}
}

// deliver hands a message to its ticket. Others may send to the channel: a tag that is not known is ignored.
func (l *listener) deliver(c *channel, payload string) {
	tag, fence, err := readMessage(payload)
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := c.tickets[tag]; t != nil {
		t.put(message{fence, err})
	}
}

func (l *listener) forget(t *ticket) {
	if t != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(t.channel.tickets, t.tag)
	}
}

// put never blocks. If the ticket is full, who has it looks soon, and sends the request again.
func (t *ticket) put(m message) {
	select {
	case t.heard <- m:
	default:
	}
}

// close ends all subscriptions.
func (l *listener) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.channels {
		c.stop()
	}
	clear(l.channels)
}

// tagIn is a hash tag of the slot.
func tagIn(slot uint16) string {
	for n := 0; ; n++ {
		if tag := strconv.Itoa(n); slotOf(tag) == slot {
			return tag
		}
	}
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
