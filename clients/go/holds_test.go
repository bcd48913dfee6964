package slock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
	"slock.example/go/internal/testserver"
	"slock.example/go/slocktest"
)

// The program learns of a loss by the context, by the release and by the log.
func TestLoss(t *testing.T) {
	w := newWorld(t, redis.Options{})
	hold := must(w.locks.Write("a", "b").With(slock.TTL(2*time.Second), slock.Label("import")).Lock(t.Context()))
	w.do("DEL", "b")
	<-hold.Context().Done()
	is(t, context.Cause(hold.Context()), []error{slock.ErrLost}, "a, b", "gone")
	testserver.Eventually(t, func() bool {
		return strings.Contains(w.log.String(), `keys="[a b]" label=import reason=gone`+"\n")
	})
	w.nothingLeft()
	hold = must(w.locks.Write("job").Lock(t.Context()))
	w.do("DEL", "job")
	is(t, hold.Unlock(t.Context()), []error{slock.ErrLost}, "job", "gone")
	for result, isJoined := range map[error]bool{nil: false, context.Canceled: false, fmt.Errorf("3 files: %w", context.Canceled): true} {
		err := w.locks.Write("job").Do(t.Context(), func(context.Context) error {
			w.do("DEL", "job")
			return result
		})
		if is(t, err, []error{slock.ErrLost}); errors.Is(err, context.Canceled) != isJoined {
			t.Error(err)
		}
	}
	if count := strings.Count(w.log.String(), "a lock was lost"); count != 5 {
		t.Error(w.log)
	}
}

