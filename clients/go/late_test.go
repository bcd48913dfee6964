package slock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// newLateWorld is a world whose Locks goes through a proxy, by a client that soon takes an answer for lost.
func newLateWorld(t *testing.T, options ...slock.Option) (*world, *proxy) {
	return newProxiedWorld(t, 200*time.Millisecond, options...)
}

func newProxiedWorld(t *testing.T, readTimeout time.Duration, options ...slock.Option) (*world, *proxy) {
	w := newWorld(t)
	p := newProxy(t, w.addr)
	rdb := redis.NewClient(&redis.Options{Addr: p.addr(), ReadTimeout: readTimeout})
	t.Cleanup(func() { _ = rdb.Close() })
	w.locks = slock.New(rdb, options...)
	t.Cleanup(func() { _ = w.locks.Close() })
	// The first acquisition asks whether the user may release.
	must(must(w.locks.Write("warm").Lock(t.Context())).Release(t.Context()))
	must(must(w.locks.Read("warm").Lock(t.Context())).Release(t.Context()))
	return w, p
}

// left is for how long the server has the hold.
func (w *world) left(key, token string) time.Duration {
	w.t.Helper()
	return time.Duration(w.do("SLOCK.PTTL", key, token).(int64)) * time.Millisecond
}

// delivered delivers what was kept, and waits until the server has executed one more of this command.
func (w *world) delivered(p *proxy, command string) {
	w.t.Helper()
	before := w.calls(command)
	p.deliver(w.t)
	eventually(w.t, func() bool { return w.calls(command) > before })
}

func TestLateLockOfARequestThatWasGivenUp(t *testing.T) {
	w, p := newLateWorld(t)
	p.keep("SLOCK.LOCK")
	ctx, cancel := context.WithCancel(t.Context())
	waiting := lockBeside(ctx, w.locks.Write("job").With(slock.TTL(time.Hour)))
	eventually(t, func() bool { return p.keeping() == 1 })
	cancel()
	if r := <-waiting; !errors.Is(r.err, context.Canceled) {
		t.Fatal(r.err)
	}
	eventually(t, func() bool { return w.calls("slock.cancel") > 0 && w.calls("slock.runlock") > 1 })
	w.delivered(p, "slock.lock")
	w.nothingLeft("job")
}

// The server does not refuse a token of the program's. The answer tells what to release.
func TestLateLockByATokenOfTheProgram(t *testing.T) {
	w, p := newProxiedWorld(t, time.Minute)
	p.keep("SLOCK.LOCK")
	ctx, cancel := context.WithCancel(t.Context())
	waiting := lockBeside(ctx, w.locks.Write("job").With(slock.TTL(time.Hour), slock.Token("mine")))
	eventually(t, func() bool { return p.keeping() == 1 })
	cancels := w.calls("slock.cancel")
	cancel()
	if r := <-waiting; !errors.Is(r.err, context.Canceled) {
		t.Fatal(r.err)
	}
	eventually(t, func() bool { return w.calls("slock.cancel") > cancels })
	w.delivered(p, "slock.lock")
	w.nothingLeft("job")
}

// The copy of the request that was answered is released, and the first one arrives after that.
func TestLateLockOfAHoldThatWasReleased(t *testing.T) {
	w, p := newLateWorld(t)
	p.keep("SLOCK.LOCK")
	hold := must(w.locks.Write("job").With(slock.TTL(time.Hour)).Lock(t.Context()))
	if released, err := hold.Release(t.Context()); !released || err != nil {
		t.Fatal(released, err)
	}
	w.delivered(p, "slock.lock")
	w.nothingLeft("job")
}

