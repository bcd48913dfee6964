package main

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// work lets tasks add to a counter under the lock, or counts those that are under it at once.
func (o *opened) work(ctx context.Context, r request) (any, error) {
	request := o.request(r)
	var most atomic.Int64
	err := inTasks(r.Tasks, func() error {
		for range r.Additions {
			err := request.Do(ctx, func(ctx context.Context) error {
				inside, err := o.step(ctx, r)
				for old := most.Load(); inside > old && !most.CompareAndSwap(old, inside); old = most.Load() {
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return map[string]any{"done": r.Tasks * r.Additions, "most": most.Load()}, err
}

func (o *opened) step(ctx context.Context, r request) (inside int64, err error) {
	if r.Limit > 0 {
		inside, err = o.clients[0].Incr(ctx, r.Counter).Result()
		if err == nil {
			err = o.clients[0].Decr(ctx, r.Counter).Err()
		}
		return inside, err
	}
	n, err := o.clients[0].Get(ctx, r.Counter).Int64()
	if err != nil && err != redis.Nil {
		return 0, err
	}
	return 1, o.clients[0].Set(ctx, r.Counter, strconv.FormatInt(n+1, 10), 0).Err()
}

// waitMany lets tasks acquire and release once each.
func (o *opened) waitMany(ctx context.Context, r request) (any, error) {
	request := o.request(r)
	err := inTasks(r.Tasks, func() error {
		hold, err := request.Lock(ctx)
		if err != nil {
			return err
		}
		return hold.Unlock(ctx)
	})
	return map[string]any{"done": r.Tasks}, err
}

// inTasks runs so many tasks, and gives one of their errors.
func inTasks(tasks int, task func() error) error {
	errs := make(chan error, tasks)
	var all sync.WaitGroup
	for range tasks {
		all.Go(func() { errs <- task() })
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// cost compares a lock and unlock with the same two commands by go-redis, in turns of 100.
func (o *opened) cost(ctx context.Context, rounds int) (any, error) {
	ctx = context.WithoutCancel(ctx)
	request := o.locks.Write("cost").With(slock.NoRenewal())
	own := func() error {
		hold, err := request.Lock(ctx)
		if err != nil {
			return err
		}
		return hold.Unlock(ctx)
	}
	raw := func() error {
		if err := o.clients[0].Do(ctx, "SLOCK.LOCK", "cost", "raw", 10000).Err(); err != nil {
			return err
		}
		return o.clients[0].Do(ctx, "SLOCK.UNLOCK", "cost", "raw").Err()
	}
	var ownTimes, rawTimes []time.Duration
	for turn := 0; turn*100 < rounds; turn++ {
		var err error
		if ownTimes, err = times(own, ownTimes); err != nil {
			return nil, err
		}
		if rawTimes, err = times(raw, rawTimes); err != nil {
			return nil, err
		}
	}
	return map[string]any{"client_us": medianUS(ownTimes), "raw_us": medianUS(rawTimes)}, nil
}

func times(run func() error, to []time.Duration) ([]time.Duration, error) {
	for range 100 {
		began := time.Now()
		if err := run(); err != nil {
			return nil, err
		}
		to = append(to, time.Since(began))
	}
	return to, nil
}

func medianUS(times []time.Duration) float64 {
	slices.Sort(times)
	return float64(times[len(times)/2].Nanoseconds()) / 1000
}

func goroutines() int { return runtime.NumGoroutine() }
