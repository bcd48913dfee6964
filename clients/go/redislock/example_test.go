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
