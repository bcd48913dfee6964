package redislock_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"slock.example/go/redislock"
)

func obtainMulti(
	t *testing.T, client redislock.RedisClient, keys []string, opt *redislock.Options,
) *redislock.Lock {
	t.Helper()
	lock, err := redislock.ObtainMulti(t.Context(), client, keys, time.Hour, opt)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func TestMulti_keys(t *testing.T) {
	rdb := connect(t)
	keys := []string{newKey(), newKey(), newKey()}
	lock := obtainMulti(t, rdb, keys, &redislock.Options{Metadata: "host=web-1"})
	if lock.Key() != keys[0] || !slices.Equal(lock.Keys(), keys) {
		t.Fatalf("the key is %q, the keys are %q", lock.Key(), lock.Keys())
	}

	given := slices.Clone(keys)
	keys[0] = "changed by the caller"
	if !slices.Equal(lock.Keys(), given) {
		t.Fatalf("the keys are %q", lock.Keys())
	}
	release(t, lock)
	if n := rdb.Exists(t.Context(), given...).Val(); n != 0 {
		t.Fatalf("%d keys are left", n)
	}
}

func TestMulti_refusedLeavesNothing(t *testing.T) {
	rdb, free, held := connect(t), newKey(), newKey()
	obtain(t, rdb, held, time.Hour, nil)
	_, err := redislock.ObtainMulti(t.Context(), rdb, []string{free, held}, time.Hour, nil)
	wantError(t, err, redislock.ErrNotObtained)
	if rdb.Exists(t.Context(), free).Val() != 0 {
		t.Fatal("a key is left")
	}
}

func TestMulti_leastTTL(t *testing.T) {
	rdb, a, b := connect(t), newKey(), newKey()
	lock := obtainMulti(t, rdb, []string{a, b}, nil)
	one := obtain(t, rdb, b, time.Minute, &redislock.Options{Token: lock.Token()})
	wantTTL(t, one, time.Minute)
	wantTTL(t, lock, time.Minute)

	if err := lock.Refresh(t.Context(), 2*time.Hour, nil); err != nil {
		t.Fatal(err)
	}
	wantTTL(t, lock, 2*time.Hour)
	wantTTL(t, one, 2*time.Hour)
}

// When one key is lost, the lock is lost. Release frees what is left of it, and tells.
func TestMulti_oneKeyLost(t *testing.T) {
	rdb, a, b := connect(t), newKey(), newKey()
	lock := obtainMulti(t, rdb, []string{a, b}, nil)
	if err := rdb.Del(t.Context(), a).Err(); err != nil {
		t.Fatal(err)
	}
	next := obtain(t, rdb, a, time.Hour, nil)

	if ttl, err := lock.TTL(t.Context()); err != nil || ttl != 0 {
		t.Fatalf("TTL gives %v, %v", ttl, err)
	}
	wantError(t, lock.Refresh(t.Context(), 24*time.Hour, nil), redislock.ErrNotObtained)
	if left := rdb.PTTL(t.Context(), b).Val(); left > time.Hour {
		t.Fatalf("the other key has %v left", left)
	}

	wantError(t, lock.Release(t.Context()), redislock.ErrLockNotHeld)
	wantTTL(t, next, time.Hour)
	obtain(t, rdb, b, time.Hour, nil)
}

// What the same token has obtained since with other metadata stays.
func TestMulti_oneKeyObtainedAgain(t *testing.T) {
	rdb, a, b := connect(t), newKey(), newKey()
	lock := obtainMulti(t, rdb, []string{a, b}, &redislock.Options{Token: "worker-1", Metadata: "run 1"})
	next := obtain(t, rdb, a, time.Hour, &redislock.Options{Token: "worker-1", Metadata: "run 2"})
	wantError(t, lock.Release(t.Context()), redislock.ErrLockNotHeld)
	wantTTL(t, next, time.Hour)
	if rdb.Exists(t.Context(), b).Val() != 0 {
		t.Fatal("the other key is left")
	}
}

func TestMulti_tokenObtainsAgain(t *testing.T) {
	rdb, a, b := connect(t), newKey(), newKey()
	worker := &redislock.Options{Token: "worker-1"}
	obtain(t, rdb, a, time.Hour, worker)

	_, err := redislock.ObtainMulti(t.Context(), rdb, []string{a, b}, time.Hour, worker)
	wantError(t, err, redislock.ErrNotObtained) // it holds only one of them

	obtain(t, rdb, b, time.Hour, worker)
	release(t, obtainMulti(t, rdb, []string{a, b}, worker))
}

func TestMulti_keyNamedTwice(t *testing.T) {
	rdb, a, b := connect(t), newKey(), newKey()
	lock := obtainMulti(t, rdb, []string{a, b, a}, nil)
	if !slices.Equal(lock.Keys(), []string{a, b, a}) {
		t.Fatalf("the keys are %q", lock.Keys())
	}
	wantTTL(t, lock, time.Hour)
	if err := lock.Refresh(t.Context(), time.Minute, nil); err != nil {
		t.Fatal(err)
	}
	wantTTL(t, lock, time.Minute)
	release(t, lock)
}

func TestMulti_numberOfKeys(t *testing.T) {
	rdb := connect(t)
	keys := make([]string, 1025)
	for i := range keys {
		keys[i] = fmt.Sprintf("{many}:%d", i)
	}
	lock := obtainMulti(t, rdb, keys[:1024], nil)
	wantTTL(t, lock, time.Hour)
	release(t, lock)

	for _, wrong := range [][]string{nil, keys} {
		_, err := redislock.ObtainMulti(t.Context(), rdb, wrong, time.Hour, nil)
		wantReply(t, err, "numkeys")
	}
}
