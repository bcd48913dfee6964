package slock_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// result is how a Lock ended that ran beside the test.
type result struct {
	hold *slock.Hold
	err  error
}

func lockBeside(ctx context.Context, request slock.Request) <-chan result {
	done := make(chan result, 1)
	go func() {
		hold, err := request.Lock(ctx)
		done <- result{hold, err}
	}()
	return done
}

func TestWaitersAreServedInOrder(t *testing.T) {
	w := newWorld(t)
	first := must(w.locks.Write("job").Lock(t.Context()))
	second := lockBeside(t.Context(), w.locks.Write("job"))
	w.waiters("job", 1)
	third := lockBeside(t.Context(), w.locks.Read("job"))
	w.waiters("job", 2)
	must(first.Release(t.Context()))
	next := <-second
	if next.err != nil || len(third) > 0 {
		t.Fatal("the second is not the next", next.err)
	}
	must(next.hold.Release(t.Context()))
	last := <-third
	if last.err != nil || last.hold.Fence() <= next.hold.Fence() {
		t.Fatal(last)
	}
}

func TestWaitRunsOut(t *testing.T) {
	for name, option := range waitings() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, option)
			w.do("SLOCK.LOCK", "job", another, 60000)
			_, err := w.locks.Write("job").With(slock.Wait(30 * time.Millisecond)).Lock(t.Context())
			if !errors.Is(err, slock.ErrTimedOut) || errors.Is(err, context.DeadlineExceeded) ||
				!strings.Contains(err.Error(), "job") {
				t.Fatalf("the wait ended with %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
			defer cancel()
			_, err = w.locks.Write("job").Lock(ctx)
			if !errors.Is(err, slock.ErrTimedOut) || !errors.Is(err, context.DeadlineExceeded) ||
				!strings.Contains(err.Error(), "job") {
				t.Fatalf("the deadline ended with %v", err)
			}
			_, err = w.locks.Write("job", "other").With(slock.Wait(0)).Lock(t.Context())
			if !errors.Is(err, slock.ErrTimedOut) || !strings.Contains(err.Error(), "job, other") {
				t.Fatalf("the wait of zero ended with %v", err)
			}
			w.waiters("job", 0)
		})
	}
}

// The server is a replica that nobody writes to, and then it is silent.
func TestDeadlineHasTheLastErrorAsItsCause(t *testing.T) {
	for name, option := range waitings() {
		for _, deadline := range []string{"of the context", "of the wait"} {
			t.Run(name+", "+deadline, func(t *testing.T) {
				w := newWorld(t, option)
				w.do("REPLICAOF", "127.0.0.1", 1)
				request, ctx := w.locks.Write("job"), t.Context()
				if deadline == "of the wait" {
					request = request.With(slock.Wait(time.Second))
				} else {
					limited, cancel := context.WithTimeout(ctx, time.Second)
					defer cancel()
					ctx = limited
				}
				waiting := lockBeside(ctx, request)
				eventually(t, func() bool {
					return w.rdb.InfoMap(t.Context(), "errorstats").Item("Errorstats", "errorstat_READONLY") != ""
				})
				w.pause()
				r := <-waiting
				w.resume()
				w.do("REPLICAOF", "NO", "ONE")
				var reply redis.Error
				if !errors.Is(r.err, slock.ErrTimedOut) || !errors.As(r.err, &reply) {
					t.Fatal(r.err)
				}
				if errors.Is(r.err, context.DeadlineExceeded) != (deadline == "of the context") {
					t.Fatal(r.err)
				}
			})
		}
	}
}

func TestDeadlineAtASilentServerHasACause(t *testing.T) {
	w := newWorld(t)
	must(must(w.locks.Write("job").Lock(t.Context())).Release(t.Context()))
	w.pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := w.locks.Write("job").Lock(ctx)
	w.resume()
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "did not answer") {
		t.Fatal(err)
	}
}

func TestCancelledWaitLeavesNothing(t *testing.T) {
	for name, option := range waitings() {
		if name == "poll" {
			continue // it has no place in the queue
		}
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, option)
			w.do("SLOCK.LOCK", "a", another, 60000)
			ctx, cancel := context.WithCancelCause(t.Context())
			waiting := lockBeside(ctx, w.locks.Write("a", "b"))
			w.waiters("a", 1)
			problem := errors.New("problem")
			cancel(problem)
			r := <-waiting
			if !errors.Is(r.err, context.Canceled) || !errors.Is(r.err, problem) {
				t.Fatalf("it ended with %v", r.err)
			}
			w.waiters("a", 0)
			w.nothingLeft("b")
			w.do("SLOCK.UNLOCK", "a", another)
			w.nothingLeft("a")
		})
	}
}

// Requests are cancelled at all moments: before they are sent, on their way, in the queue, as they are
// granted.
func TestCancelledAtAnyMomentLeavesNothing(t *testing.T) {
	for name, option := range waitings() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, option)
			var tasks sync.WaitGroup
			for n := range 200 {
				beside(&tasks, func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n)*50*time.Microsecond)
					defer cancel()
					if hold, err := w.locks.Write("job").Lock(ctx); err == nil {
						_ = hold.Unlock(t.Context())
					}
				})
			}
			tasks.Wait()
			w.nothingLeft("job")
		})
	}
}

