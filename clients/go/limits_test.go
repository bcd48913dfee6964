package slock_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
	"slock.example/go/slocktest"
)

// The question is sent once, first, and not with a token of the program's, whose hold it would change.
func TestTheTimeOfAtLeastIsAskedForOnce(t *testing.T) {
	f := &filter{Server: slocktest.New()}
	var questions, others atomic.Int32
	f.call = func(call slock.Call, send func() (any, any, error)) (any, any, error) {
		if call.Command[0] != "SLOCK.EXTEND" {
			others.Add(1)
		} else if questions.Add(1); others.Load() > 0 || call.Command[2] == "mine" {
			t.Error(call)
		}
		return send()
	}
	locks := slock.NewWith(f)
	request := locks.Write("job").With(slock.Token("mine"), slock.Wait(time.Second), slock.AtLeast(time.Hour))
	must(slock.NewWith(f.Server).Write("job").Lock(t.Context()))
	_, err := request.Lock(t.Context())
	is(t, err, []error{slock.ErrTimedOut})
	_, err = request.With(slock.TTL(time.Hour)).Lock(t.Context()) // which the server checks
	is(t, err, []error{slock.ErrTimedOut})
	if questions.Load() != 1 {
		t.Error(questions.Load(), "questions")
	}
	_ = locks.Close()
	f.Fail(syscall.ECONNREFUSED)
	within(t, 0, func() {
		_, err = slock.NewWith(f.Server, slock.RetryFor(1), slock.AtLeast(time.Hour)).Write("job").Lock(t.Context())
		is(t, err, []error{slock.ErrNoAnswer, syscall.ECONNREFUSED}, "job")
	})
}

// A wait that the server cannot count is none.
func TestWaitBelowAMillisecond(t *testing.T) {
	w := newWorld(t, redis.Options{})
	quorum := slock.NewQuorum([]redis.UniversalClient{w.rdb})
	defer quorum.Close()
	for _, request := range []slock.Request{w.locks.Read("job"), quorum.Read("other")} {
		request = request.With(slock.Limit(1), slock.Wait(1))
		must(request.Lock(t.Context()))
		_, err := request.Lock(t.Context())
		is(t, err, []error{slock.ErrTimedOut})
	}
	hold := must(w.locks.Read("more").Lock(t.Context()))
	is(t, hold.Upgrade(t.Context(), slock.Wait(1)), nil)
	for _, option := range []slock.RequestOption{slock.Wait(-1), slock.MaxHold(-1), slock.AtLeast(-1)} {
		_, err := w.locks.Write("none").With(option).Lock(t.Context())
		is(t, err, []error{slock.ErrInvalid}, "negative")
	}
	readers := slock.New(w.rdb, slock.Limit(2), slock.Metadata("adopts"))
	hold = must(w.locks.Write("none").With(slock.MaxHold(0)).Lock(t.Context()))
	is(t, hold.Detach(), nil)
	hold = must(readers.Write("none").With(slock.MaxHold(math.MaxInt64)).Adopt(t.Context(), hold.Token()))
	if holder := must(w.locks.Info(t.Context(), "none")).Holders[0]; holder.Metadata != "adopts" {
		t.Error(holder)
	}
	is(t, hold.Unlock(t.Context()), nil)
}

// Others have the lock, or the server cannot be reached: a program tells these apart.
func TestBusyIsNotDown(t *testing.T) {
	redis.SetLogger(&logged{})
	w := newWorld(t, redis.Options{}, slock.RetryFor(2*time.Second))
	w.do("SLOCK.LOCK", "job", "another", 60000, "META", "web-7")
	_, err := w.locks.Write("job").TryLock(t.Context())
	is(t, err, []error{slock.ErrNotAcquired}, "job")
	_, err = w.locks.Write("job").With(slock.Wait(time.Second)).Lock(t.Context())
	is(t, err, []error{slock.ErrTimedOut}, "job", "web-7", "another")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = w.locks.Write("job").Lock(ctx)
	is(t, err, []error{slock.ErrTimedOut, context.DeadlineExceeded}, "job", "web-7", "another")
	for n := range 200 { // the server, which counts milliseconds, may be early
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond+time.Duration(n)*37*time.Microsecond)
		if _, err = w.locks.Write("job").Lock(ctx); errors.Is(err, slock.ErrTimedOut) {
			is(t, err, []error{context.DeadlineExceeded})
		}
		cancel()
	}
	w.Kill()
	for _, request := range []slock.Request{w.locks.Write("job"), w.locks.Write("job").With(slock.Wait(time.Minute))} {
		_, err := request.Lock(t.Context())
		is(t, err, []error{slock.ErrNoAnswer, syscall.ECONNREFUSED}, "job", "no reply", "refused")
	}
}
