package slock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// newCutWorld is a world whose Locks goes through a proxy.
func newCutWorld(t *testing.T, options ...slock.Option) (*world, *proxy) {
	w := newWorld(t)
	p := newProxy(t, w.addr)
	rdb := redis.NewClient(&redis.Options{Addr: p.addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	w.locks = slock.New(rdb, options...)
	t.Cleanup(func() { _ = w.locks.Close() })
	return w, p
}

func TestReplyToALockIsLost(t *testing.T) {
	w, p := newCutWorld(t)
	p.loseReply("SLOCK.LOCK")
	hold := must(w.locks.Write("job").Lock(t.Context()))
	if p.left() > 0 || w.calls("slock.lock") != 2 {
		t.Fatalf("%d replies were not lost, %d calls", p.left(), w.calls("slock.lock"))
	}
	if hold.Fence() != w.info("job", "fence") {
		t.Fatal(hold.Fence(), w.info("job", "fence"))
	}
	if released, err := hold.Release(t.Context()); !released || err != nil {
		t.Fatal(released, err)
	}
	w.nothingLeft("job")
}

func TestReplyToAReleaseIsLost(t *testing.T) {
	w, p := newCutWorld(t)
	hold := must(w.locks.Write("job").Lock(t.Context()))
	p.loseReply("SLOCK.UNLOCK")
	if released, err := hold.Release(t.Context()); !released || err != nil {
		t.Fatal(released, err)
	}
	if p.left() > 0 || w.calls("slock.unlock") != 3 { // the first asks whether the user may release
		t.Fatalf("%d replies were not lost, %d calls", p.left(), w.calls("slock.unlock"))
	}
	w.nothingLeft("job")
}

func TestReplyToAnExtendIsLost(t *testing.T) {
	w, p := newCutWorld(t)
	hold := must(w.locks.Write("job").With(slock.NoRenewal()).Lock(t.Context()))
	p.loseReply("SLOCK.EXTEND")
	if err := hold.Extend(t.Context(), time.Minute); err != nil || p.left() > 0 {
		t.Fatal(err, p.left())
	}
}

func TestReplyToARenewalIsLost(t *testing.T) {
	w, p := newCutWorld(t)
	hold := must(w.locks.Write("job").With(slock.TTL(2 * time.Second)).Lock(t.Context()))
	p.loseReply("SLOCK.EXTEND")
	p.loseReply("SLOCK.EXTEND")
	eventually(t, func() bool { return w.calls("slock.extend") >= 4 })
	if err := hold.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestReplyIsLostDuringAWait(t *testing.T) {
	for name, option := range waitings() {
		t.Run(name, func(t *testing.T) {
			w, p := newCutWorld(t, option)
			w.do("SLOCK.LOCK", "job", another, 60000)
			if name == "poll" {
				p.loseReply("SLOCK.LOCK")
			} else {
				p.loseReply("WAIT") // the first command has none
			}
			waiting := lockBeside(t.Context(), w.locks.Write("job"))
			if name == "poll" {
				eventually(t, func() bool { return p.left() == 0 })
			} else {
				w.waiters("job", 1)
			}
			w.do("SLOCK.UNLOCK", "job", another)
			r := <-waiting
			if r.err != nil || p.left() > 0 {
				t.Fatal(r.err, p.left())
			}
			if err := r.hold.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.nothingLeft("job")
		})
	}
}

func TestReplyToGivingUpIsLost(t *testing.T) {
	w, p := newCutWorld(t)
	w.do("SLOCK.LOCK", "job", another, 60000)
	p.loseReply("SLOCK.CANCEL")
	ctx, cancel := context.WithCancel(t.Context())
	waiting := lockBeside(ctx, w.locks.Write("job"))
	w.waiters("job", 1)
	cancel()
	if r := <-waiting; !errors.Is(r.err, context.Canceled) {
		t.Fatal(r.err)
	}
	eventually(t, func() bool { return p.left() == 0 })
	w.waiters("job", 0)
	w.do("SLOCK.UNLOCK", "job", another)
	w.nothingLeft("job")
}

// The server forgets a request when nobody listens to its channel any more.
func TestGivingUpThatNeverArrivesLeavesNothing(t *testing.T) {
	w, p := newCutWorld(t, slock.RetryFor(50*time.Millisecond))
	w.do("SLOCK.LOCK", "job", another, 3600000)
	ctx, cancel := context.WithCancel(t.Context())
	// That of a token of the program's is sent for the ttl.
	first := lockBeside(ctx, w.locks.Write("job").With(slock.TTL(50*time.Millisecond), slock.Token("mine")))
	w.waiters("job", 1)
	second := lockBeside(t.Context(), w.locks.Write("job"))
	w.waiters("job", 2)
	p.refuse("SLOCK.CANCEL")
	cancel()
	if r := <-first; !errors.Is(r.err, context.Canceled) {
		t.Fatal(r.err)
	}
	w.waiters("job", 1)
	w.do("SLOCK.UNLOCK", "job", another)
	if r := <-second; r.err != nil {
		t.Fatal(r.err)
	}
}
