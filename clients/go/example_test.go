package slock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

func exampleClient() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: exampleServer.addr})
}

func Example() {
	rdb := exampleClient()
	defer rdb.Close()
	locks := slock.New(rdb)
	defer locks.Close()

	err := locks.Write("report").Do(context.Background(), func(ctx context.Context) error {
		// The context ends when the lock is lost.
		fmt.Println("nobody else works on the report")
		return nil
	})
	fmt.Println(err)
	// Output:
	// nobody else works on the report
	// <nil>
}

func ExampleRequest_Lock() {
	rdb := exampleClient()
	defer rdb.Close()
	locks := slock.New(rdb)
	defer locks.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // how long to wait
	defer cancel()
	hold, err := locks.Write("report").Lock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer hold.Unlock(context.Background())
	fmt.Println(hold.Mode(), hold.Keys(), hold.Fence() > 0)
	// Output: write [report] true
}

func ExampleRequest_TryLock() {
	rdb := exampleClient()
	defer rdb.Close()
	locks := slock.New(rdb)
	defer locks.Close()
	ctx := context.Background()

	for range 2 {
		_, ok, err := locks.Write("once").TryLock(ctx)
		fmt.Println(ok, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}

func ExampleLimit() {
	rdb := exampleClient()
	defer rdb.Close()
	locks := slock.New(rdb)
	defer locks.Close()
	ctx := context.Background()

	permit := locks.Read("downloads").With(slock.Limit(2))
	for range 3 {
		_, ok, err := permit.TryLock(ctx)
		fmt.Println(ok, err)
	}
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
}

func ExampleWait() {
	rdb := exampleClient()
	defer rdb.Close()
	locks := slock.New(rdb)
	defer locks.Close()
	ctx := context.Background()

	if _, err := locks.Write("busy").Lock(ctx); err != nil {
		fmt.Println(err)
	}
	_, err := locks.Write("busy").With(slock.Wait(20 * time.Millisecond)).Lock(ctx)
	fmt.Println(errors.Is(err, slock.ErrTimedOut))
	// Output: true
}

func ExampleHold_Context() {
	rdb := exampleClient()
	defer rdb.Close()
	locks := slock.New(rdb)
	defer locks.Close()
	ctx := context.Background()

	hold, err := locks.Write("job").With(slock.TTL(200 * time.Millisecond)).Lock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	rdb.Del(ctx, "job") // somebody takes the lock away

	<-hold.Context().Done()
	var lost *slock.LostError
	if errors.As(context.Cause(hold.Context()), &lost) {
		fmt.Println(lost.Reason)
	}
	// Output: gone
}

func ExampleRequest_Adopt() {
	rdb := exampleClient()
	defer rdb.Close()
	locks := slock.New(rdb)
	defer locks.Close()
	ctx := context.Background()

	taken, err := locks.Write("upload").With(slock.NoRenewal()).Lock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	token := taken.Token() // sent to another process, which goes on:

	hold, err := locks.Write("upload").Adopt(ctx, token)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(hold.Fence() == taken.Fence())
	fmt.Println(hold.Release(ctx))
	// Output:
	// true
	// true <nil>
}

func ExampleNewQuorum() {
	rdb := exampleClient() // a real one has clients of three or five servers
	defer rdb.Close()
	quorum := slock.NewQuorum([]redis.UniversalClient{rdb})
	defer quorum.Close()

	err := quorum.Write("invoice").Do(context.Background(), func(context.Context) error {
		fmt.Println("a majority has granted the lock")
		return nil
	})
	fmt.Println(err)
	// Output:
	// a majority has granted the lock
	// <nil>
}
