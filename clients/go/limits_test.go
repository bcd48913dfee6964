package slock_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// within fails when a call took longer than its limit and a second. The machine may be loaded.
func within(t *testing.T, limit time.Duration, call func()) {
	t.Helper()
	began := time.Now()
	call()
	took := time.Since(began)
	if took > limit+2*time.Second {
		t.Fatalf("it took %s, not %s", took, limit)
	}
}

func TestReleaseEndsWhenTheServerIsAway(t *testing.T) {
	for name, away := range map[string]func(*world){
		"killed": func(w *world) { w.kill() },
		"silent": func(w *world) { w.pause() },
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{}
			w := newWorld(t, slock.RetryFor(300*time.Millisecond), slock.TTL(time.Hour), r.hooks())
			hold := must(w.locks.Write("job").Lock(t.Context()))
			away(w)
			within(t, 300*time.Millisecond, func() {
				if released, err := hold.Release(context.Background()); released || !errors.Is(err, slock.ErrTimedOut) {
					t.Fatal(released, err)
				}
			})
			if !r.has("job release failed") {
				t.Fatal("the hook was not told")
			}
		})
	}
}

func TestFinishedWorkIsASuccess(t *testing.T) {
	r := &recorder{}
	w := newWorld(t, slock.RetryFor(300*time.Millisecond), slock.TTL(time.Hour), r.hooks())
	within(t, 300*time.Millisecond, func() {
		if err := w.locks.Write("job").Do(t.Context(), func(context.Context) error {
			w.kill()
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
	if !r.has("job release failed") {
		t.Fatal("the hook was not told")
	}
}

func TestOneQuestionToASilentServer(t *testing.T) {
	w := newWorld(t, slock.RetryFor(300*time.Millisecond))
	w.pause()
	defer w.resume()
	for name, ask := range map[string]func() error{
		"a wait of zero": func() error {
			_, err := w.locks.Write("job").With(slock.Wait(0)).Lock(context.Background())
			return err
		},
		"a try": func() error {
			_, _, err := w.locks.Write("job").TryLock(context.Background())
			return err
		},
		"an adoption": func() error {
			_, err := w.locks.Write("job").Adopt(context.Background(), "mine")
			return err
		},
	} {
		within(t, 300*time.Millisecond, func() {
			if err := ask(); !errors.Is(err, slock.ErrTimedOut) || !strings.Contains(err.Error(), "did not answer") {
				t.Fatal(name, err)
			}
		})
	}
}

func TestUnreachableServerIsAnErrorSoon(t *testing.T) {
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	nobody := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}).String()
	for address, text := range map[string]string{nobody: "refused", "no-such-name.invalid:6379": "no-such-name"} {
		rdb := redis.NewClient(&redis.Options{Addr: address})
		defer rdb.Close()
		locks := slock.New(rdb, slock.RetryFor(300*time.Millisecond))
		defer locks.Close()
		for _, wait := range []slock.RequestOption{slock.Wait(time.Hour), slock.Label("without a wait")} {
			within(t, 300*time.Millisecond, func() {
				_, err := locks.Write("job").With(wait).Lock(context.Background())
				if !errors.Is(err, slock.ErrTimedOut) || !strings.Contains(err.Error(), text) {
					t.Fatal(err)
				}
			})
		}
	}
}

func TestWaitSurvivesAnOutageForAWhile(t *testing.T) {
	for name, option := range waitings() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, option, slock.RetryFor(500*time.Millisecond),
				slock.RetryWaitFor(500*time.Millisecond))
			w.do("SLOCK.LOCK", "job", another, 60000)
			waiting := lockBeside(t.Context(), w.locks.Write("job"))
			eventually(t, func() bool { return w.calls("slock.lock") > 1 })
			if name != "poll" {
				w.waiters("job", 1)
			}
			w.kill()
			within(t, 500*time.Millisecond, func() {
				if r := <-waiting; !errors.Is(r.err, slock.ErrTimedOut) || !strings.Contains(r.err.Error(), "refused") {
					t.Fatal(r.err)
				}
			})
		})
	}
}

// By NOTIFY its silence is noticed by the next test of the connection.
func TestServerThatFallsSilentEndsAWaitByBlocking(t *testing.T) {
	w := newWorld(t, slock.WaitByBlocking(), slock.RetryWaitFor(500*time.Millisecond))
	w.do("SLOCK.LOCK", "job", another, 60000)
	waiting := lockBeside(t.Context(), w.locks.Write("job"))
	w.waiters("job", 1)
	w.pause()
	within(t, 500*time.Millisecond, func() {
		if r := <-waiting; !errors.Is(r.err, slock.ErrTimedOut) {
			t.Fatal(r.err)
		}
	})
}

