// A lock by go-redis: wait, work and release; give up a wait; look.
//
// Usage: lock port key work counter | try counter | give-up | info
// Work adds one to the counter; try does so only if the lock is free. A wait is given up when standard input ends.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const ttl, longestWait, refusal = 30 * time.Second, time.Minute, 2 * time.Minute

type locks struct{ commands, waiting *redis.Client }

func connect(address string) locks {
	return locks{
		commands: redis.NewClient(&redis.Options{Addr: address}),
		// For WAIT and nothing else. PoolSize is how many can wait at once.
		waiting: redis.NewClient(&redis.Options{
			Addr: address, PoolSize: 100, ReadTimeout: longestWait + 5*time.Second, MaxRetries: -1,
		}),
	}
}

// acquire returns the fence, or 0 when the wait is over. On an error neither a hold nor a request is left.
func (l locks) acquire(ctx context.Context, key, token string) (int64, error) {
	// go-redis goes on reading when ctx ends. So the server has to end the wait.
	stop := context.AfterFunc(ctx, func() { l.end(key, token) })
	fence, err := l.waiting.Do(ctx, "SLOCK.LOCK", key, token, ttl.Milliseconds(),
		"WAIT", longestWait.Milliseconds()).Int64()
	stop()
	if err = errors.Join(err, ctx.Err()); err != nil {
		return 0, errors.Join(err, l.end(key, token))
	}
	return fence, nil
}

// tryAcquire returns the fence, or 0 at once when another owner holds or waits. On an error nothing is left.
func (l locks) tryAcquire(ctx context.Context, key, token string) (int64, error) {
	fence, err := l.commands.Do(ctx, "SLOCK.LOCK", key, token, ttl.Milliseconds()).Int64()
	if err != nil {
		return 0, errors.Join(err, l.end(key, token))
	}
	return fence, nil
}

// end leaves neither a hold nor a request. One that is still on its way is refused when it arrives.
func (l locks) end(key, token string) error {
	return l.commands.Do(context.Background(), "SLOCK.MUNLOCK", 1, key, token, "REFUSE", refusal.Milliseconds()).Err()
}

func (l locks) release(key, token string) error {
	return l.commands.Do(context.Background(), "SLOCK.UNLOCK", key, token).Err()
}

// info tells the mode, the fence and the tokens of the holders.
func (l locks) info(ctx context.Context, key string) (string, error) {
	reply, err := l.commands.Do(ctx, "SLOCK.INFO", key, "FULL").Result()
	if errors.Is(err, redis.Nil) {
		return "nobody", nil
	} else if err != nil {
		return "", err
	}
	lock := reply.(map[any]any)
	var tokens []string
	for _, holder := range lock["holders"].([]any) {
		tokens = append(tokens, holder.(map[any]any)["token"].(string))
	}
	return fmt.Sprint(lock["mode"], " ", lock["fence"], " ", strings.Join(tokens, ",")), nil
}

func (l locks) work(ctx context.Context, key, counter string) error {
	token := rand.Text()
	fence, err := l.acquire(ctx, key, token)
	if err != nil {
		return err
	} else if fence == 0 {
		return errors.New("the wait is over")
	}
	return l.addAndRelease(ctx, key, token, counter)
}

func (l locks) tryToWork(ctx context.Context, key, counter string) (string, error) {
	token := rand.Text()
	if fence, err := l.tryAcquire(ctx, key, token); fence == 0 {
		return "busy", err
	}
	return "done", l.addAndRelease(ctx, key, token, counter)
}

func (l locks) addAndRelease(ctx context.Context, key, token, counter string) error {
	value, _ := l.commands.Get(ctx, counter).Int()
	err := l.commands.Set(ctx, counter, value+1, 0).Err()
	return errors.Join(err, l.release(key, token))
}

func (l locks) waitUntilTheInputEnds(key string) error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { io.Copy(io.Discard, os.Stdin); cancel() }()
	_, err := l.acquire(ctx, key, rand.Text())
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return fmt.Errorf("not given up: %w", err)
}

func main() {
	ctx, locks, key := context.Background(), connect("127.0.0.1:"+os.Args[1]), os.Args[2]
	var err error
	text := ""
	switch os.Args[3] {
	case "work":
		err = locks.work(ctx, key, os.Args[4])
	case "give-up":
		err = locks.waitUntilTheInputEnds(key)
	case "try":
		text, err = locks.tryToWork(ctx, key, os.Args[4])
	case "info":
		text, err = locks.info(ctx, key)
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(text)
}
