// Command block runs work under a lock, with a limit for the wait and a ttl for the lock. A second block that starts
// meanwhile times out.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

func main() {
	address := flag.String("address", "localhost:6379", "the server, with the module")
	flag.Parse()
	if err := run(context.Background(), *address); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address string) error {
	rdb := redis.NewClient(&redis.Options{Addr: address})
	defer rdb.Close()
	locks := slock.New(rdb)
	defer locks.Close()

	report := locks.Write("example:report").With(
		slock.Wait(100*time.Millisecond), // how long to wait for the lock
		slock.TTL(5*time.Second),         // how long the lock outlives a crash
	)
	return report.Do(ctx, func(ctx context.Context) error {
		fmt.Println("the first block has the lock")
		err := report.Do(ctx, func(context.Context) error { return errors.New("two at once") })
		if !errors.Is(err, slock.ErrTimedOut) {
			return fmt.Errorf("the second block ended with %w", err)
		}
		fmt.Println("the second block:", err)
		return nil
	})
}