func TestLateExtendShortensNothing(t *testing.T) {
	w, p := newLateWorld(t)
	hold := must(w.locks.Write("job").With(slock.TTL(time.Minute), slock.NoRenewal()).Lock(t.Context()))
	p.keep("SLOCK.EXTEND")
	if err := hold.Extend(t.Context(), 2*time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := hold.Extend(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	w.delivered(p, "slock.extend")
	if left := w.left("job", hold.Token()); left < 59*time.Minute {
		t.Fatal(left)
	}
	if left := time.Until(hold.ValidUntil()); left < 59*time.Minute {
		t.Fatal("the hold counts for", left)
	}
	must(hold.Release(t.Context()))
}

func TestLateDowngradeDoesNotUndoAnUpgrade(t *testing.T) {
	w, p := newLateWorld(t)
	hold := must(w.locks.Write("job").With(slock.TTL(time.Minute)).Lock(t.Context()))
	p.keep("SLOCK.DOWNGRADE")
	if err := hold.Downgrade(t.Context()); err != nil || p.keeping() != 1 {
		t.Fatal(err, p.keeping())
	}
	if err := hold.Upgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.delivered(p, "slock.downgrade")
	if hold.Mode() != slock.Write || w.info("job", "mode") != "write" || w.info("job", "fence") != hold.Fence() {
		t.Fatal(hold.Mode(), w.info("job", "mode"), w.info("job", "fence"), hold.Fence())
	}
	if released, err := hold.Release(t.Context()); !released || err != nil {
		t.Fatal(released, err)
	}
	w.nothingLeft("job")
}

func TestLateReleaseLeavesALaterHoldOfTheToken(t *testing.T) {
	w, p := newLateWorld(t)
	request := w.locks.Write("job").With(slock.Token("mine"), slock.TTL(time.Minute))
	first := must(request.Lock(t.Context()))
	p.keep("SLOCK.UNLOCK")
	if released, err := first.Release(t.Context()); !released || err != nil {
		t.Fatal(released, err)
	}
	second := must(request.Lock(t.Context()))
	w.delivered(p, "slock.unlock")
	if err := second.Check(); err != nil || w.info("job", "fence") != second.Fence() {
		t.Fatal(err, w.info("job", "fence"))
	}
	must(second.Release(t.Context()))
}

func TestUpgradeAfterOneThatWasGivenUpIsRefused(t *testing.T) {
	w := newWorld(t)
	hold := must(w.locks.Read("job").Lock(t.Context()))
	w.do("SLOCK.RLOCK", "job", another, 60000)
	ctx, cancel := context.WithCancel(t.Context())
	upgraded := make(chan error, 1)
	go func() { upgraded <- hold.Upgrade(ctx) }()
	w.waiters("job", 1)
	cancel()
	if err := <-upgraded; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := hold.Upgrade(t.Context()); !errors.Is(err, slock.ErrRefused) || !strings.Contains(err.Error(), "REFUSED") {
		t.Fatal(err)
	}
	if err := hold.Extend(t.Context(), time.Minute); err != nil || hold.Mode() != slock.Read {
		t.Fatal(err, hold.Mode())
	}
	must(hold.Release(t.Context()))
}

// An operator withdraws a request and has the server refuse its token.
func TestRefusedTokenIsFinal(t *testing.T) {
	w := newWorld(t)
	w.do("SLOCK.CANCEL", "job", "mine", "REFUSE", 60000)
	if _, err := w.locks.Write("job").With(slock.Token("mine")).Lock(t.Context()); !errors.Is(err, slock.ErrRefused) {
		t.Fatal(err)
	}
	w.nothingLeft("job")
}

func TestHandOver(t *testing.T) {
	w := newWorld(t)
	hold := must(w.locks.Write("job").With(slock.TTL(time.Minute), slock.Token("mine")).Lock(t.Context()))
	ctx := hold.Context()
	if err := hold.HandOver(); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if err := hold.HandOver(); !errors.Is(err, slock.ErrNotHeld) {
		t.Fatal(err)
	}
	if err := hold.Check(); !errors.Is(err, slock.ErrNotHeld) {
		t.Fatal(err)
	}
	adopted := must(w.locks.Write("job").Adopt(t.Context(), "mine"))
	if released, err := hold.Release(t.Context()); released || err != nil {
		t.Fatal(released, err)
	}
	if adopted.Fence() != hold.Fence() || w.info("job", "fence") != hold.Fence() {
		t.Fatal("somebody released what was handed over")
	}
	if released, err := adopted.Release(t.Context()); !released || err != nil {
		t.Fatal(released, err)
	}
}

// The token may be used again at once: what the upgrade left was ended with the hold.
func TestUpgradeOfAHoldThatWasReleasedWithdrawsNothingLater(t *testing.T) {
	w, p := newProxiedWorld(t, time.Minute)
	hold := must(w.locks.Read("job").With(slock.TTL(time.Hour), slock.Token("mine")).Lock(t.Context()))
	p.keep("SLOCK.UPGRADE")
	changed := make(chan error, 1)
	go func() { changed <- hold.Upgrade(t.Context()) }()
	eventually(t, func() bool { return p.keeping() == 1 })
	before := w.calls("slock.cancel")
	if released, err := hold.Release(t.Context()); !released || err != nil {
		t.Fatal(released, err)
	}
	if err := <-changed; !errors.Is(err, slock.ErrNotHeld) {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	if more := w.calls("slock.cancel") - before; more != 1 {
		t.Fatalf("%d times something was withdrawn", more)
	}
	w.delivered(p, "slock.upgrade")
	w.nothingLeft("job")
}
