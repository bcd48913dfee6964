package redislock_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go/redislock"
)

// The clients that the interface has to accept.
var (
	_ redislock.RedisClient = (*redis.Client)(nil)
	_ redislock.RedisClient = (*redis.ClusterClient)(nil)
	_ redislock.RedisClient = (*redis.Ring)(nil)
	_ redislock.RedisClient = (*redis.Conn)(nil)
	_ redislock.RedisClient = redis.UniversalClient(nil)
	_ redislock.RedisClient = redis.Scripter(nil)
	_ redis.Scripter        = redislock.RedisClient(nil)
)

func TestLock_nil(t *testing.T) {
	var lock *redislock.Lock
	ttl, err := lock.TTL(t.Context())
	if err != redislock.ErrLockNotHeld || ttl != 0 {
		t.Fatalf("TTL gives %v, %v", ttl, err)
	}
	if err := lock.Refresh(t.Context(), time.Minute, nil); err != redislock.ErrNotObtained {
		t.Fatalf("Refresh gives %v", err)
	}
	if err := lock.Release(t.Context()); err != redislock.ErrLockNotHeld {
		t.Fatalf("Release gives %v", err)
	}
}

func TestLock_obtainsAsItsClient(t *testing.T) {
	rdb := connect(t)
	lock := obtain(t, rdb, newKey(), time.Hour, nil)
	other, err := lock.Obtain(t.Context(), newKey(), time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	if lock.Client != other.Client || lock.Token() == other.Token() {
		t.Fatal("not the same client, or the same token")
	}
}

func TestTTL_ofALostLock(t *testing.T) {
	rdb, key := connect(t), newKey()
	lock := obtain(t, rdb, key, time.Hour, nil)
	if err := rdb.Del(t.Context(), key).Err(); err != nil {
		t.Fatal(err)
	}
	obtain(t, rdb, key, time.Hour, nil)
	if ttl, err := lock.TTL(t.Context()); err != nil || ttl != 0 {
		t.Fatalf("TTL gives %v, %v", ttl, err)
	}
}

func TestRelease_twice(t *testing.T) {
	lock := obtain(t, connect(t), newKey(), time.Hour, nil)
	release(t, lock)
	if err := lock.Release(t.Context()); err != redislock.ErrLockNotHeld {
		t.Fatalf("the second Release gives %v", err)
	}
}

// A holder that has lost the lock changes nothing for the next one.
func TestLock_nextHolderIsSafe(t *testing.T) {
	rdb, key := connect(t), newKey()
	first := obtain(t, rdb, key, time.Millisecond, nil)
	waitUntilLost(t, first)
	second := obtain(t, rdb, key, time.Hour, nil)

	wantError(t, first.Refresh(t.Context(), time.Minute, nil), redislock.ErrNotObtained)
	wantError(t, first.Release(t.Context()), redislock.ErrLockNotHeld)
	wantTTL(t, second, time.Hour)
}

func TestRefresh_mayShorten(t *testing.T) {
	lock := obtain(t, connect(t), newKey(), time.Hour, nil)
	if err := lock.Refresh(t.Context(), time.Millisecond, nil); err != nil {
		t.Fatal(err)
	}
	waitUntilLost(t, lock)
}

// A ttl is cut to whole milliseconds.
func TestObtain_wholeMilliseconds(t *testing.T) {
	rdb, key := connect(t), newKey()
	for range 20 {
		lock := obtain(t, rdb, key, 400_999*time.Microsecond, &redislock.Options{Token: "worker-1"})
		ttl, err := lock.TTL(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if ttl > 400*time.Millisecond || ttl%time.Millisecond != 0 {
			t.Fatalf("the ttl is %v", ttl)
		}
	}
}

func TestObtain_tooShort(t *testing.T) {
	rdb, key := connect(t), newKey()
	_, err := redislock.Obtain(context.Background(), rdb, key, 0, nil)
	wantError(t, err, context.DeadlineExceeded)

	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for _, ttl := range []time.Duration{-time.Second, 0, 999 * time.Microsecond} {
		_, err := redislock.Obtain(ctx, rdb, key, ttl, nil)
		wantReply(t, err, "ttl")
	}
	if rdb.Exists(ctx, key).Val() != 0 {
		t.Fatal("the key exists")
	}
}

func TestObtain_ofAnotherType(t *testing.T) {
	rdb, key := connect(t), newKey()
	if err := rdb.LPush(t.Context(), key, "element").Err(); err != nil {
		t.Fatal(err)
	}
	retry := &spy{pause: time.Millisecond}
	_, err := redislock.Obtain(t.Context(), rdb, key, time.Hour, &redislock.Options{RetryStrategy: retry})
	if !redis.HasErrorPrefix(err, "WRONGTYPE") || retry.calls != 0 {
		t.Fatalf("after %d retries the error is %v", retry.calls, err)
	}
}
