// Command leader has one of several processes lead. Here two candidates in one process take turns.
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

// campaign leads whenever no other process does, until ctx is over or lead fails. The context of lead ends if the
// leadership is lost: then another process may lead already.
func campaign(ctx context.Context, locks *slock.Locks, lead func(ctx context.Context) error) error {
	for {
		err := locks.Write("example:leader").Do(ctx, lead)
		switch {
		case errors.Is(err, slock.ErrLost), errors.Is(err, slock.ErrNoAnswer):
			log.Print(err) // and try again
		default:
			return err
		}
	}
}

func main() {
	address := flag.String("address", "localhost:6379", "the server, with the module")
	flag.Parse()
	if err := run(context.Background(), *address); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address string) error {
	done := make(chan error)
	for _, name := range []string{"one", "two"} {
		go func() {
			rdb := redis.NewClient(&redis.Options{Addr: address})
			defer rdb.Close()
			locks := slock.New(rdb, slock.Metadata(name))
			defer locks.Close()
			done <- campaign(ctx, locks, func(ctx context.Context) error {
				fmt.Println("candidate", name, "leads")
				select {
				case <-time.After(100 * time.Millisecond):
					fmt.Println("candidate", name, "steps down")
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}()
	}
	return errors.Join(<-done, <-done)
}
