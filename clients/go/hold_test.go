package slock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

func TestExtendNeverShortens(t *testing.T) {
	w := newWorld(t)
	hold := must(w.locks.Write("job").With(slock.TTL(time.Minute), slock.NoRenewal()).Lock(t.Context()))
	before := time.Now()
	for _, ttl := range []time.Duration{time.Hour, time.Second} {
		if err := hold.Extend(t.Context(), ttl); err != nil {
			t.Fatal(err)
		}
	}
	// A thousandth of the ttl and 1 ms do not count.
	counted := time.Hour - time.Hour/1000 - time.Millisecond
	until := hold.ValidUntil()
	if until.Before(before.Add(counted-time.Millisecond)) || until.After(time.Now().Add(counted)) {
		t.Fatalf("valid for %s, not %s", time.Until(until), counted)
	}
	if left := w.do("SLOCK.PTTL", "job", hold.Token()).(int64); left < counted.Milliseconds() {
		t.Fatalf("%d ms are left on the server", left)
	}
	w.do("DEL", "job")
	if err := hold.Extend(t.Context(), time.Minute); !errors.Is(err, slock.ErrLost) {
		t.Fatalf("Extend of a hold that is gone: %v", err)
	}
}

func TestReleaseOfALostHold(t *testing.T) {
	w := newWorld(t)
	many := must(w.locks.Write("a", "b").Lock(t.Context()))
	w.do("DEL", "a")
	if err := many.Extend(t.Context(), time.Minute); !errors.Is(err, slock.ErrLost) {
		t.Fatal(err)
	}
	if released, err := many.Release(t.Context()); released || err != nil {
		t.Fatal(released, err)
	}
	w.nothingLeft("b") // what was left of it is released

	request := w.locks.Write("job").With(slock.Token("owner"))
	old := must(request.Lock(t.Context()))
	w.do("DEL", "job")
	if err := old.Extend(t.Context(), time.Minute); !errors.Is(err, slock.ErrLost) {
		t.Fatal(err)
	}
	must(request.Lock(t.Context()))
	must(old.Release(t.Context()))
	if w.info("job", "mode") != "write" {
		t.Fatal("the release of the lost hold took a later one away")
	}
}

func TestReleaseOfAnExpiredHoldLeavesALaterOne(t *testing.T) {
	w := newWorld(t)
	request := w.locks.Write("job").With(slock.Token("owner"), slock.NoRenewal())
	old := must(request.With(slock.TTL(50 * time.Millisecond)).Lock(t.Context()))
	<-old.Context().Done()
	w.nothingLeft("job") // the hold ends here a little before it does at the server
	later := must(request.Lock(t.Context()))
	if released, err := old.Release(t.Context()); released || err != nil {
		t.Fatal(released, err)
	}
	// Close waits for what is sent in the background.
	if err := w.locks.Close(); err != nil {
		t.Fatal(err)
	}
	if w.info("job", "fence") != later.Fence() {
		t.Fatal("the release of the lost hold took a later one away")
	}
}

func TestUpgradeAndDowngrade(t *testing.T) {
	w := newWorld(t)
	hold := must(w.locks.Read("job").Lock(t.Context()))
	read := hold.Fence()
	if err := hold.Upgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	written := hold.Fence()
	if hold.Mode() != slock.Write || w.info("job", "mode") != "write" || written <= read {
		t.Fatalf("mode %s, on the server %v, fence %d after %d", hold.Mode(), w.info("job", "mode"), written, read)
	}
	if err := hold.Downgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	if hold.Mode() != slock.Read || w.info("job", "mode") != "read" || hold.Fence() <= written {
		t.Fatalf("mode %s, on the server %v, fence %d", hold.Mode(), w.info("job", "mode"), hold.Fence())
	}
	must(hold.Release(t.Context()))
	w.nothingLeft("job")
}

func TestCancelledUpgradeLeavesAReader(t *testing.T) {
	for name, option := range waitings() {
		if name == "poll" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, option)
			hold := must(w.locks.Read("job").Lock(t.Context()))
			w.do("SLOCK.RLOCK", "job", another, 60000)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- hold.Upgrade(ctx) }()
			w.waiters("job", 1)
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			w.waiters("job", 0)
			w.do("SLOCK.RUNLOCK", "job", another)
			if err := hold.Check(); err != nil || hold.Mode() != slock.Read {
				t.Fatal(hold.Mode(), err)
			}
			if released, err := hold.Release(t.Context()); !released || err != nil {
				t.Fatal(released, err)
			}
			w.nothingLeft("job")
		})
	}
}

