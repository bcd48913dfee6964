package redislock_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"slock.example/go/redislock"
)

func TestRetryStrategies(t *testing.T) {
	const second, ms = time.Second, time.Millisecond
	for name, test := range map[string]struct {
		strategy redislock.RetryStrategy
		want     []time.Duration
	}{
		"none":   {redislock.NoRetry(), []time.Duration{0, 0, 0}},
		"linear": {redislock.LinearBackoff(second), []time.Duration{second, second, second}},
		"limit": {
			redislock.LimitRetry(redislock.LinearBackoff(second), 2), []time.Duration{second, second, 0, 0},
		},
		"exponential": {
			redislock.ExponentialBackoff(10*ms, 300*ms),
			[]time.Duration{
				10 * ms, 10 * ms, 16 * ms, 32 * ms, 64 * ms, 128 * ms, 256 * ms, 300 * ms, 300 * ms,
			},
		},
		"exponential without limits": {
			redislock.ExponentialBackoff(0, 0), []time.Duration{4 * ms, 8 * ms, 16 * ms},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i, want := range test.want {
				if got := test.strategy.NextBackoff(); got != want {
					t.Errorf("pause %d is %v, want %v", i, got, want)
				}
			}
		})
	}
}

func TestExponentialBackoff_stopsGrowing(t *testing.T) {
	strategy := redislock.ExponentialBackoff(0, 0)
	for attempt := range 100 {
		got := strategy.NextBackoff()
		if want := time.Millisecond << min(attempt+2, 26); got != want {
			t.Fatalf("pause %d is %v, want %v", attempt, got, want)
		}
	}
}

func TestLimitRetry_concurrent(t *testing.T) {
	strategy := redislock.LimitRetry(redislock.LinearBackoff(time.Millisecond), 100)
	var retries atomic.Int64
	var group sync.WaitGroup
	for range 64 {
		group.Add(1)
		go func() {
			defer group.Done()
			for range 100 {
				if strategy.NextBackoff() > 0 {
					retries.Add(1)
				}
			}
		}()
	}
	group.Wait()
	if got := retries.Load(); got != 100 {
		t.Fatalf("%d retries, want 100", got)
	}
}
