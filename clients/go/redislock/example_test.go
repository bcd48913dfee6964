package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go/internal/testserver"
	"slock.example/go/redislock"
)

func Example() {
	client := redis.NewClient(&redis.Options{Addr: testserver.Shared.Addr})
	defer client.Close()
	locker := redislock.New(client)
	ctx := context.Background()

	lock, err := locker.Obtain(ctx, "report", 10*time.Second, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		fmt.Println("somebody else has the lock")
		return
	} else if err != nil {
		log.Fatalln(err)
	}
	defer lock.Release(ctx)
	fmt.Println("the lock is held")

	// Give it a new ttl.
	if err := lock.Refresh(ctx, time.Minute, nil); err != nil {
		log.Fatalln(err)
	}
	ttl, err := lock.TTL(ctx)
	if err != nil {
		log.Fatalln(err)
	}
	fmt.Println("for about", ttl.Round(time.Minute))

	// Output:
	// the lock is held
	// for about 1m0s
}

// A lock that is not refreshed ends by itself.
func ExampleLock_TTL() {
	client := redis.NewClient(&redis.Options{Addr: testserver.Shared.Addr})
	defer client.Close()
	ctx := context.Background()

	lock, err := redislock.Obtain(ctx, client, "short", 50*time.Millisecond, nil)
	if err != nil {
		log.Fatalln(err)
	}
	time.Sleep(100 * time.Millisecond)

	ttl, err := lock.TTL(ctx)
	fmt.Println(ttl, err)
	fmt.Println(lock.Refresh(ctx, time.Minute, nil))
	fmt.Println(lock.Release(ctx))

	// Output:
	// 0s <nil>
	// redislock: not obtained
	// redislock: lock not held
}

// Try again every 100 ms, at most three times.
func ExampleClient_Obtain_retry() {
	client := redis.NewClient(&redis.Options{Addr: testserver.Shared.Addr})
	defer client.Close()
	locker := redislock.New(client)
	ctx := context.Background()

	lock, err := locker.Obtain(ctx, "nightly-import", time.Second, &redislock.Options{
		RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(100*time.Millisecond), 3),
	})
	if errors.Is(err, redislock.ErrNotObtained) {
		fmt.Println("somebody else has the lock")
		return
	} else if err != nil {
		log.Fatalln(err)
	}
	defer lock.Release(ctx)
	fmt.Println("the lock is held")

	// Output: the lock is held
}

// Try again every 10 ms, until the deadline of the context.
func ExampleClient_Obtain_customDeadline() {
	client := redis.NewClient(&redis.Options{Addr: testserver.Shared.Addr})
	defer client.Close()
	locker := redislock.New(client)

	holder, err := locker.Obtain(context.Background(), "mail", time.Minute, nil)
	if err != nil {
		log.Fatalln(err)
	}
	defer holder.Release(context.Background())

	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err = locker.Obtain(ctx, "mail", time.Minute, &redislock.Options{
		RetryStrategy: redislock.LinearBackoff(10 * time.Millisecond),
	})
	fmt.Println(errors.Is(err, redislock.ErrNotObtained), errors.Is(err, context.DeadlineExceeded))

	// Output: true true
}

// One token for two keys: both or none.
func ExampleClient_ObtainMulti() {
	client := redis.NewClient(&redis.Options{Addr: testserver.Shared.Addr})
	defer client.Close()
	ctx := context.Background()

	accounts := []string{"{bank}:account:1", "{bank}:account:2"}
	lock, err := redislock.New(client).ObtainMulti(ctx, accounts, 10*time.Second, &redislock.Options{
		Metadata: "transfer 7",
	})
	if err != nil {
		log.Fatalln(err)
	}
	defer lock.Release(ctx)
	fmt.Println(lock.Keys(), lock.Metadata())

	// Output: [{bank}:account:1 {bank}:account:2] transfer 7
}

// Refresh the lock every third of its ttl while the work goes on, and end the work when that fails.
func ExampleLock_Refresh_watchdog() {
	client := redis.NewClient(&redis.Options{Addr: testserver.Shared.Addr})
	defer client.Close()

	const ttl = 3 * time.Second
	lock, err := redislock.Obtain(context.Background(), client, "long-import", ttl, nil)
	if err != nil {
		log.Fatalln(err)
	}
	// The context of the work may be over by then, so Release has another.
	defer lock.Release(context.Background())

	work, endWork := context.WithCancel(context.Background())
	renewal := make(chan struct{})
	go func() {
		defer close(renewal)
		ticker := time.NewTicker(ttl / 3)
		defer ticker.Stop()
		for {
			select {
			case <-work.Done():
				return
			case <-ticker.C:
				if err := lock.Refresh(work, ttl, nil); err != nil && work.Err() == nil {
					log.Println("the lock is lost:", err)
					endWork()
				}
			}
		}
	}()

	select {
	case <-work.Done():
		fmt.Println("ended early")
	case <-time.After(ttl / 2): // the work
		fmt.Println("done")
	}
	endWork()
	<-renewal // no refresh is on its way when the lock is released

	// Output: done
}