// A release is sent and waited for if its context is over before, or ends by the release itself.
func TestReleaseAfterTheContext(t *testing.T) {
	w := newWorld(t, redis.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	hold := must(w.locks.Write("job").Lock(ctx))
	cancel()
	is(t, hold.Unlock(ctx), nil)
	for range 20 {
		is(t, w.locks.Write("job").Do(t.Context(), func(ctx context.Context) error {
			hold, _ := slock.HoldFrom(ctx)
			return hold.Unlock(ctx)
		}), nil)
	}
	is(t, w.locks.Write("job").Do(t.Context(), w.locks.Shutdown), nil)
	w.nothingLeft()
}

// Shutdown leaves no lock to a request of its own process, nor one that it has no time for.
func TestShutdown(t *testing.T) {
	for _, failure := range []error{nil, syscall.ECONNREFUSED} {
		server := slocktest.New()
		locks, waits := slock.NewWith(server, slock.WithLogger(slog.New(slog.DiscardHandler))), make(chan error, 20)
		for n := range 20 {
			must(locks.Write(fmt.Sprint(n)).Lock(t.Context()))
			go func() { waits <- locks.Write(fmt.Sprint(n)).Do(t.Context(), nil) }()
		}
		testserver.Eventually(t, func() bool { return len(must(locks.Queues(t.Context()))) == 20 })
		server.Fail(failure)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		within(t, time.Second, func() {
			if err := locks.Shutdown(ctx); errors.Is(err, context.DeadlineExceeded) != (failure != nil) {
				t.Error(err)
			}
		})
		server.Fail(nil)
		for n := range 20 {
			is(t, <-waits, []error{slock.ErrClosed})
			must(slock.NewWith(server).Write(fmt.Sprint(n)).With(slock.Wait(5 * time.Second)).Lock(t.Context()))
		}
	}
}

// Close waits for releases, also for those of a quorum whose caller has left.
func TestCloseWaitsForReleases(t *testing.T) {
	for _, isQuorum := range []bool{false, true} {
		f, arrived, replies := &filter{Server: slocktest.New()}, make(chan any, 9), make(chan any)
		f.call = func(call slock.Call, send func() (any, any, error)) (any, any, error) {
			if call.Command[0] == "SLOCK.MUNLOCK" {
				arrived <- nil
				<-replies
			}
			return send()
		}
		locks := slock.NewWith(f)
		if isQuorum {
			locks = slock.NewQuorumWith([]slock.Transport{f})
		}
		hold := must(locks.Write("job").Lock(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		go hold.Unlock(ctx)
		<-arrived
		cancel()
		time.AfterFunc(200*time.Millisecond, func() { close(replies) })
		_ = locks.Close()
		if must(slock.NewWith(f.Server).Info(t.Context(), "job")).Mode != slock.Free {
			t.Error("it did not wait")
		}
	}
}

func TestNothingRemainsOfAHoldThatHasEnded(t *testing.T) {
	server, lost := slocktest.New(), make(chan *slock.Error, 2)
	request := slock.NewWith(server, slock.WithLogger(slog.New(slog.DiscardHandler)), slock.WithHooks(slock.Hooks{
		Waited: func(context.Context, string, time.Duration, string) { panic("of a hook changes nothing") },
		Lost:   func(_ context.Context, _ string, loss *slock.Error) { lost <- loss },
	})).Read("job")
	for name, end := range map[string]func(*slock.Hold){
		"released": func(h *slock.Hold) { is(t, h.Unlock(t.Context()), nil) },
		"detached": func(h *slock.Hold) { is(t, h.Detach(), nil) },
		"lost":     func(h *slock.Hold) { server.Lose("job"); <-lost },
	} {
		hold := must(request.Lock(t.Context()))
		if end(hold); hold.Remaining() != 0 {
			t.Error(name, hold.Remaining())
		}
	}
	hold := must(request.With(slock.NoRenewal(), slock.MaxHold(50*time.Millisecond)).Lock(t.Context()))
	left := hold.Remaining()
	if loss := <-lost; left > 50*time.Millisecond || hold.Remaining() != 0 || loss.Reason != slock.MaxHoldOver {
		t.Error(left, loss)
	}
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

// handOver takes a lock, and releases it when another request waits for it, which has to get it.
func handOver(t *testing.T, locks *slock.Locks) {
	t.Helper()
	first, second := must(locks.Write("job").Lock(t.Context())), make(chan error)
	go func() {
		_, err := locks.Write("job").With(slock.Wait(10 * time.Second)).Lock(t.Context())
		second <- err
	}()
	testserver.Eventually(t, func() bool { return must(locks.Info(t.Context(), "job")).Waiters == 1 })
	is(t, first.Unlock(t.Context()), nil)
	within(t, time.Second, func() { is(t, <-second, nil) })
}

func TestMessageThatIsLost(t *testing.T) {
	f := &filter{Server: slocktest.New(), heard: func() bool { return false }}
	handOver(t, slock.NewWith(f, slock.RetryWaitFor(time.Second))) // so it is sent again every 250 ms
}

// A wait sends little, also if its times are too short or too long to count with.
func TestAWaitSendsLittle(t *testing.T) {
	for _, option := range []slock.Option{slock.RetryWaitFor(0), slock.Wait(math.MaxInt64)} {
		f, sent := &filter{Server: slocktest.New()}, atomic.Int32{}
		must(slock.NewWith(f.Server).Write("job").Lock(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(200*time.Millisecond, cancel)
		f.call = func(_ slock.Call, send func() (any, any, error)) (any, any, error) { sent.Add(1); return send() }
		_, err := slock.NewWith(f, option).Write("job").Lock(ctx)
		if is(t, err, []error{context.Canceled}); sent.Load() > 20 {
			t.Error(sent.Load(), "commands")
		}
	}
}

// Holds are confirmed when a channel has its subscription, also a new one. That lengthens only those that are renewed.
func TestHoldsAreConfirmed(t *testing.T) {
	f, asked, isRefused := &filter{Server: slocktest.New()}, make(chan any, 9), atomic.Bool{}
	f.call = func(call slock.Call, send func() (any, any, error)) (any, any, error) {
		switch {
		case call.Command[0] == "SLOCK.EXTEND":
			asked <- call.Command[3]
		case slices.Contains(call.Command, any("NOTIFY")) && !isRefused.Swap(true):
			return &slock.ReplyError{Err: errors.New("NOSUBSCRIBER nobody")}, nil, nil
		}
		return send()
	}
	locks, others := slock.NewWith(f, slock.WithLogger(slog.New(slog.DiscardHandler))), slock.NewWith(f.Server)
	hold := must(locks.Write("job").With(slock.NoRenewal()).Lock(t.Context()))
	if ttl := <-asked; ttl != int64(1) {
		t.Error(ttl)
	}
	must(others.Release(t.Context(), hold.Token(), "job"))
	must(others.Write("busy").Lock(t.Context()))
	go locks.Write("busy").With(slock.Wait(time.Second)).Lock(t.Context()) // which makes a new channel
	within(t, 0, func() { <-hold.Context().Done() })
}

// unconfirmed is a server in memory that does not confirm its subscriptions by itself.
type unconfirmed struct {
	filter
	confirm func()
	listens atomic.Int32
}

func (u *unconfirmed) Listen(channel string, heard func(string, bool)) func() {
	u.listens.Add(1)
	u.confirm = func() { heard("", false) }
	return u.Server.Listen(channel, func(message string, ok bool) {
		if ok {
			heard(message, ok)
		}
	})
}

// The subscription is confirmed while the first request for it is refused.
func TestRefusalThatIsOlderThanTheSubscription(t *testing.T) {
	u, refused := &unconfirmed{filter: filter{Server: slocktest.New()}}, atomic.Bool{}
	u.call = func(call slock.Call, send func() (any, any, error)) (any, any, error) {
		if slices.Contains(call.Command, any("NOTIFY")) && !refused.Swap(true) {
			u.confirm()
			return &slock.ReplyError{Err: errors.New("NOSUBSCRIBER nobody")}, nil, nil
		}
		return send()
	}
	handOver(t, slock.NewWith(u))
	if count := u.listens.Load(); count != 1 {
		t.Error(count, "subscriptions")
	}
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
	locks := slock.NewWith(f, slock.RetryFor(500*time.Millisecond))
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
	if info := must(slock.NewWith(server).Info(t.Context(), "job")); info.Fence != later.Fence() {
		t.Error(info)
	}
}

// Acquisitions that are cancelled at any moment leave nothing, neither on the server nor here.
func TestCancelledContextsLeaveNothing(t *testing.T) {
	w := newWorld(t, redis.Options{}, slock.TTL(time.Hour)) // what is left does not end by itself
	held := must(w.locks.Write("held").Lock(t.Context()))
	before := runtime.NumGoroutine()
	var all sync.WaitGroup
	for range 500 {
		all.Add(1)
		go func() {
			defer all.Done()
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(500))*time.Millisecond)
			defer cancel()
			ctx, end := context.WithCancelCause(ctx)
			time.AfterFunc(time.Duration(rand.IntN(500))*time.Millisecond, func() { end(nil) })
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
	_ = w.rdb.Close()
	testserver.Eventually(t, func() bool { return runtime.NumGoroutine() <= before })
}

// A copy that follows the end of an acquisition would take the lock of a node that has restarted since, and forgot the end.
func TestAQuorumSendsNothingAgainAfterTheEnd(t *testing.T) {
	var late atomic.Int32
	asked, restart, node := make(chan struct{}), make(chan struct{}), &filter{Server: slocktest.New()}
	node.call = func(call slock.Call, send func() (any, any, error)) (any, any, error) {
		if call.Command[0] != "SLOCK.LOCK" || !call.Reserved {
			return send()
		}
		select {
		case <-restart:
			late.Add(1)
		case asked <- struct{}{}: // an extension has come
			<-restart
		}
		return nil, nil, errors.New("the connection was lost")
	}
	locks := slock.NewQuorumWith([]slock.Transport{slocktest.New(), slocktest.New(), node})
	defer locks.Close()
	hold := must(locks.Write("a").Lock(t.Context()))
	is(t, hold.Extend(t.Context(), time.Minute), nil)
	<-asked
	is(t, hold.Unlock(t.Context()), nil)
	close(restart)
	time.Sleep(50 * time.Millisecond) // ten times the pause before a copy
	if late.Load() > 0 {
		t.Errorf("%d requests for the lock were sent after its end", late.Load())
	}
}
