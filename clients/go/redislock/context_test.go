package redislock_test

import (
	"context"
	"testing"
	"time"

	"slock.example/go/redislock"
)

func TestObtain_withoutDeadlineEndsAfterTTL(t *testing.T) {
	rdb, key := connect(t), newKey()
	obtain(t, rdb, key, time.Hour, nil)
	_, err := redislock.Obtain(context.Background(), rdb, key, 20*time.Millisecond, &redislock.Options{
		RetryStrategy: redislock.LinearBackoff(time.Hour),
	})
	wantError(t, err, redislock.ErrNotObtained)
	wantError(t, err, context.DeadlineExceeded)
}

func TestObtain_deadlineMayExceedTTL(t *testing.T) {
	rdb, key := connect(t), newKey()
	holder := obtain(t, rdb, key, time.Hour, nil)
	retry := &spy{pause: 10 * time.Millisecond, before: func(retry int) {
		if retry == 5 {
			release(t, holder)
		}
	}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	_, err := redislock.Obtain(ctx, rdb, key, time.Millisecond, &redislock.Options{RetryStrategy: retry})
	if err != nil {
		t.Fatal(err)
	}
}

func TestObtain_cancelledInAPause(t *testing.T) {
	rdb, key := connect(t), newKey()
	holder := obtain(t, rdb, key, time.Hour, nil)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := redislock.Obtain(ctx, rdb, key, time.Hour, &redislock.Options{
		RetryStrategy: &spy{pause: time.Hour, before: func(int) { cancel() }},
	})
	wantError(t, err, redislock.ErrNotObtained)
	wantError(t, err, context.Canceled)

	release(t, holder)
	obtain(t, rdb, key, time.Hour, nil) // nothing is left of the attempts
}

func TestObtain_cancelledBefore(t *testing.T) {
	rdb, key := connect(t), newKey()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	retry := &spy{pause: time.Millisecond}
	_, err := redislock.Obtain(ctx, rdb, key, time.Hour, &redislock.Options{RetryStrategy: retry})
	if err != context.Canceled {
		t.Fatalf("the error is %v, want %v itself", err, context.Canceled)
	}
	if retry.calls != 0 {
		t.Fatalf("the strategy was asked %d times", retry.calls)
	}
}

func TestObtain_errorIsFinal(t *testing.T) {
	client := &failing{Client: connect(t)}
	retry := &spy{pause: time.Millisecond}
	client.failNext(1)
	_, err := redislock.Obtain(t.Context(), client, newKey(), time.Hour, &redislock.Options{
		Token: "worker-1", RetryStrategy: retry,
	})
	wantError(t, err, errInjected)
	if retry.calls != 0 {
		t.Fatalf("the strategy was asked %d times", retry.calls)
	}
}

func TestRefresh_cancelledInAPause(t *testing.T) {
	client := &failing{Client: connect(t)}
	lock := obtain(t, client, newKey(), time.Hour, nil)
	ctx, cancel := context.WithCancel(t.Context())
	client.failNext(1)
	err := lock.Refresh(ctx, time.Minute, &redislock.Options{
		RetryStrategy: &spy{pause: time.Hour, before: func(int) { cancel() }},
	})
	wantError(t, err, errInjected)
	wantError(t, err, context.Canceled)
	wantTTL(t, lock, time.Hour)
}

func TestRelease_cancelledBefore(t *testing.T) {
	lock := obtain(t, connect(t), newKey(), time.Hour, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantError(t, lock.Release(ctx), context.Canceled)
	wantTTL(t, lock, time.Hour)
}
