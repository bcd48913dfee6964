package redislock_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"slock.example/go/redislock"
)

// Many goroutines add to a counter that nothing but the lock protects.
func TestObtain_excludes(t *testing.T) {
	rdb, key, counter := connect(t), newKey(), newKey()
	const goroutines, additions = 20, 25
	add := func() error {
		lock, err := redislock.Obtain(t.Context(), rdb, key, time.Hour, &redislock.Options{
			RetryStrategy: redislock.ExponentialBackoff(time.Millisecond, 5*time.Millisecond),
		})
		if err != nil {
			return err
		}
		value, _ := strconv.Atoi(rdb.Get(t.Context(), counter).Val())
		if err := rdb.Set(t.Context(), counter, value+1, 0).Err(); err != nil {
			return err
		}
		return lock.Release(t.Context())
	}
	var group sync.WaitGroup
	for range goroutines {
		group.Add(1)
		go func() {
			defer group.Done()
			for range additions {
				if err := add(); err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	group.Wait()
	if got, _ := strconv.Atoi(rdb.Get(t.Context(), counter).Val()); got != goroutines*additions {
		t.Fatalf("the counter is %d, want %d", got, goroutines*additions)
	}
}
