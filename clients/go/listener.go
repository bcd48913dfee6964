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
	tickets  map[string]*ticket  // by the tag
	denied   time.Time           // until when requests poll, because the user may not use channels
}

type channel struct {
	slot  uint16
	name  string
	stop  func()
	since time.Time // without a subscription; zero: it had one
}

// ticket receives the messages for one copy of a request.
type ticket struct {
	tag   string
	slot  uint16
	heard chan message // with room for all that can come between two looks
}

// message is what comes to a ticket. If it is again, one may have been missed.
type message struct {
	fence int64
	err   error
	again bool
}

func newListener(s *server, changed func()) *listener {
	return &listener{server: s, changed: changed, channels: map[uint16]*channel{}, tickets: map[string]*ticket{}}
}

// channel is the name of the channel for a key, or empty if there is none. With open it subscribes to one.
func (l *listener) channel(key string, open bool) (name string, isNew bool) {
	slot := l.slot(key)
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.channels[slot]
	if time.Now().Before(l.denied) || c == nil && !open {
		return "", false
	}
	if c != nil {
		return c.name, false
	}
	c = &channel{slot: slot, name: l.name(slot), since: time.Now()}
	l.channels[slot] = c
	c.stop = l.server.transport.Listen(c.name, func(message string, ok bool) {
		if ok {
			l.deliver(message)
		} else {
			l.again(c)
		}
	})
	return c.name, true
}

// failed notes that a request was refused because of its channel, and tells whether the user may not use it.
func (l *listener) failed(key string, err error) (isDenied bool) {
	isDenied = code(err) == "NOPERM" && strings.Contains(err.Error(), "channel")
	if !isDenied && code(err) != "NOSUBSCRIBER" {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.channels[l.slot(key)]
	if c == nil {
		return isDenied
	}
	hasWaited := !c.since.IsZero() && time.Since(c.since) > channelTrial
	if isDenied || hasWaited {
		l.denied = time.Now().Add(10 * channelTrial)
		l.server.report.polls(err)
	}
	if isDenied || hasWaited || c.since.IsZero() { // in the last case the server that has the key is another one
		delete(l.channels, c.slot)
		go c.stop()
	}
	return isDenied
}

// again has all requests of a channel sent again.
func (l *listener) again(c *channel) {
	l.mu.Lock()
	wasUp := c.since.IsZero()
	c.since = time.Time{}
	for _, t := range l.tickets {
		if t.slot == c.slot {
			t.put(message{again: true})
		}
	}
	l.mu.Unlock()
	if wasUp && l.server.topology.Failover {
		l.changed()
	}
}

// deliver hands a message to its ticket. Others may send to the channel: a tag that is not known is ignored.
func (l *listener) deliver(payload string) {
	tag, fence, err := readMessage(payload)
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.tickets[tag]; t != nil {
		t.put(message{fence: fence, err: err})
	}
}

func (l *listener) ticket(key string) *ticket {
	t := &ticket{tag: rand.Text(), slot: l.slot(key), heard: make(chan message, 4)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tickets[t.tag] = t
	return t
}

func (l *listener) forget(t *ticket) {
	if t == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.tickets, t.tag)
}

// put never blocks. If the ticket is full, whoever has it looks soon, and sends the request again.
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

// slot is the slot of a key, and 0 without a cluster.
func (l *listener) slot(key string) uint16 {
	if !l.server.topology.Cluster {
		return 0
	}
	return slotOf(hashTag(key))
}

// name is a new channel in the slot.
func (l *listener) name(slot uint16) string {
	name := "waits:" + rand.Text()
	if !l.server.topology.Cluster {
		return name
	}
	tag := 0
	for slotOf(strconv.Itoa(tag)) != slot {
		tag++
	}
	return "{" + strconv.Itoa(tag) + "}." + name
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