func TestCloseWaitsUntilRequestsHaveLeft(t *testing.T) {
	for name, option := range waitings() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, option)
			w.do("SLOCK.LOCK", "job", another, 60000)
			waiting := lockBeside(t.Context(), w.locks.Write("job"))
			if name != "poll" {
				w.waiters("job", 1)
			}
			if err := w.locks.Close(); err != nil {
				t.Fatal(err)
			}
			if r := <-waiting; !errors.Is(r.err, slock.ErrClosed) {
				t.Fatal(r.err)
			}
			if waiters := w.info("job", "waiters"); waiters != int64(0) {
				t.Fatalf("%v wait after Close", waiters)
			}
		})
	}
}

func TestNothingIsAskedAfterClose(t *testing.T) {
	w := newWorld(t)
	w.do("SLOCK.LOCK", "job", another, 60000)
	if err := w.locks.Close(); err != nil {
		t.Fatal(err)
	}
	request := w.locks.Write("job")
	_, lockErr := request.Lock(t.Context())
	_, _, tryErr := request.TryLock(t.Context())
	_, adoptErr := request.Adopt(t.Context(), another)
	for _, err := range []error{lockErr, tryErr, adoptErr} {
		if !errors.Is(err, slock.ErrClosed) {
			t.Error(err)
		}
	}
}

// The server takes no wait of more than a year.
func TestWaitOfCenturies(t *testing.T) {
	w := newWorld(t)
	w.do("SLOCK.LOCK", "job", another, 60000)
	waiting := lockBeside(t.Context(), w.locks.Write("job").With(slock.Wait(math.MaxInt64)))
	w.waiters("job", 1)
	w.do("SLOCK.UNLOCK", "job", another)
	if r := <-waiting; r.err != nil {
		t.Fatal(r.err)
	}
}

func TestManyWaitsShareOneConnection(t *testing.T) {
	w := newWorld(t)
	rdb := redis.NewClient(&redis.Options{Addr: w.addr, PoolSize: 2, ClientName: "many"})
	defer rdb.Close()
	locks := slock.New(rdb)
	defer locks.Close()
	w.do("SLOCK.LOCK", "job", another, 60000)
	const tasks = 500
	var all sync.WaitGroup
	for range tasks {
		beside(&all, func() {
			hold, err := locks.Write("job").Lock(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			_ = hold.Unlock(t.Context())
		})
	}
	w.waiters("job", tasks)
	connections := 0
	for _, line := range clients(w) {
		if line["name"] == "many" {
			connections++
		}
	}
	if connections > 5 { // newer versions of go-redis have a pool of the same size for pipelines
		t.Errorf("%d connections", connections)
	}
	w.do("SLOCK.UNLOCK", "job", another)
	all.Wait()
	w.nothingLeft("job")
}

func TestLostListeningConnectionIsNoticed(t *testing.T) {
	w := newWorld(t)
	w.do("SLOCK.LOCK", "job", another, 60000)
	waiting := lockBeside(t.Context(), w.locks.Write("job"))
	w.waiters("job", 1)
	before := w.do("PUBSUB", "SHARDCHANNELS").([]any)[0]
	w.do("CLIENT", "KILL", "TYPE", "pubsub")
	eventually(t, func() bool {
		channels, _ := w.do("PUBSUB", "SHARDCHANNELS").([]any)
		return len(channels) == 1 && channels[0] != before
	})
	w.waiters("job", 1)
	w.do("SLOCK.UNLOCK", "job", another)
	if r := <-waiting; r.err != nil {
		t.Fatal(r.err)
	}
}

func TestServerRestartsDuringAWait(t *testing.T) {
	for name, option := range waitings() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, option)
			w.do("SLOCK.LOCK", "job", another, 60000)
			waiting := lockBeside(t.Context(), w.locks.Write("job"))
			if name != "poll" {
				w.waiters("job", 1)
			}
			w.kill()
			if err := w.start(); err != nil {
				t.Fatal(err)
			}
			if r := <-waiting; r.err != nil {
				t.Fatal(r.err)
			}
		})
	}
}

func TestNobodyListensBeforeARequestHasToWait(t *testing.T) {
	w := newWorld(t)
	must(must(w.locks.Write("job").Lock(t.Context())).Release(t.Context()))
	if n := w.calls("ssubscribe"); n != 0 {
		t.Fatalf("%d subscriptions", n)
	}
}

func TestUserWithoutChannelsBlocks(t *testing.T) {
	w := newWorld(t)
	w.do("ACL", "SETUSER", "u", "on", "nopass", "~*", "+@all", "resetchannels")
	rdb := redis.NewClient(&redis.Options{Addr: w.addr, Username: "u", Password: "any"})
	defer rdb.Close()
	locks := slock.New(rdb)
	defer locks.Close()
	w.do("SLOCK.LOCK", "job", another, 60000)
	waiting := lockBeside(t.Context(), locks.Write("job"))
	w.waiters("job", 1)
	w.do("SLOCK.UNLOCK", "job", another)
	if r := <-waiting; r.err != nil {
		t.Fatal(r.err)
	}
}
