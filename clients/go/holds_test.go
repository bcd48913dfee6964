package slock_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
	"slock.example/go/internal/testserver"
	"slock.example/go/slocktest"
)

func TestLogOfALoss(t *testing.T) {
	w := newWorld(t, redis.Options{})
	hold := must(w.locks.Write("a", "b").With(slock.TTL(2*time.Second), slock.Label("import")).Lock(t.Context()))
	w.do("DEL", "b")
	<-hold.Context().Done()
	is(t, context.Cause(hold.Context()), []error{slock.ErrLost}, "a, b", "gone")
	testserver.Eventually(t, func() bool { return w.log.String() != "" })
	text := w.log.String()
	if !strings.Contains(text, `keys="[a b]"`) || !strings.Contains(text, "label=import") ||
		!strings.Contains(text, "reason=gone") || strings.Contains(text, "nil") || strings.Contains(text, "cause") {
		t.Error(text)
	}
	w.nothingLeft()
}

// The release of a hold whose key was deleted after its last renewal tells that it was lost.
func TestLossAtTheRelease(t *testing.T) {
	w := newWorld(t, redis.Options{})
	hold := must(w.locks.Write("job").Lock(t.Context()))
	w.do("DEL", "job")
	is(t, hold.Unlock(t.Context()), []error{slock.ErrLost}, "job", "gone")
	is(t, w.locks.Write("job").Do(t.Context(), func(context.Context) error {
		w.do("DEL", "job")
		return nil
	}), []error{slock.ErrLost})
	if count := strings.Count(w.log.String(), "a lock was lost"); count != 2 {
		t.Error(w.log)
	}
}

func TestHoldFrom(t *testing.T) {
	locks := slock.NewWith(slocktest.New())
	if hold, ok := slock.HoldFrom(t.Context()); ok || hold != nil {
		t.Error(hold)
	}
	is(t, locks.Write("job").Do(t.Context(), func(ctx context.Context) error {
		hold, ok := slock.HoldFrom(ctx)
		if !ok || hold.Keys()[0] != "job" {
			t.Error(hold)
		}
		return nil
	}), nil)
}

func TestHoldsAfterClose(t *testing.T) {
	w := newWorld(t, redis.Options{}, slock.TTL(2*time.Second))
	kept, released := must(w.locks.Write("a").Lock(t.Context())), must(w.locks.Write("b").Lock(t.Context()))
	is(t, w.locks.Close(), nil)
	is(t, released.Unlock(t.Context()), nil)
	<-kept.Context().Done()
	var loss *slock.Error
	if err := kept.Check(); !errors.As(err, &loss) || loss.Reason != slock.LocksClosed {
		t.Error(err)
	}
	_, err := w.locks.Write("c").Lock(t.Context())
	is(t, err, []error{slock.ErrClosed})
	w.nothingLeft()
}