// An upgrade may be granted just as it is cancelled. Then the hold learns its mode from the server.
func TestUpgradeCancelledAtAnyMoment(t *testing.T) {
	w := newWorld(t)
	for n := range 100 {
		hold := must(w.locks.Read("job").Lock(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n)*3*time.Microsecond)
		err := hold.Upgrade(ctx)
		cancel()
		if again := hold.Upgrade(t.Context()); err != nil && !errors.Is(again, slock.ErrRefused) && again != nil {
			t.Fatal(again) // it waits until the hold is settled; nothing was sent if ctx was over before
		}
		eventually(t, func() bool { return w.info("job", "mode") == string(hold.Mode()) })
		if hold.Extend(t.Context(), time.Minute) != nil || w.info("job", "fence") != hold.Fence() {
			t.Fatalf("fence %d, on the server %v", hold.Fence(), w.info("job", "fence"))
		}
		if released, err := hold.Release(t.Context()); !released || err != nil {
			t.Fatal(released, err)
		}
	}
	w.nothingLeft("job")
}

func TestReleaseEndsAnUpgradeThatWaits(t *testing.T) {
	w := newWorld(t)
	hold := must(w.locks.Read("job").Lock(t.Context()))
	w.do("SLOCK.RLOCK", "job", another, 60000)
	done := make(chan error, 1)
	go func() { done <- hold.Upgrade(t.Context()) }()
	w.waiters("job", 1)
	if released, err := hold.Release(t.Context()); !released || err != nil {
		t.Fatal(released, err)
	}
	if err := <-done; err == nil {
		t.Fatal("the upgrade of a released hold succeeded")
	}
	w.do("SLOCK.RUNLOCK", "job", another)
	w.nothingLeft("job")
}

func TestAdopt(t *testing.T) {
	w := newWorld(t)
	fence := w.do("SLOCK.LOCK", "job", another, 60000)
	hold := must(w.locks.Write("job").With(slock.TTL(300*time.Millisecond)).Adopt(t.Context(), another))
	if hold.Fence() != fence || hold.Token() != another {
		t.Fatal(hold.Fence(), fence, hold.Token())
	}
	if _, err := w.locks.Read("job").Adopt(t.Context(), another); !errors.Is(err, slock.ErrNotHeld) {
		t.Fatalf("a writer as a reader: %v", err)
	}
	if _, err := w.locks.Write("job").Adopt(t.Context(), "nobody"); !errors.Is(err, slock.ErrNotHeld) {
		t.Fatalf("a token that holds nothing: %v", err)
	}
	before := w.calls("slock.extend")
	eventually(t, func() bool { return w.calls("slock.extend") > before+2 })
	if n := must(w.locks.Release(t.Context(), another, "job")); n != 1 {
		t.Fatalf("%d keys were released", n)
	}
	w.nothingLeft("job")
}

func TestReleaseByTokenWithADefaultForReaders(t *testing.T) {
	w := newWorld(t, slock.Limit(3))
	must(w.locks.Read("job").With(slock.Token(another)).Lock(t.Context()))
	if n := must(w.locks.Release(t.Context(), another, "job")); n != 1 {
		t.Fatalf("%d keys were released", n)
	}
}

// The server waits for the replicas for longer than the request waits for the lock.
func TestReplicasHaveATimeoutOfTheirOwn(t *testing.T) {
	w := newWorld(t)
	request := w.locks.Write("job").With(slock.Wait(50*time.Millisecond), slock.MinReplicas(1, 500*time.Millisecond))
	if _, err := request.Lock(t.Context()); !errors.Is(err, slock.ErrTooFewReplicas) {
		t.Fatal(err)
	}
	w.nothingLeft("job")
}

