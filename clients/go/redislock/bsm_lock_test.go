// The tests in the files bsm_*_test.go are the cases of the tests of bsm/redislock, rewritten.

package redislock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"slock.example/go/redislock"
)

func TestClient(t *testing.T) {
	rdb, key := connect(t), newKey()
	client := redislock.New(rdb)

	lock, err := client.Obtain(t.Context(), key, time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(lock.Token()) != 22 {
		t.Fatalf("the token is %q, want 22 characters", lock.Token())
	}
	wantTTL(t, lock, time.Hour)

	_, err = client.Obtain(t.Context(), key, time.Hour, nil)
	wantError(t, err, redislock.ErrNotObtained)

	release(t, lock)
	if _, err = client.Obtain(t.Context(), key, time.Hour, nil); err != nil {
		t.Fatal(err)
	}
}

func TestObtain(t *testing.T) {
	release(t, obtain(t, connect(t), newKey(), time.Hour, nil))
}

func TestObtain_metadata(t *testing.T) {
	lock := obtain(t, connect(t), newKey(), time.Hour, &redislock.Options{Metadata: "host=web-1"})
	if lock.Metadata() != "host=web-1" {
		t.Fatalf("the metadata is %q", lock.Metadata())
	}
}

func TestObtain_customToken(t *testing.T) {
	rdb, key := connect(t), newKey()

	first := obtain(t, rdb, key, time.Hour, &redislock.Options{Token: "worker-1", Metadata: "run 1"})
	if first.Token() != "worker-1" || first.Metadata() != "run 1" {
		t.Fatalf("the token is %q, the metadata %q", first.Token(), first.Metadata())
	}

	_, err := redislock.Obtain(t.Context(), rdb, key, time.Hour, nil)
	wantError(t, err, redislock.ErrNotObtained)

	second := obtain(t, rdb, key, time.Hour, &redislock.Options{Token: "worker-1", Metadata: "run 2"})
	if second.Token() != "worker-1" || second.Metadata() != "run 2" {
		t.Fatalf("the token is %q, the metadata %q", second.Token(), second.Metadata())
	}
}

func TestObtain_retrySuccess(t *testing.T) {
	rdb, key := connect(t), newKey()
	obtain(t, rdb, key, 20*time.Millisecond, nil)
	lock := obtain(t, rdb, key, time.Hour, &redislock.Options{
		RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(20*time.Millisecond), 3),
	})
	release(t, lock)
}

func TestObtain_retryFailure(t *testing.T) {
	rdb, key := connect(t), newKey()
	obtain(t, rdb, key, time.Hour, nil)
	_, err := redislock.Obtain(t.Context(), rdb, key, time.Hour, &redislock.Options{
		RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(5*time.Millisecond), 2),
	})
	if err != redislock.ErrNotObtained {
		t.Fatalf("the error is %v, want %v itself", err, redislock.ErrNotObtained)
	}
}

func TestObtain_retryUntilDeadline(t *testing.T) {
	rdb, key := connect(t), newKey()
	obtain(t, rdb, key, time.Hour, nil)

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := redislock.Obtain(ctx, rdb, key, time.Hour, &redislock.Options{
		RetryStrategy: redislock.LinearBackoff(time.Hour),
	})
	wantError(t, err, redislock.ErrNotObtained)
	wantError(t, err, context.DeadlineExceeded)
}

func TestObtain_concurrent(t *testing.T) {
	rdb, key := connect(t), newKey()
	locks := make(chan *redislock.Lock, 100)
	var group sync.WaitGroup
	for range cap(locks) {
		group.Add(1)
		go func() {
			defer group.Done()
			lock, err := redislock.Obtain(t.Context(), rdb, key, time.Hour, nil)
			if err == nil {
				locks <- lock
			} else if err != redislock.ErrNotObtained {
				t.Error(err)
			}
		}()
	}
	group.Wait()
	if len(locks) != 1 {
		t.Fatalf("%d goroutines have the lock", len(locks))
	}
}

func TestRefresh(t *testing.T) {
	lock := obtain(t, connect(t), newKey(), time.Hour, nil)
	wantTTL(t, lock, time.Hour)
	if err := lock.Refresh(t.Context(), time.Minute, nil); err != nil {
		t.Fatal(err)
	}
	wantTTL(t, lock, time.Minute)
}

