package slock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"slock.example/go"
)

func TestRequestHasKeysOfItsOwn(t *testing.T) {
	w := newWorld(t)
	keys := []string{"a", "b"}
	request := w.locks.Write(keys...)
	keys[0] = "c"
	hold := must(request.Lock(t.Context()))
	if !slices.Equal(hold.Keys(), []string{"a", "b"}) {
		t.Fatal(hold.Keys())
	}
	must(hold.Release(t.Context()))
}

func TestWriterExcludesAllOthers(t *testing.T) {
	w := newWorld(t)
	hold := must(w.locks.Write("job").Lock(t.Context()))
	for _, request := range []slock.Request{w.locks.Write("job"), w.locks.Read("job"), w.locks.Write("other", "job")} {
		if _, ok, err := request.TryLock(t.Context()); ok || err != nil {
			t.Fatalf("TryLock of a held lock: %v, %v", ok, err)
		}
	}
	if hold.Mode() != slock.Write || hold.Fence() != w.info("job", "fence") {
		t.Fatalf("mode %s, fence %d, on the server %v", hold.Mode(), hold.Fence(), w.info("job", "fence"))
	}
	if err := hold.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft("job")
	next := must(w.locks.Write("job").Lock(t.Context()))
	if next.Fence() <= hold.Fence() || next.Token() == hold.Token() {
		t.Fatalf("fence %d after %d, token %s after %s", next.Fence(), hold.Fence(), next.Token(), hold.Token())
	}
}

func TestReadersShareUpToTheLimit(t *testing.T) {
	w := newWorld(t)
	permit := w.locks.Read("pool").With(slock.Limit(2))
	a, b := must(permit.Lock(t.Context())), must(permit.Lock(t.Context()))
	if _, ok, err := permit.TryLock(t.Context()); ok || err != nil {
		t.Fatalf("a third permit of two: %v, %v", ok, err)
	}
	must(a.Release(t.Context()))
	if _, ok, err := permit.TryLock(t.Context()); !ok || err != nil {
		t.Fatalf("a permit that came back: %v, %v", ok, err)
	}
	must(b.Release(t.Context()))
}

func TestManyKeysAreLockedTogether(t *testing.T) {
	w := newWorld(t)
	hold := must(w.locks.Write("a", "b").With(slock.Metadata("why")).Lock(t.Context()))
	if !slices.Equal(hold.Keys(), []string{"a", "b"}) || hold.Metadata() != "why" {
		t.Fatal(hold.Keys(), hold.Metadata())
	}
	if w.info("a", "fence") != hold.Fence() || w.info("b", "fence") != hold.Fence() {
		t.Fatal("the keys have other fences")
	}
	if err := hold.Extend(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	must(hold.Release(t.Context()))
	w.nothingLeft("a")
	w.nothingLeft("b")
}

func TestReleaseTellsWhetherTheHoldWasThere(t *testing.T) {
	w := newWorld(t)
	hold := must(w.locks.Write("job").Lock(t.Context()))
	w.do("DEL", "job")
	w.do("SLOCK.LOCK", "job", another, 60000)
	if released, err := hold.Release(t.Context()); released || err != nil {
		t.Fatalf("a hold that was gone: %v, %v", released, err)
	}
	if err := hold.Check(); !errors.Is(err, slock.ErrLost) {
		t.Fatalf("after a release that found nothing: %v", err)
	}
	if w.info("job", "mode") != "write" {
		t.Fatal("the release took another owner's lock away")
	}
}

func TestReleaseIsSentWhenTheContextIsOver(t *testing.T) {
	w := newWorld(t)
	hold := must(w.locks.Write("job").Lock(t.Context()))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = hold.Release(over)
	w.nothingLeft("job")
}

func TestDoReleasesAndGivesTheErrorOfTheWork(t *testing.T) {
	w := newWorld(t)
	problem := errors.New("problem")
	err := w.locks.Write("job").Do(t.Context(), func(ctx context.Context) error {
		if fence := slock.HoldFrom(ctx).Fence(); fence != w.info("job", "fence") {
			t.Errorf("fence %d", fence)
		}
		return problem
	})
	if err != problem && !errors.Is(err, problem) {
		t.Fatal(err)
	}
	w.nothingLeft("job")
}

func TestDoEndsTheWorkWhenTheHoldIsLost(t *testing.T) {
	w := newWorld(t)
	err := w.locks.Write("job").With(slock.TTL(300*time.Millisecond)).Do(t.Context(), func(ctx context.Context) error {
		w.do("DEL", "job")
		<-ctx.Done()
		var lost *slock.LostError
		if !errors.As(context.Cause(ctx), &lost) || lost.Reason != slock.Gone {
			t.Errorf("the cause is %v", context.Cause(ctx))
		}
		return ctx.Err()
	})
	if !errors.Is(err, slock.ErrLost) || errors.Is(err, context.Canceled) {
		t.Fatalf("Do ended with %v", err)
	}
}

func TestDoReleasesAfterAPanic(t *testing.T) {
	w := newWorld(t)
	func() {
		defer func() { _ = recover() }()
		_ = w.locks.Write("job").Do(t.Context(), func(context.Context) error { panic("problem") })
	}()
	w.nothingLeft("job")
}

func TestCounterWithoutLostAdditions(t *testing.T) {
	for name, option := range waitings() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, option)
			counter := 0
			var inside atomic.Int32
			var tasks sync.WaitGroup
			for range 20 {
				beside(&tasks, func() {
					for range 10 {
						err := w.locks.Write("job").Do(t.Context(), func(context.Context) error {
							if inside.Add(1) > 1 {
								t.Error("two writers at once")
							}
							counter++
							inside.Add(-1)
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			tasks.Wait()
			if counter != 200 {
				t.Fatalf("%d additions, not 200", counter)
			}
		})
	}
}

// waitings are the ways to wait.
func waitings() map[string]slock.Option {
	return map[string]slock.Option{
		"notify": slock.WaitByNotify(),
		"block":  slock.WaitByBlocking(),
		"poll":   slock.WaitByPolling(slock.ConstantPause(time.Millisecond)),
	}
}