func TestErrorsOfTheServer(t *testing.T) {
	w := newWorld(t)
	request := w.locks.Write("job").With(slock.Token("owner"))
	hold := must(request.Lock(t.Context()))
	if _, err := w.locks.Read("job").With(slock.Token("owner")).Lock(t.Context()); !errors.Is(err, slock.ErrWrongMode) {
		t.Fatal(err)
	}
	// another holds b and waits for job; the owner of job asks for b.
	w.do("SLOCK.LOCK", "b", another, 60000)
	go w.client(t).Do(t.Context(), "SLOCK.LOCK", "job", another, 60000, "WAIT", 60000)
	w.waiters("job", 1)
	_, err := w.locks.Write("b").With(slock.Token("owner")).Lock(t.Context())
	var own slock.Error
	if !errors.Is(err, slock.ErrDeadlock) || !errors.As(err, &own) {
		t.Fatal(err)
	}
	w.do("CONFIG", "SET", "slock.max-waiters", 1)
	if _, err := w.locks.Write("b").Lock(t.Context()); !errors.Is(err, slock.ErrQueueFull) {
		t.Fatal(err)
	}
	if err := hold.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestServerWithoutTheModule(t *testing.T) {
	newServer(t) // skips without a module
	s, err := startServer()
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	locks := slock.New(s.client(t))
	defer locks.Close()
	if _, err := locks.Write("job").Lock(t.Context()); !errors.Is(err, slock.ErrModuleNotLoaded) {
		t.Fatal(err)
	}
}

func TestInvalidRequestsSendNothing(t *testing.T) {
	locks := slock.New(nil)
	defer locks.Close()
	quorum := slock.NewQuorum(nil)
	defer quorum.Close()
	if _, err := locks.Write("job").Lock(t.Context()); !errors.Is(err, slock.ErrInvalid) {
		t.Fatalf("without a client: %v", err)
	}
	if _, err := quorum.Write("job").Lock(t.Context()); !errors.Is(err, slock.ErrInvalid) {
		t.Fatalf("without servers: %v", err)
	}
	w := newWorld(t)
	for _, request := range []slock.Request{
		w.locks.Write(),
		w.locks.Write("job").With(slock.TTL(0)),
		w.locks.Write("job").With(slock.TTL(time.Microsecond)),
		w.locks.Write("job").With(slock.TTL(2*time.Millisecond - 1)),
		w.locks.Write("job").With(slock.Wait(-1)),
		w.locks.Write("job").With(slock.Limit(2)),
		w.locks.Read("job").With(slock.Limit(-1)),
		w.locks.Read("job").With(slock.Limit(0)),
		w.locks.Write("job").With(slock.Limit(0)),
		w.locks.Write("job").With(slock.LongestLease(-1)),
		w.locks.Write("job").With(slock.MinReplicas(1, 0)),
	} {
		if _, err := request.Lock(t.Context()); !errors.Is(err, slock.ErrInvalid) {
			t.Errorf("%v", err)
		}
		if _, ok, err := request.TryLock(t.Context()); ok || !errors.Is(err, slock.ErrInvalid) {
			t.Errorf("%v, %v", ok, err)
		}
	}
	if n := w.calls("slock.lock") + w.calls("slock.rlock"); n != 0 {
		t.Errorf("%d commands were sent", n)
	}
}

// A hold counts as valid for 1 ms less than its ttl, and one of a quorum for less.
func TestShortestTTL(t *testing.T) {
	w := newWorld(t)
	hold := must(w.locks.Write("job").Lock(t.Context()))
	if err := hold.Extend(t.Context(), 2*time.Millisecond-1); !errors.Is(err, slock.ErrInvalid) {
		t.Fatal(err)
	}
	_, err := w.locks.Write("job").With(slock.TTL(1)).Adopt(t.Context(), hold.Token())
	if !errors.Is(err, slock.ErrInvalid) {
		t.Fatal(err)
	}
	if err := hold.Check(); err != nil {
		t.Fatal(err)
	}
	quorum := slock.NewQuorum([]redis.UniversalClient{w.client(t)})
	defer quorum.Close()
	_, err = quorum.Write("q").With(slock.TTL(2 * time.Millisecond)).Lock(t.Context())
	if !errors.Is(err, slock.ErrInvalid) {
		t.Fatal(err)
	}
	other := must(quorum.Write("q").Lock(t.Context()))
	if err := other.Extend(t.Context(), 2*time.Millisecond); !errors.Is(err, slock.ErrInvalid) {
		t.Fatal(err)
	}
}
