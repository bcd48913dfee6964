package slock_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// Pairs are locks and unlocks of 16 goroutines, each on a lock of its own. Hand-offs are those of 64 goroutines on one
// lock. Both are compared with the same commands by go-redis; for a wait each goroutine has a connection of its own.

func BenchmarkPairs(b *testing.B)    { compare(b, 16, false) }
func BenchmarkHandoffs(b *testing.B) { compare(b, 64, true) }

func compare(b *testing.B, tasks int, contended bool) {
	key := func(task int) string {
		if contended {
			return "one"
		}
		return fmt.Sprint("own:", task)
	}
	b.Run("library", func(b *testing.B) {
		rdb := redis.NewClient(&redis.Options{Addr: exampleServer.addr})
		defer rdb.Close()
		locks := slock.New(rdb)
		defer locks.Close()
		inTasks(b, tasks, func(task int) error {
			hold, err := locks.Write(key(task)).With(slock.NoRenewal()).Lock(context.Background())
			if err != nil {
				return err
			}
			return hold.Unlock(context.Background())
		})
	})
	b.Run("raw", func(b *testing.B) {
		options := &redis.Options{Addr: exampleServer.addr, ReadTimeout: time.Minute}
		var wait []any
		if contended {
			options.PoolSize, wait = tasks, []any{"WAIT", 0}
		}
		rdb := redis.NewClient(options)
		defer rdb.Close()
		inTasks(b, tasks, func(task int) error {
			lock := append([]any{"SLOCK.LOCK", key(task), task, 10000}, wait...)
			if err := rdb.Do(context.Background(), lock...).Err(); err != nil {
				return err
			}
			return rdb.Do(context.Background(), "SLOCK.UNLOCK", key(task), task).Err()
		})
	})
}

// cpu is the time that this process and the server have worked, in microseconds.
func cpu(b *testing.B) (own, server float64) {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	rdb := redis.NewClient(&redis.Options{Addr: exampleServer.addr})
	defer rdb.Close()
	for _, name := range []string{"used_cpu_sys", "used_cpu_user"} {
		text := rdb.InfoMap(context.Background(), "cpu").Item("CPU", name)
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil {
			b.Fatal(err)
		}
		server += seconds * 1e6
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e3, server
}

func inTasks(b *testing.B, tasks int, turn func(task int) error) {
	own, server := cpu(b)
	b.ResetTimer()
	defer func() {
		b.StopTimer()
		ownNow, serverNow := cpu(b)
		b.ReportMetric((ownNow-own)/float64(b.N), "us-here/op")
		b.ReportMetric((serverNow-server)/float64(b.N), "us-server/op")
	}()
	var all sync.WaitGroup
	for task := range tasks {
		all.Add(1)
		go func() {
			defer all.Done()
			for range b.N/tasks + 1 {
				if err := turn(task); err != nil {
					b.Error(err)
					return
				}
			}
		}()
	}
	all.Wait()
}
