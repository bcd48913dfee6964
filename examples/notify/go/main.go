// Waits for a lock by NOTIFY. go-redis hears messages on a connection of its own and asks on those of its pool.
//
// Usage: notify port key counter times. Adds one to the counter so often, each time under the lock.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const ttl, askAgain = 10 * time.Second, time.Second

// Lock is for one task at a time. The token outlives the connections: a task that reconnects is the same owner.
type Lock struct {
	client              *redis.Client
	key, token, channel string
	messages            <-chan *redis.Message
}

func New(ctx context.Context, client *redis.Client, key string) (*Lock, error) {
	// Others may list the name, but not guess a tag. The braces put the channel into the slot of the key.
	channel := "{" + key + "}:" + rand.Text()
	subscription := client.SSubscribe(ctx, channel)
	if _, err := subscription.Receive(ctx); err != nil { // it must be there before the request
		return nil, err
	}
	return &Lock{client, key, rand.Text(), channel, subscription.Channel()}, nil
}

// Acquire returns the fence, or 0 when the time was not enough.
func (l *Lock) Acquire(ctx context.Context, wait time.Duration) (int64, error) {
	tag, end := rand.Text(), time.Now().Add(wait) // the tag is known before anything is sent
	for left := wait; left > time.Millisecond; left = time.Until(end) {
		// Asked again with the same token it keeps its place, and who holds by now gets the fence.
		fence, err := l.client.Do(ctx, "SLOCK.LOCK", l.key, l.token, ttl.Milliseconds(),
			"WAIT", left.Milliseconds(), "NOTIFY", l.channel, tag).Int64()
		switch {
		case err == nil && fence > 0:
			return fence, nil
		case err != nil && !errors.Is(err, redis.Nil) && !strings.HasPrefix(err.Error(), "NOSUBSCRIBER"):
			return 0, err
		}
		// go-redis connects and subscribes again by itself; what was asked before has ended then.
		if result := l.hear(tag, min(askAgain, left)); strings.HasPrefix(result, "-") && result != "-UNBLOCKED" {
			return 0, errors.New(result[1:])
		} else if fence, _ := strconv.ParseInt(result, 10, 64); fence > 0 {
			return fence, nil
		}
	}
	if err := l.client.Do(ctx, "SLOCK.CANCEL", l.key, l.token).Err(); err != nil {
		return 0, err
	}
	return 0, l.Release(ctx) // it may have been granted just before
}

func (l *Lock) hear(tag string, wait time.Duration) string {
	for late := time.After(wait); ; {
		select {
		case message := <-l.messages:
			if result, found := strings.CutSuffix(message.Payload, " "+tag); found {
				return result
			}
		case <-late:
			return ""
		}
	}
}

func (l *Lock) Release(ctx context.Context) error {
	return l.client.Do(ctx, "SLOCK.UNLOCK", l.key, l.token).Err()
}

func main() {
	ctx, counter := context.Background(), os.Args[3]
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	lock, err := New(ctx, client, os.Args[2])
	times, _ := strconv.Atoi(os.Args[4])
	for ; err == nil && times > 0; times-- {
		var fence int64
		if fence, err = lock.Acquire(ctx, time.Minute); err == nil && fence == 0 {
			err = fmt.Errorf("the lock was not to be had")
		}
		if err == nil {
			value, _ := client.Get(ctx, counter).Int()
			err = client.Set(ctx, counter, value+1, 0).Err()
		}
		err = errors.Join(err, lock.Release(ctx))
	}
	if err != nil {
		log.Fatal(err)
	}
}
