// Measures bsm/redislock for bench/clients.py: so many tasks take and release a lock of their own each.
//
//	redislock PORT TASKS ROUNDS    prints the microseconds that all of it took
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

const ttl = 30 * time.Second

func main() {
	tasks, rounds := number(2), number(3)
	locker := redislock.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]}))
	pairs(locker, tasks, 50) // to warm up
	fmt.Println(pairs(locker, tasks, rounds).Microseconds())
}

func pairs(locker *redislock.Client, tasks, rounds int) time.Duration {
	var all sync.WaitGroup
	begun := time.Now()
	for task := range tasks {
		all.Add(1)
		go func() {
			defer all.Done()
			for range rounds {
				pair(locker, fmt.Sprint("redislock-", task))
			}
		}()
	}
	all.Wait()
	return time.Since(begun)
}

func pair(locker *redislock.Client, key string) {
	ctx := context.Background()
	lock, err := locker.Obtain(ctx, key, ttl, nil)
	if err == nil {
		err = lock.Release(ctx)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func number(argument int) int {
	value, err := strconv.Atoi(os.Args[argument])
	if err != nil {
		log.Fatal(err)
	}
	return value
}
