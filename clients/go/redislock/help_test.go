package redislock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go/redislock"
)

// obtain obtains a lock or fails the test.
func obtain(
	t *testing.T, client redislock.RedisClient, key string, ttl time.Duration, opt *redislock.Options,
) *redislock.Lock {
	t.Helper()
	// Without a deadline it may last as long as the ttl, which is too short for a connection here and there.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lock, err := redislock.Obtain(ctx, client, key, ttl, opt)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func release(t *testing.T, lock *redislock.Lock) {
	t.Helper()
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Fatalf("the error is %v, want %v", got, want)
	}
}

// wantReply checks that the server refused the arguments, and named this one.
func wantReply(t *testing.T, got error, argument string) {
	t.Helper()
	if got == nil || !strings.HasPrefix(got.Error(), "ERR "+argument+" must be") {
		t.Fatalf("the error is %v, want one about %s", got, argument)
	}
}

// wantTTL checks that the lock was given this ttl less than ten seconds ago.
func wantTTL(t *testing.T, lock *redislock.Lock, want time.Duration) {
	t.Helper()
	got, err := lock.TTL(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got > want || got < want-10*time.Second {
		t.Fatalf("the ttl is %v, want %v", got, want)
	}
}

// waitUntilLost waits for the end of the lock's ttl.
func waitUntilLost(t *testing.T, lock *redislock.Lock) {
	t.Helper()
	for {
		left, err := lock.TTL(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if left == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
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

// failing is a client whose next scripts fail before they are sent.
type failing struct {
	*redis.Client
	mutex sync.Mutex
	fails int
	calls int
}

var errInjected = errors.New("injected")

func (f *failing) failNext(n int) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.fails, f.calls = n, 0
}

// count tells how many scripts were to be run since failNext.
func (f *failing) count() int {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.calls
}

func (f *failing) fail(ctx context.Context) *redis.Cmd {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.calls++
	if f.fails == 0 {
		return nil
	}
	f.fails--
	command := redis.NewCmd(ctx)
	command.SetErr(errInjected)
	return command
}

func (f *failing) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	if command := f.fail(ctx); command != nil {
		return command
	}
	return f.Client.Eval(ctx, script, keys, args...)
}

func (f *failing) EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd {
	if command := f.fail(ctx); command != nil {
		return command
	}
	return f.Client.EvalSha(ctx, sha1, keys, args...)
}
