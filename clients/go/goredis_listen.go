package slock

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file has the subscriptions of go-redis. All channels of a server share a connection. When it breaks, all have
// ended: go-redis would subscribe again by itself, and hide that messages were missed.

const (
	// pingEvery is how long a subscription may be silent. Then it is tested, and the reply may take as long.
	pingEvery = 5 * time.Second
	// primaryCheck is how often the primary that Sentinel names is compared with the one of the subscription.
	primaryCheck = 500 * time.Millisecond
)

var errSubscriptionEnded = errors.New("the server ended the subscription")

type subscription struct {
	client   *redis.Client
	pubsub   *redis.PubSub
	channels map[string]*subscriber // guarded by the transport
	ended    context.Context
	end      context.CancelCauseFunc
}

type subscriber struct {
	heard  func(payload string)
	broken func(err error)
	ready  chan error // one comes: nil, or why there is no subscription
}

// Listen subscribes to a channel.
func (t *goRedisTransport) Listen(
	ctx context.Context, channel string, heard func(string), broken func(error),
) (func(), error) {
	client, err := t.single, error(nil)
	if t.cluster != nil {
		client, err = t.cluster.MasterForKey(ctx, channel)
	}
	if err != nil {
		return nil, err
	}
	c := &subscriber{heard, broken, make(chan error, 1)}
	t.mu.Lock()
	s := t.subscriptions[client]
	if s == nil {
		s = &subscription{client: client, pubsub: client.SSubscribe(context.Background()), channels: map[string]*subscriber{}}
		s.ended, s.end = context.WithCancelCause(context.Background())
		t.subscriptions[client] = s
		go t.read(s)
		if t.isSentinel {
			go t.follow(s)
		}
	}
	s.channels[channel] = c
	t.mu.Unlock()
	if err = s.pubsub.SSubscribe(ctx, channel); err == nil {
		select {
		case err = <-c.ready:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	stop := func() { t.leave(s, channel) }
	if err != nil {
		stop()
	}
	return stop, err
}

// leave ends a channel, and its connection with the last one.
func (t *goRedisTransport) leave(s *subscription, channel string) {
	t.mu.Lock()
	delete(s.channels, channel)
	isLast := len(s.channels) == 0
	t.mu.Unlock()
	if isLast {
		t.breakOff(s, nil)
	} else {
		_ = s.pubsub.SUnsubscribe(context.Background(), channel)
	}
}

// read hands on what arrives, until the connection is lost.
func (t *goRedisTransport) read(s *subscription) {
	for isTested := false; s.ended.Err() == nil; {
		message, err := s.pubsub.ReceiveTimeout(context.Background(), pingEvery)
		var silence net.Error
		isSilent := errors.As(err, &silence) && silence.Timeout()
		switch {
		case isSilent && !isTested:
			isTested = true
			_ = s.pubsub.Ping(context.Background()) // the next read says whether it failed
			continue
		case errors.As(err, new(redis.Error)): // to the command for a channel, it does not say which
			t.settle(s, func(string) bool { return true }, &ReplyError{err})
		case err != nil:
			t.breakOff(s, err)
		}
		isTested = false
		switch m := message.(type) {
		case *redis.Message:
			if c := t.subscriber(s, m.Channel); c != nil {
				c.heard(m.Payload)
			}
		case *redis.Subscription:
			c := t.subscriber(s, m.Channel)
			if m.Kind == "ssubscribe" {
				t.settle(s, func(channel string) bool { return channel == m.Channel }, nil)
			} else if c != nil { // the slot has moved, or the server has become a replica
				t.leave(s, m.Channel)
				c.broken(errSubscriptionEnded)
			}
		}
	}
}

func (t *goRedisTransport) subscriber(s *subscription, channel string) *subscriber {
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.channels[channel]
}

// settle tells those who have not been told yet whether they are subscribed.
func (t *goRedisTransport) settle(s *subscription, isMeant func(channel string) bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for channel, c := range s.channels {
		if c.ready != nil && isMeant(channel) {
			c.ready <- err
			c.ready = nil
		}
	}
}

// breakOff ends a connection and all its channels.
func (t *goRedisTransport) breakOff(s *subscription, err error) {
	t.mu.Lock()
	if t.subscriptions[s.client] == s {
		delete(t.subscriptions, s.client)
	}
	all := s.channels
	s.channels = nil
	t.mu.Unlock()
	s.end(err)
	_ = s.pubsub.Close()
	for _, c := range all {
		if c.ready != nil {
			c.ready <- err
		} else {
			c.broken(err)
		}
	}
}

// follow keeps one connection of the pool for renewals, and ends the subscription when go-redis closes it: at the moment
// in which Sentinel names another primary. A pool of one connection is left to the program.
func (t *goRedisTransport) follow(s *subscription) {
	if t.single.Options().PoolSize == 1 {
		return
	}
	kept := t.program(monotonic()).(*redis.Client).Conn()
	t.mu.Lock()
	t.reserved = kept
	t.mu.Unlock()
	var err error
	for err == nil && sleep(s.ended, s.ended, primaryCheck) {
		err = kept.Ping(s.ended).Err()
	}
	t.mu.Lock()
	if t.reserved == kept {
		t.reserved = nil
	}
	t.mu.Unlock()
	_ = kept.Close()
	if err != nil {
		t.breakOff(s, err)
	}
}
