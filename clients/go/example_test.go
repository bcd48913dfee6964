package slock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
	"slock.example/go/internal/testserver"
)

var ctx = context.Background()

// exampleLocks are locks on the server of the tests.
func exampleLocks() *slock.Locks {
	return slock.New(redis.NewClient(&redis.Options{Addr: testserver.Shared.Addr}))
}

func writeReport(context.Context) error { return nil }

func ExampleRequest_Lock() {
	locks := exampleLocks()
	defer locks.Close()
	err := func() error {
		hold, err := locks.Write("report").With(slock.Wait(5 * time.Second)).Lock(ctx)
		switch {
		case errors.Is(err, slock.ErrTimedOut):
			return fmt.Errorf("busy: %w", err) // others have the lock; the error says who
		case errors.Is(err, slock.ErrNoAnswer):
			return fmt.Errorf("down: %w", err) // the server did not reply
		case err != nil:
			return err
		}
		defer hold.Unlock(context.WithoutCancel(ctx))
		return writeReport(hold.Context()) // ends if the lock is lost
	}()
	fmt.Println(err)
	// Output: <nil>
}

func ExampleRequest_TryLock() {
	locks := exampleLocks()
	defer locks.Close()
	for range 2 {
		_, err := locks.Write("once").TryLock(ctx)
		fmt.Println(errors.Is(err, slock.ErrNotAcquired))
	}
	// Output:
	// false
	// true
}

func ExampleHold_Check() {
	locks := exampleLocks()
	defer locks.Close()
	hold, err := locks.Write("lost").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, _ = locks.Release(ctx, hold.Token(), "lost") // an operator releases the lock
	_ = hold.Extend(ctx, time.Minute)
	err = func() error {
		if err := hold.Check(); err != nil { // before each step that matters
			return err
		}
		return writeReport(hold.Context())
	}()
	fmt.Println(err)
	// Output: slock: the lock was lost, gone (lock lost)
}

func ExampleLimit() {
	locks := exampleLocks()
	defer locks.Close()
	for range 3 {
		_, err := locks.Read("downloads").With(slock.Limit(2)).TryLock(ctx)
		fmt.Println(errors.Is(err, slock.ErrNotAcquired))
	}
	// Output:
	// false
	// false
	// true
}

func ExampleRequest_Adopt() {
	locks := exampleLocks()
	defer locks.Close()
	hold, err := locks.Write("upload").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	token := hold.Token() // sent to another process, which goes on:
	_ = hold.Detach()
	hold, err = locks.Write("upload").Adopt(ctx, token)
	fmt.Println(hold.Keys(), hold.Unlock(ctx), err)
	// Output: [upload] <nil> <nil>
}

func ExampleLocks_Info() {
	locks := exampleLocks()
	defer locks.Close()
	_, err := locks.Write("from", "to").Lock(ctx) // all keys or none
	if err != nil {
		log.Fatal(err)
	}
	info, err := locks.Info(ctx, "to")
	fmt.Println(info.Mode, len(info.Holders), info.Waiters, err)
	// Output: write 1 0 <nil>
}

func ExampleHold_Upgrade() {
	locks := exampleLocks()
	defer locks.Close()
	hold, err := locks.Read("job").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(hold.Upgrade(ctx), hold.Mode(), hold.Downgrade(ctx), hold.Mode())
	// Output: <nil> write <nil> read
}

func ExamplePrefix() {
	rdb := redis.NewClient(&redis.Options{Addr: testserver.Shared.Addr})
	defer rdb.Close()
	locks := slock.New(rdb, slock.Prefix("shop:"), slock.TTL(30*time.Second))
	defer locks.Close()
	_ = locks.Write("stock").Do(ctx, func(ctx context.Context) error {
		hold, _ := slock.HoldFrom(ctx)
		fmt.Println(hold.Keys(), rdb.Exists(ctx, "shop:stock").Val())
		return nil
	})
	// Output: [stock] 1
}

func Example_servers() {
	sentinel := slock.New(redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: "primary", SentinelAddrs: []string{"sentinel-1:26379", "sentinel-2:26379", "sentinel-3:26379"},
	}))
	cluster := slock.New(redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"node-1:6379", "node-2:6379"}}))
	var a, b, c *redis.Client // of independent servers
	quorum := slock.NewQuorum([]redis.UniversalClient{a, b, c})
	_, _, _ = sentinel, cluster, quorum
}
