// Command workers lets two workers add to one counter, which nothing but the lock protects: each reads it,
// adds one and writes it back. No addition is lost.
//
//	go run ./examples/workers -additions 1000000
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"sync"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

func main() {
	address := flag.String("address", "localhost:6379", "the server, with the module")
	additions := flag.Int("additions", 1000, "how many additions each worker makes")
	flag.Parse()
	total, err := run(context.Background(), *address, *additions)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d additions by two workers: the counter is %d\n", 2**additions, total)
}

// run gives the counter after the additions of both workers.
func run(ctx context.Context, address string, additions int) (int, error) {
	rdb := redis.NewClient(&redis.Options{Addr: address})
	defer rdb.Close()
	locks := slock.New(rdb)
	defer locks.Close()

	const key = "example:counter"
	if err := rdb.Del(ctx, key).Err(); err != nil {
		return 0, err
	}
	lock := locks.Write("example:lock")
	failures := make(chan error, 2)
	var workers sync.WaitGroup
	for range 2 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for range additions {
				err := lock.Do(ctx, func(ctx context.Context) error { return add(ctx, rdb, key) })
				if err != nil {
					failures <- err
					return
				}
			}
		}()
	}
	workers.Wait()
	select {
	case err := <-failures:
		return 0, err
	default:
		return rdb.Get(ctx, key).Int()
	}
}

// add is no atomic command on purpose.
func add(ctx context.Context, rdb *redis.Client, key string) error {
	n, err := rdb.Get(ctx, key).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	return rdb.Set(ctx, key, n+1, 0).Err()
}