func TestUnlockWithAContextThatIsOver(t *testing.T) {
	w := newWorld(t, redis.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	hold := must(w.locks.Write("job").Lock(ctx))
	cancel()
	is(t, hold.Unlock(ctx), nil)
	if w.info("job", "mode") != nil || w.log.String() != "" {
		t.Error(w.log)
	}
}

func TestSecondChangeOfMode(t *testing.T) {
	server := slocktest.New()
	locks, others := slock.NewWith(server), slock.NewWith(server)
	hold := must(locks.Read("job").Lock(t.Context()))
	other := must(others.Read("job").Lock(t.Context()))
	first := make(chan error)
	go func() { first <- hold.Upgrade(t.Context()) }()
	testserver.Eventually(t, func() bool { return must(locks.Info(t.Context(), "job")).Waiters == 1 })
	is(t, hold.Upgrade(t.Context()), []error{slock.ErrInvalid}, "another change")
	is(t, hold.Downgrade(t.Context()), []error{slock.ErrInvalid})
	is(t, other.Unlock(t.Context()), nil)
	if err := <-first; err != nil || hold.Mode() != slock.Write {
		t.Error(err, hold.Mode())
	}
}

func TestNames(t *testing.T) {
	server := slocktest.New()
	locks, plain := slock.NewWith(server, slock.Prefix("app:")), slock.NewWith(server)
	hold := must(locks.Write("job").Lock(t.Context()))
	host := must(os.Hostname())
	info := must(plain.Info(t.Context(), "app:job"))
	if len(info.Holders) != 1 || !strings.Contains(info.Holders[0].Metadata, host) || hold.Keys()[0] != "job" {
		t.Error(info, hold.Keys())
	}
	for _, keys := range [][]string{{}, {""}, {"job", ""}} {
		_, err := locks.Write(keys...).Lock(t.Context())
		is(t, err, []error{slock.ErrInvalid})
	}
	_, err := slock.Request{}.Lock(t.Context())
	is(t, err, []error{slock.ErrInvalid})
}

// filter is a server in memory over which commands and messages are lost or late.
type filter struct {
	*slocktest.Server
	call  func(call slock.Call, send func() (any, any, error)) (any, any, error)
	heard func() bool // nil: all messages arrive
}

func (f *filter) Call(ctx context.Context, call slock.Call) (reply, then any, err error) {
	send := func() (any, any, error) { return f.Server.Call(context.WithoutCancel(ctx), call) }
	if f.call != nil {
		return f.call(call, send)
	}
	return send()
}

func (f *filter) Listen(channel string, heard func(string, bool)) func() {
	return f.Server.Listen(channel, func(message string, ok bool) {
		if !ok || f.heard == nil || f.heard() {
			heard(message, ok)
		}
	})
}

func TestMessageThatIsLost(t *testing.T) {
	f := &filter{Server: slocktest.New(), heard: func() bool { return false }}
	locks := slock.NewWith(f, slock.RetryWaitFor(time.Second)) // so it is sent again every 250 ms
	first := must(locks.Write("job").Lock(t.Context()))
	second := make(chan error)
	go func() {
		_, err := locks.Write("job").With(slock.Wait(10 * time.Second)).Lock(t.Context())
		second <- err
	}()
	testserver.Eventually(t, func() bool { return must(locks.Info(t.Context(), "job")).Waiters == 1 })
	is(t, first.Unlock(t.Context()), nil)
	within(t, time.Second, func() { is(t, <-second, nil) })
}

// The request reaches the server after it was given up.
func TestRequestThatIsLate(t *testing.T) {
	var late func() (any, any, error)
	f := &filter{Server: slocktest.New()}
	f.call = func(call slock.Call, send func() (any, any, error)) (any, any, error) {
		if call.Command[0] == "SLOCK.LOCK" {
			late = send
			return nil, nil, errors.New("no reply")
		}
		return send()
	}
	locks := slock.NewWith(f, slock.RetryFor(5*time.Millisecond))
	_, err := locks.Write("job").Lock(t.Context())
	is(t, err, []error{slock.ErrNoAnswer}, "no reply")
	_ = locks.Close() // waits for the end
	if reply, _, _ := late(); reply == nil || !strings.HasPrefix(reply.(error).Error(), "REFUSED") {
		t.Error(reply)
	}
}

// The end of a hold that was lost must not end a later hold of the same owner token.
func TestEndLeavesALaterHoldOfTheToken(t *testing.T) {
	server := slocktest.New()
	request := slock.NewWith(server, slock.WithLogger(slog.New(slog.DiscardHandler))).Write("job").With(slock.Token("mine"))
	first := must(request.Lock(t.Context()))
	server.Lose("job")
	later := must(request.With(slock.TTL(time.Hour)).Lock(t.Context()))
	is(t, first.Unlock(t.Context()), []error{slock.ErrLost})
	info := must(slock.NewWith(server).Info(t.Context(), "job"))
	if info.Fence != later.Fence() {
		t.Error(info)
	}
}

// goroutines waits until no more than before are left.
func goroutines(t *testing.T) (wait func()) {
	before := runtime.NumGoroutine()
	return func() {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				stacks := make([]byte, 1<<20)
				t.Fatalf("%d goroutines and not %d:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
			}
		}
	}
}

func TestCloseLeavesNoGoroutines(t *testing.T) {
	w := newWorld(t, redis.Options{})
	wait := goroutines(t)
	for range 3 {
		rdb := redis.NewClient(&redis.Options{Addr: w.Addr})
		w.locks = slock.New(rdb)
		use(t, w)
		_ = rdb.Close()
	}
	wait()
}

// Acquisitions that are cancelled at any moment leave nothing, neither on the server nor here.
func TestCancelledContextsLeaveNothing(t *testing.T) {
	count := 500
	if os.Getenv("SLOCK_THOROUGH") != "" {
		count = 10_000
	}
	w := newWorld(t, redis.Options{}, slock.TTL(time.Hour)) // what is left does not end by itself
	held := must(w.locks.Write("held").Lock(t.Context()))
	wait := goroutines(t)
	var all sync.WaitGroup
	for range count {
		all.Add(1)
		go func() {
			defer all.Done()
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(50))*time.Millisecond)
			defer cancel()
			ctx, end := context.WithCancelCause(ctx)
			time.AfterFunc(time.Duration(rand.IntN(50))*time.Millisecond, func() { end(nil) })
			hold, err := w.locks.Write([]string{"held", "job"}[rand.IntN(2)]).Lock(ctx)
			if err == nil {
				_ = hold.Unlock(ctx)
			}
		}()
	}
	all.Wait()
	is(t, held.Unlock(t.Context()), nil)
	w.nothingLeft()
	_ = w.locks.Close()
	wait()
}