// The program uses all connections of its pool.
func TestFullPoolOfTheProgramDelaysNothing(t *testing.T) {
	w := newWorld(t)
	rdb := redis.NewClient(&redis.Options{Addr: w.addr, PoolSize: 1, PoolTimeout: 100 * time.Millisecond})
	defer rdb.Close()
	locks := slock.New(rdb)
	defer locks.Close()
	popped := make(chan struct{})
	go func() {
		defer close(popped)
		_ = rdb.BLPop(context.Background(), 0, "nothing").Err()
	}()
	eventually(t, func() bool { return strings.Contains(w.do("CLIENT", "LIST").(string), "cmd=blpop") })
	hold := must(locks.Write("job").With(slock.TTL(600 * time.Millisecond)).Lock(t.Context()))
	before := w.calls("slock.extend")
	eventually(t, func() bool { return w.calls("slock.extend") >= before+5 })
	if released, err := hold.Release(t.Context()); !released || err != nil {
		t.Fatal(released, err)
	}
	w.do("RPUSH", "nothing", "something")
	<-popped
}

func TestGivingUpHasAnEnd(t *testing.T) {
	w := newWorld(t, slock.WaitByBlocking(), slock.RetryFor(100*time.Millisecond))
	w.do("SLOCK.LOCK", "job", another, 60000)
	ctx, cancel := context.WithCancel(t.Context())
	// Of a token of the program's nothing is left after the ttl.
	waiting := lockBeside(ctx, w.locks.Write("job").With(slock.TTL(200*time.Millisecond), slock.Token("mine")))
	w.waiters("job", 1)
	w.pause()
	defer w.resume()
	cancel()
	<-waiting
	eventually(t, func() bool {
		stacks := make([]byte, 1<<20)
		return !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "giveUp")
	})
}

func TestMissingPermissionIsToldBeforeAnythingIsHeld(t *testing.T) {
	w := newWorld(t)
	for command, make := range map[string]func(*slock.Locks) slock.Request{
		"slock.unlock":  func(l *slock.Locks) slock.Request { return l.Write("job") },
		"slock.runlock": func(l *slock.Locks) slock.Request { return l.Read("job") },
		"slock.munlock": func(l *slock.Locks) slock.Request { return l.Write("job") },
		"slock.cancel":  func(l *slock.Locks) slock.Request { return l.Write("job", "more") },
	} {
		w.do("ACL", "SETUSER", command, "on", ">secret", "~*", "&*", "+@all", "-"+command)
		rdb := redis.NewClient(&redis.Options{Addr: w.addr, Username: command, Password: "secret"})
		defer rdb.Close()
		locks := slock.New(rdb)
		defer locks.Close()
		if _, err := make(locks).Lock(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
			t.Fatal(command, err)
		}
		if w.info("job", "mode") != nil {
			t.Fatal("it is held")
		}
	}
}

func TestInfoAndQueues(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		w := newWorld(t)
		rdb := redis.NewClient(&redis.Options{Addr: w.addr, Protocol: protocol})
		defer rdb.Close()
		locks := slock.New(rdb)
		defer locks.Close()
		if info := must(locks.Info(t.Context(), "job")); info.Mode != slock.Free || info.Holders != nil {
			t.Fatal(info)
		}
		hold := must(locks.Write("job").With(slock.Metadata("host=a")).Lock(t.Context()))
		waiting := lockBeside(t.Context(), locks.Read("job").With(slock.Limit(3), slock.Wait(time.Minute)))
		w.waiters("job", 1)
		info := must(locks.Info(t.Context(), "job"))
		if info.Mode != slock.Write || info.Waiters != 1 || info.Fence != hold.Fence() || len(info.Holders) != 1 ||
			info.Holders[0].Metadata != "host=a" || info.Holders[0].Token != hold.Token() || len(info.Queue) != 1 ||
			info.Queue[0].Mode != "read" || info.Queue[0].Limit != 3 || info.Queue[0].Wait <= 0 {
			t.Fatalf("%+v", info)
		}
		queues := must(locks.Queues(t.Context()))
		if len(queues) != 1 || queues[0].Key != "job" || queues[0].Waiters != 1 || queues[0].Mode != slock.Write ||
			queues[0].Next != info.Queue[0].Token {
			t.Fatalf("%+v", queues)
		}
		must(hold.Release(t.Context()))
		must((<-waiting).hold.Release(t.Context()))
	}
}
