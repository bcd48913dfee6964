package redislock_test

import (
	"strings"
	"testing"
	"time"

	"slock.example/go/redislock"
)

// A worker that starts again with its token takes over from its earlier run, which must not release or
// refresh any more.
func TestToken_obtainedAgainWithOtherMetadata(t *testing.T) {
	rdb, key := connect(t), newKey()
	first := obtain(t, rdb, key, time.Hour, &redislock.Options{Token: "worker-1", Metadata: "run 1"})
	second := obtain(t, rdb, key, time.Minute, &redislock.Options{Token: "worker-1", Metadata: "run 2"})

	if ttl, err := first.TTL(t.Context()); err != nil || ttl != 0 {
		t.Fatalf("TTL gives %v, %v", ttl, err)
	}
	wantError(t, first.Refresh(t.Context(), time.Hour, nil), redislock.ErrNotObtained)
	wantError(t, first.Release(t.Context()), redislock.ErrLockNotHeld)
	wantTTL(t, second, time.Minute)
	release(t, second)
}

// With the same metadata the two are one owner.
func TestToken_obtainedAgainWithTheSameMetadata(t *testing.T) {
	rdb, key := connect(t), newKey()
	options := &redislock.Options{Token: "worker-1", Metadata: "run 1"}
	first := obtain(t, rdb, key, time.Hour, options)
	second := obtain(t, rdb, key, time.Minute, options)

	wantTTL(t, first, time.Minute)
	release(t, first)
	wantError(t, second.Release(t.Context()), redislock.ErrLockNotHeld)
}

// Tokens are compared as a whole.
func TestToken_thatBeginsAnother(t *testing.T) {
	rdb, key := connect(t), newKey()
	obtain(t, rdb, key, time.Hour, &redislock.Options{Token: "worker-1", Metadata: "0"})
	for _, token := range []string{"worker", "worker-10"} {
		_, err := redislock.Obtain(t.Context(), rdb, key, time.Hour, &redislock.Options{Token: token})
		wantError(t, err, redislock.ErrNotObtained)
	}
}

func TestToken_anyBytes(t *testing.T) {
	rdb, key := connect(t), newKey()
	lock := obtain(t, rdb, key, time.Hour, &redislock.Options{
		Token: "\x00\xff\r\n", Metadata: "\x00 ü\xfe\n",
	})
	wantTTL(t, lock, time.Hour)
	if err := lock.Refresh(t.Context(), time.Minute, nil); err != nil {
		t.Fatal(err)
	}
	wantTTL(t, lock, time.Minute)
	release(t, lock)
}

func TestToken_tooLong(t *testing.T) {
	rdb, key := connect(t), newKey()
	for argument, options := range map[string]*redislock.Options{
		"token": {Token: strings.Repeat("x", 256)},
		"META":  {Metadata: strings.Repeat("x", 1025)},
	} {
		_, err := redislock.Obtain(t.Context(), rdb, key, time.Hour, options)
		wantReply(t, err, argument)
	}
	release(t, obtain(t, rdb, key, time.Hour, &redislock.Options{
		Token: strings.Repeat("x", 255), Metadata: strings.Repeat("x", 1024),
	}))
}

func TestMetadata_isShown(t *testing.T) {
	rdb, key := connect(t), newKey()
	obtain(t, rdb, key, time.Hour, &redislock.Options{Token: "worker-1", Metadata: "host=web-1"})
	info, err := rdb.Do(t.Context(), "SLOCK.INFO", key, "FULL").Result()
	if err != nil {
		t.Fatal(err)
	}
	holder := info.(map[any]any)["holders"].([]any)[0].(map[any]any)
	if holder["token"] != "worker-1" || holder["meta"] != "host=web-1" {
		t.Fatalf("the holder is %v", holder)
	}
}

// A lock that package slock, or a command, took for read or changed to a reader's is not one of this package.
func TestLock_downgraded(t *testing.T) {
	rdb, key := connect(t), newKey()
	lock := obtain(t, rdb, key, time.Hour, nil)
	if err := rdb.Do(t.Context(), "SLOCK.DOWNGRADE", key, lock.Token(), 60_000).Err(); err != nil {
		t.Fatal(err)
	}
	wantError(t, lock.Refresh(t.Context(), time.Hour, nil), redislock.ErrNotObtained)
	wantError(t, lock.Release(t.Context()), redislock.ErrLockNotHeld)
	if left := rdb.Do(t.Context(), "SLOCK.PTTL", key, lock.Token()).Val().(int64); left < 1 {
		t.Fatalf("the reader has %d ms left", left)
	}
}