func TestRefresh_retryUnused(t *testing.T) {
	lock := obtain(t, connect(t), newKey(), time.Hour, nil)
	retry := &spy{pause: time.Millisecond}
	if err := lock.Refresh(t.Context(), time.Minute, &redislock.Options{RetryStrategy: retry}); err != nil {
		t.Fatal(err)
	}
	wantTTL(t, lock, time.Minute)
	if retry.calls != 0 {
		t.Fatalf("the strategy was asked %d times", retry.calls)
	}
}

func TestRefresh_lostIsFinal(t *testing.T) {
	lock := obtain(t, connect(t), newKey(), 5*time.Millisecond, nil)
	waitUntilLost(t, lock)
	retry := &spy{pause: time.Hour}
	err := lock.Refresh(t.Context(), time.Hour, &redislock.Options{RetryStrategy: retry})
	if err != redislock.ErrNotObtained {
		t.Fatalf("the error is %v, want %v itself", err, redislock.ErrNotObtained)
	}
	if retry.calls != 0 {
		t.Fatalf("the strategy was asked %d times", retry.calls)
	}
}

func TestRefresh_retryAfterErrors(t *testing.T) {
	client := &failing{Client: connect(t)}
	lock := obtain(t, client, newKey(), time.Hour, nil)

	client.failNext(2)
	err := lock.Refresh(t.Context(), time.Minute, &redislock.Options{
		RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(time.Millisecond), 5),
	})
	if err != nil {
		t.Fatal(err)
	}
	if client.fails != 0 {
		t.Fatalf("%d errors are left", client.fails)
	}
	wantTTL(t, lock, time.Minute)
}

func TestRefresh_retryExhausted(t *testing.T) {
	client := &failing{Client: connect(t)}
	lock := obtain(t, client, newKey(), time.Hour, nil)

	client.failNext(10)
	err := lock.Refresh(t.Context(), time.Minute, &redislock.Options{
		RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(time.Millisecond), 2),
	})
	wantError(t, err, errInjected)
	if errors.Is(err, redislock.ErrNotObtained) {
		t.Fatalf("the error says that the lock is lost: %v", err)
	}
	if client.fails != 7 {
		t.Fatalf("%d errors are left, want 7", client.fails)
	}
}

func TestRefresh_expired(t *testing.T) {
	lock := obtain(t, connect(t), newKey(), 5*time.Millisecond, nil)
	waitUntilLost(t, lock)
	wantError(t, lock.Refresh(t.Context(), time.Minute, nil), redislock.ErrNotObtained)
}

func TestRelease_expired(t *testing.T) {
	lock := obtain(t, connect(t), newKey(), 5*time.Millisecond, nil)
	waitUntilLost(t, lock)
	wantError(t, lock.Release(t.Context()), redislock.ErrLockNotHeld)
}

func TestRelease_overwritten(t *testing.T) {
	rdb, key := connect(t), newKey()
	lock := obtain(t, rdb, key, time.Hour, nil)
	if err := rdb.Set(t.Context(), key, "another", 0).Err(); err != nil {
		t.Fatal(err)
	}
	wantError(t, lock.Release(t.Context()), redislock.ErrLockNotHeld)
	if value := rdb.Get(t.Context(), key).Val(); value != "another" {
		t.Fatalf("the value is %q", value)
	}
}

func TestRelease_notObtained(t *testing.T) {
	rdb, key := connect(t), newKey()
	obtain(t, rdb, key, time.Hour, nil)
	lock, err := redislock.Obtain(t.Context(), rdb, key, time.Minute, nil)
	wantError(t, err, redislock.ErrNotObtained)
	if lock != nil {
		t.Fatalf("a lock was returned: %v", lock)
	}
	wantError(t, lock.Release(t.Context()), redislock.ErrLockNotHeld)
}

func TestObtainMulti(t *testing.T) {
	rdb := connect(t)
	a, b, c, d := newKey(), newKey(), newKey(), newKey()
	obtainMulti := func(keys ...string) (*redislock.Lock, error) {
		return redislock.ObtainMulti(t.Context(), rdb, keys, time.Hour, nil)
	}

	ab, err := obtainMulti(a, b)
	if err != nil {
		t.Fatal(err)
	}
	cd, err := obtainMulti(c, d)
	if err != nil {
		t.Fatal(err)
	}
	_, err = obtainMulti(b, c)
	wantError(t, err, redislock.ErrNotObtained)

	release(t, ab)
	if _, err = obtainMulti(a); err != nil {
		t.Fatal(err)
	}
	_, err = obtainMulti(b, c)
	wantError(t, err, redislock.ErrNotObtained)

	release(t, cd)
	if _, err = obtainMulti(b, c); err != nil {
		t.Fatal(err)
	}
}
