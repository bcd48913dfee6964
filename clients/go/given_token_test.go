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

// mine is a token that the caller gives.
const mine = "mine"

// isStillRunning tells that a request waited in vain for the end of a release with its token.
func isStillRunning(err error) bool {
	return errors.Is(err, slock.ErrTimedOut) && strings.Contains(err.Error(), "still runs")
}

// A release or a withdrawal is on its way when the same token asks again.
func TestNextHoldOfATokenIsNotReleased(t *testing.T) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	request := func(w *world) slock.Request { return w.locks.Write("job").With(slock.Token(mine)) }
	for name, c := range map[string]struct {
		kept  string
		begin func(*testing.T, *world, *proxy)
	}{
		"giving up": {"SLOCK.CANCEL", func(t *testing.T, w *world, p *proxy) {
			w.do("SLOCK.LOCK", "job", another, 60000)
			ctx, cancel := context.WithCancel(t.Context())
			waiting := lockBeside(ctx, request(w))
			w.waiters("job", 1)
			cancel()
			if r := <-waiting; !errors.Is(r.err, context.Canceled) {
				t.Fatal(r.err)
			}
			eventually(t, func() bool { return p.keeping() == 1 })
			w.do("SLOCK.UNLOCK", "job", another)
		}},
		"release of a hold": {"SLOCK.UNLOCK", func(t *testing.T, w *world, _ *proxy) {
			hold := must(request(w).Lock(t.Context()))
			if _, err := hold.Release(over); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}},
		"release from elsewhere": {"SLOCK.MUNLOCK", func(t *testing.T, w *world, p *proxy) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() {
				_, err := w.locks.Release(ctx, mine, "job")
				ended <- err
			}()
			eventually(t, func() bool { return p.keeping() == 1 })
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w, p := newLateWorld(t, time.Hour)
			p.keep(c.kept)
			c.begin(t, w, p)
			eventually(t, func() bool { return p.keeping() == 1 })
			if _, err := request(w).With(slock.Wait(100 * time.Millisecond)).Lock(t.Context()); !isStillRunning(err) {
				t.Fatal(err)
			}
			if _, _, err := request(w).TryLock(t.Context()); !isStillRunning(err) {
				t.Fatal(err)
			}
			if _, err := request(w).Lock(over); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if _, err := request(w).Adopt(over, mine); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			waiting := lockBeside(t.Context(), request(w))
			p.deliver(t)
			r := <-waiting
			if r.err != nil {
				t.Fatal(r.err)
			}
			if err := r.hold.Unlock(t.Context()); err != nil {
				t.Fatal(err) // it was there
			}
		})
	}
}

func TestNextQuorumHoldOfATokenIsNotReleased(t *testing.T) {
	var proxies []*proxy
	var clients []redis.UniversalClient
	for range 3 {
		_, p := newLateWorld(t, time.Hour)
		rdb := redis.NewClient(&redis.Options{Addr: p.addr(), ReadTimeout: time.Hour})
		t.Cleanup(func() { _ = rdb.Close() })
		proxies, clients = append(proxies, p), append(clients, rdb)
		p.keep("SLOCK.UNLOCK")
	}
	quorum := slock.NewQuorum(clients)
	t.Cleanup(func() { _ = quorum.Close() })
	request := quorum.Write("job").With(slock.Token(mine))
	hold := must(request.Lock(t.Context()))
	if _, err := hold.Release(t.Context()); !errors.Is(err, slock.ErrQuorumMissed) {
		t.Fatal(err)
	}
	for _, p := range proxies {
		eventually(t, func() bool { return p.keeping() == 1 })
	}
	if _, err := request.With(slock.Wait(100 * time.Millisecond)).Lock(t.Context()); !isStillRunning(err) {
		t.Fatal(err)
	}
	if _, _, err := request.TryLock(t.Context()); !isStillRunning(err) {
		t.Fatal(err)
	}
	for _, p := range proxies {
		p.deliver(t)
	}
	hold = must(request.Lock(t.Context()))
	if err := hold.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The release of a hold has to wait for an extension, which takes longer than the hold lasts.
func TestReleaseThatIsTooLateForItsHoldIsNotSent(t *testing.T) {
	w, p := newLateWorld(t, time.Hour)
	request := w.locks.Write("job").With(slock.Token(mine), slock.TTL(300*time.Millisecond), slock.NoRenewal())
	hold := must(request.Lock(t.Context()))
	p.keep("SLOCK.EXTEND")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- hold.Extend(ctx, 200*time.Millisecond) }()
	eventually(t, func() bool { return p.keeping() == 1 })
	cancel()
	<-ended
	if _, err := hold.Release(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	w.nothingLeft("job")
	w.do("SLOCK.LOCK", "job", mine, 60000) // by another process
	p.deliver(t)
	eventually(t, func() bool { return hold.Check() != nil })
	if err := w.locks.Close(); err != nil {
		t.Fatal(err)
	}
	if w.calls("slock.unlock") != 0 {
		t.Fatal("the hold of the other process was released")
	}
}

func TestReleaseOfAnExpiredQuorumHoldLeavesALaterOne(t *testing.T) {
	q := newNodes(t, 3)
	request := q.quorum.Write("job").With(slock.Token(mine), slock.TTL(100*time.Millisecond), slock.NoRenewal())
	hold := must(request.Lock(t.Context()))
	eventually(t, func() bool { return hold.Check() != nil })
	later := must(request.With(slock.TTL(time.Minute)).Lock(t.Context()))
	if released, err := hold.Release(t.Context()); released || err != nil {
		t.Fatal(released, err)
	}
	if err := later.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
}
