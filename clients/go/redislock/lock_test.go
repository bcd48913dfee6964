package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go/internal/testserver"
	"slock.example/go/redislock"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// connect gives a client of the shared server with these options.
func connect(t *testing.T, options redis.Options) *redis.Client {
	t.Helper()
	testserver.Need(t)
	options.Addr = testserver.Shared.Addr
	client := redis.NewClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

var lastKey atomic.Int64

// newKey gives a name that no other test uses.
func newKey() string { return fmt.Sprintf("lock:%d", lastKey.Add(1)) }

// obtain obtains a lock for an hour, or fails the test.
func obtain(t *testing.T, client redislock.RedisClient, opt *redislock.Options, keys ...string) *redislock.Lock {
	t.Helper()
	lock, err := redislock.ObtainMulti(t.Context(), client, keys, time.Hour, opt)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func wantErrors(t *testing.T, got error, all ...error) {
	t.Helper()
	for _, want := range all {
		if !errors.Is(got, want) {
			t.Fatalf("the error is %v, want %v", got, want)
		}
	}
}

// wantHeld checks that the lock was given this ttl less than ten seconds ago.
func wantHeld(t *testing.T, lock *redislock.Lock, ttl time.Duration) {
	t.Helper()
	if got, err := lock.TTL(t.Context()); err != nil || got > ttl || got < ttl-10*time.Second {
		t.Fatalf("the ttl is %v, want %v (%v)", got, ttl, err)
	}
}

// wantLost checks that the lock is not held, and that its holder changes nothing any more.
func wantLost(t *testing.T, lock *redislock.Lock) {
	t.Helper()
	if ttl, err := lock.TTL(t.Context()); ttl != 0 || err != nil {
		t.Fatalf("the ttl is %v (%v)", ttl, err)
	}
	retry := &spy{pause: time.Hour}
	err := lock.Refresh(t.Context(), time.Hour, &redislock.Options{RetryStrategy: retry})
	if err != redislock.ErrNotObtained || retry.calls != 0 {
		t.Fatalf("Refresh gives %v after %d retries", err, retry.calls)
	}
	wantErrors(t, lock.Release(t.Context()), redislock.ErrLockNotHeld)
}

// spy is a strategy that makes the same pause each time, counts, and calls a function before each pause.
type spy struct {
	pause  time.Duration
	before func(retry int)
	calls  int
}

func (s *spy) NextBackoff() time.Duration {
	s.calls++
	if s.before != nil {
		s.before(s.calls)
	}
	return s.pause
}

// loser makes connections that can be told to lose replies: the server executes the command, and the connection ends.
type loser struct {
	net.Conn
	replies *atomic.Int32
}

func (l loser) Read(buffer []byte) (int, error) {
	n, err := l.Conn.Read(buffer)
	if err == nil && l.replies.Add(-1) >= 0 {
		_ = l.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// connectLoser gives a client whose one connection is set up, and what has it lose so many replies.
func connectLoser(t *testing.T, retries int) (client *redis.Client, lose *atomic.Int32) {
	lose = &atomic.Int32{}
	client = connect(t, redis.Options{
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return loser{conn, lose}, err
		},
		MaxRetries: retries, PoolSize: 1, Protocol: 2, DisableIdentity: true,
	})
	_ = obtain(t, client, nil, newKey()).Release(t.Context()) // so the server knows the scripts
	return client, lose
}

func TestLock(t *testing.T) {
	key, client := newKey(), redislock.New(connect(t, redis.Options{}))
	lock, err := client.Obtain(t.Context(), key, time.Hour, &redislock.Options{Metadata: "host=web-1"})
	wantErrors(t, err, nil)
	if lock.Key() != key || lock.Metadata() != "host=web-1" || len(lock.Token()) != 22 || lock.Client != client {
		t.Fatal(lock.Key(), lock.Metadata(), lock.Token())
	}
	wantHeld(t, lock, time.Hour)
	none, err := lock.Obtain(t.Context(), key, time.Hour, nil)
	wantErrors(t, err, redislock.ErrNotObtained)
	_, err = none.TTL(t.Context())
	wantErrors(t, err, redislock.ErrLockNotHeld)
	wantErrors(t, none.Refresh(t.Context(), time.Minute, nil), redislock.ErrNotObtained)
	wantErrors(t, none.Release(t.Context()), redislock.ErrLockNotHeld)
	wantErrors(t, lock.Refresh(t.Context(), time.Minute, nil), nil)
	wantHeld(t, lock, time.Minute)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	wantErrors(t, lock.Release(over), context.Canceled)
	wantErrors(t, lock.Release(t.Context()), nil)
	wantLost(t, lock)
}

// A holder that has lost its lock in any way changes nothing for the next one.
func TestLostLocks(t *testing.T) {
	rdb := connect(t, redis.Options{})
	run := func(number string) *redislock.Options {
		return &redislock.Options{Token: "worker-1", Metadata: "run " + number}
	}
	for name, lose := range map[string]func(lock *redislock.Lock, key string){
		"expired": func(lock *redislock.Lock, _ string) {
			wantErrors(t, lock.Refresh(t.Context(), time.Millisecond, nil), nil)
			testserver.Eventually(t, func() bool { ttl, _ := lock.TTL(t.Context()); return ttl == 0 })
		},
		"deleted":     func(_ *redislock.Lock, key string) { rdb.Del(t.Context(), key) },
		"overwritten": func(_ *redislock.Lock, key string) { rdb.Set(t.Context(), key, "another", 0) },
		"a reader's":  func(_ *redislock.Lock, key string) { rdb.Do(t.Context(), "SLOCK.DOWNGRADE", key, "worker-1", 60_000) },
		"taken by its next run": func(_ *redislock.Lock, key string) {
			next := obtain(t, rdb, run("2"), key)
			defer wantHeld(t, next, time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			key := newKey()
			lock := obtain(t, rdb, run("1"), key)
			lose(lock, key)
			wantLost(t, lock)
		})
	}
}

func TestRetries(t *testing.T) {
	rdb, key, other := connect(t, redis.Options{}), newKey(), newKey()
	holder := obtain(t, rdb, nil, key)
	try := func(ctx context.Context, key string, ttl time.Duration, retry redislock.RetryStrategy) error {
		_, err := redislock.Obtain(ctx, rdb, key, ttl, &redislock.Options{RetryStrategy: retry})
		return err
	}
	// When none is left, the error is ErrNotObtained itself.
	if err := try(t.Context(), key, time.Hour, redislock.LimitRetry(&spy{pause: 1}, 2)); err != redislock.ErrNotObtained {
		t.Fatal(err)
	}
	// Without a deadline the attempts end after the ttl, with one at it, also when the context is cancelled in a pause.
	hour := redislock.LinearBackoff(time.Hour)
	err := try(context.Background(), key, 20*time.Millisecond, hour)
	wantErrors(t, err, redislock.ErrNotObtained, context.DeadlineExceeded)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	wantErrors(t, try(ctx, key, time.Hour, hour), redislock.ErrNotObtained, context.DeadlineExceeded)
	ctx, cancel = context.WithCancel(t.Context())
	err = try(ctx, key, time.Hour, &spy{pause: time.Hour, before: func(int) { cancel() }})
	wantErrors(t, err, redislock.ErrNotObtained, context.Canceled)
	// Other errors are final.
	retry := &spy{pause: 1}
	rdb.LPush(t.Context(), other, "element")
	if err := try(t.Context(), other, time.Hour, retry); !redis.HasErrorPrefix(err, "WRONGTYPE") || retry.calls != 0 {
		t.Fatal(err, retry.calls)
	}
	if err := try(ctx, other, time.Hour, retry); err != context.Canceled || retry.calls != 0 {
		t.Fatal(err, retry.calls)
	}
	// A deadline may be later than the ttl.
	ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if err := try(ctx, newKey(), 0, retry); !redis.HasErrorPrefix(err, "ttl must be") {
		t.Fatal(err)
	}
	wantErrors(t, try(t.Context(), newKey(), 0, retry), context.DeadlineExceeded)
	wantErrors(t, try(ctx, key, time.Millisecond, &spy{pause: time.Millisecond, before: func(retry int) {
		if retry == 5 {
			_ = holder.Release(t.Context())
		}
	}}), nil)
}

func TestStrategies(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		strategy redislock.RetryStrategy
		want     []time.Duration
	}{
		{redislock.NoRetry(), []time.Duration{0, 0}},
		{redislock.LinearBackoff(ms), []time.Duration{ms, ms}},
		{redislock.LimitRetry(redislock.LinearBackoff(ms), 2), []time.Duration{ms, ms, 0, 0}},
		{redislock.ExponentialBackoff(10*ms, 50*ms), []time.Duration{10 * ms, 10 * ms, 16 * ms, 32 * ms, 50 * ms, 50 * ms}},
		{redislock.ExponentialBackoff(0, 0), []time.Duration{4 * ms, 8 * ms, 16 * ms}},
	} {
		for _, want := range test.want {
			if got := test.strategy.NextBackoff(); got != want {
				t.Errorf("a pause is %v, and not one of %v", got, test.want)
			}
		}
	}
}

func TestSeveralKeys(t *testing.T) {
	rdb, worker := connect(t, redis.Options{}), &redislock.Options{Token: "worker-1"}
	a, b, c := newKey(), newKey(), newKey()
	refused := func(opt *redislock.Options, keys ...string) {
		t.Helper()
		_, err := redislock.ObtainMulti(t.Context(), rdb, keys, time.Hour, opt)
		wantErrors(t, err, redislock.ErrNotObtained)
	}
	keys := []string{a, b, a} // one may be named twice
	lock := obtain(t, rdb, worker, keys...)
	keys[0] = "changed by the caller"
	if lock.Key() != a || !slices.Equal(lock.Keys(), []string{a, b, a}) {
		t.Fatal(lock.Keys())
	}
	refused(nil, b, c) // all or none
	if rdb.Exists(t.Context(), c).Val() != 0 {
		t.Fatal("a key is left")
	}
	refused(worker, b, c) // a token that holds a part of the keys
	wantErrors(t, obtain(t, rdb, worker, b).Refresh(t.Context(), time.Minute, nil), nil)
	wantHeld(t, lock, time.Minute) // the least of its keys
	wantErrors(t, lock.Refresh(t.Context(), 2*time.Hour, nil), nil)
	wantHeld(t, lock, 2*time.Hour)
	rdb.Del(t.Context(), a)
	wantLost(t, lock) // one of its keys is, and the release frees the others
	obtain(t, rdb, nil, a, b)
}

// A token obtains again what it holds. Tokens and metadata are any bytes, and are compared as a whole.
func TestTokens(t *testing.T) {
	rdb, key := connect(t, redis.Options{}), newKey()
	options := &redislock.Options{Token: "\x00\xff\r\n", Metadata: "\x00 ü\xfe\n"}
	first, second := obtain(t, rdb, options, key), obtain(t, rdb, options, key)
	for _, token := range []string{options.Token[:3], options.Token + "\x00"} {
		_, err := redislock.Obtain(t.Context(), rdb, key, time.Hour, &redislock.Options{Token: token})
		wantErrors(t, err, redislock.ErrNotObtained)
	}
	info := rdb.Do(t.Context(), "SLOCK.INFO", key, "FULL").Val().(map[any]any)
	if holder := info["holders"].([]any)[0].(map[any]any); holder["token"] != options.Token || holder["meta"] != options.Metadata {
		t.Fatal(holder)
	}
	wantHeld(t, first, time.Hour)
	wantErrors(t, second.Release(t.Context()), nil)
	wantLost(t, first)
}

// A lock whose reply was lost is released if nobody knows its token. Else it stays, because somebody may hold it.
func TestLostReplies(t *testing.T) {
	rdb, lose := connectLoser(t, -1)
	key, kept, worker := newKey(), newKey(), &redislock.Options{Token: "worker-1"}
	lose.Store(1)
	_, err := redislock.Obtain(t.Context(), rdb, key, time.Hour, nil)
	wantErrors(t, err, io.ErrUnexpectedEOF)
	testserver.Eventually(t, func() bool { return rdb.Exists(t.Context(), key).Val() == 0 })
	lose.Store(1)
	_, err = redislock.Obtain(t.Context(), rdb, kept, time.Hour, worker)
	wantErrors(t, err, io.ErrUnexpectedEOF)
	if rdb.Exists(t.Context(), kept).Val() != 1 {
		t.Fatal("it was released")
	}
	lock := obtain(t, rdb, worker, kept)
	lose.Store(1)
	retry := redislock.LimitRetry(redislock.LinearBackoff(time.Millisecond), 1)
	wantErrors(t, lock.Refresh(t.Context(), time.Minute, &redislock.Options{RetryStrategy: retry}), nil)
	wantHeld(t, lock, time.Minute)
	lose.Store(2)
	wantErrors(t, lock.Refresh(t.Context(), time.Hour, &redislock.Options{RetryStrategy: retry}), io.ErrUnexpectedEOF)

	rdb, lose = connectLoser(t, 3) // go-redis sends again
	lose.Store(1)
	wantHeld(t, obtain(t, rdb, nil, newKey()), time.Hour)
}

// A server that has just started answers errors for a while, and the retry strategy asks again.
func TestServerThatHasJustStarted(t *testing.T) {
	rdb := testserver.New(t, "slock.restart-grace-ms", "3600000").Client(t)
	_, err := redislock.Obtain(t.Context(), rdb, "job", time.Hour, &redislock.Options{RetryStrategy: redislock.NoRetry()})
	if !redis.HasErrorPrefix(err, "GRACE") {
		t.Fatal(err)
	}
	lock := obtain(t, rdb, &redislock.Options{RetryStrategy: &spy{pause: time.Millisecond, before: func(int) {
		rdb.ConfigSet(t.Context(), "slock.restart-grace-ms", "0")
	}}}, "job")
	rdb.ScriptFlush(t.Context()) // and a failover to a server that does not know the scripts
	wantHeld(t, lock, time.Hour)
}
