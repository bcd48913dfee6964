package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// work lets tasks add to a counter under the lock, or counts those that are under it at once.
func (o *opened) work(ctx context.Context, r Request) (any, error) {
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

func (o *opened) step(ctx context.Context, r Request) (inside int64, err error) {
	if r.Limit != nil {
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
func (o *opened) waitMany(ctx context.Context, r Request) (any, error) {
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
		all.Add(1)
		go func() {
			defer all.Done()
			errs <- task()
		}()
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
	locks := slock.New(o.clients[0]) // without the hooks that note all events
	defer locks.Close()
	request := locks.Write("cost").With(slock.NoRenewal())
	own := func() error {
		hold, err := request.Lock(ctx)
		if err != nil {
			return err
		}
		return hold.Unlock(ctx)
	}
	raw := func() error {
		token := rawToken()
		err := o.clients[0].Do(ctx, "SLOCK.LOCK", "cost", token, 10000, "META", "host=example pid=12345").Err()
		if err != nil {
			return err
		}
		return o.clients[0].Do(ctx, "SLOCK.MUNLOCK", 1, "cost", token, "REFUSE", 120000).Err()
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

// pairs compares lock and unlock of tasks that each have a lock of their own with the same two commands by go-redis.
func (o *opened) pairs(r Request) (any, error) {
	return o.compare(r, 0, func(task int) string { return "pairs:" + strconv.Itoa(task) }, nil)
}

// handoffs compares tasks that take turns at one lock with the same commands by go-redis, where each task that waits
// has a connection of its own.
func (o *opened) handoffs(r Request) (any, error) {
	return o.compare(r, r.Tasks, func(int) string { return r.Key }, []any{"WAIT", 0})
}

// compare measures turns by the library and by go-redis one after the other, five times, and gives the medians of the
// whole time. Both have clients with the defaults of go-redis, but for the number of connections.
func (o *opened) compare(r Request, connections int, key func(task int) string, wait []any) (any, error) {
	options := o.options.Simple()
	options.PoolSize = 0
	rdb := redis.NewClient(options)
	defer rdb.Close()
	locks := slock.New(rdb)
	defer locks.Close()
	raw := *options
	raw.PoolSize = connections
	raw.ReadTimeout = time.Minute
	plain := redis.NewClient(&raw)
	defer plain.Close()
	ctx := context.Background()
	run := func(rounds int, turn func(task int) error) (time.Duration, error) {
		var next atomic.Int64
		began := time.Now()
		err := inTasks(r.Tasks, func() error {
			task := int(next.Add(1))
			for range rounds {
				if err := turn(task); err != nil {
					return err
				}
			}
			return nil
		})
		return time.Since(began), err
	}
	byLibrary := func(task int) error {
		hold, err := locks.Write(key(task)).With(slock.NoRenewal()).Lock(ctx)
		if err != nil {
			return err
		}
		return hold.Unlock(ctx)
	}
	byHand := func(task int) error {
		token := rawToken()
		lock := append([]any{"SLOCK.LOCK", key(task), token, 10000, "META", "host=example pid=12345"}, wait...)
		err := plain.Do(ctx, lock...).Err()
		if err != nil {
			return err
		}
		return plain.Do(ctx, "SLOCK.MUNLOCK", 1, key(task), token, "REFUSE", 120000).Err()
	}
	var library, raws []time.Duration
	for turn := range 6 {
		one, err := run(r.Rounds/5+1, byLibrary)
		if err != nil {
			return nil, err
		}
		other, err := run(r.Rounds/5+1, byHand)
		if err != nil {
			return nil, err
		}
		if turn > 0 { // the first makes the connections
			library, raws = append(library, one), append(raws, other)
		}
	}
	return map[string]any{"library_us": medianUS(library) * 5, "raw_us": medianUS(raws) * 5}, nil
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

// rawToken is as long as a token of the library, and another one for each pair, as those are.
func rawToken() string { return fmt.Sprintf("raw:%022x", rand.Uint64()) }
