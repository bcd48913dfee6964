package slock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// soon is when the clients of these tests take an answer for lost.
const soon = 200 * time.Millisecond

// newLateWorld is a world whose Locks goes through a proxy, by a client with this timeout for answers.
func newLateWorld(t *testing.T, timeout time.Duration, options ...slock.Option) (*world, *proxy) {
	w := newWorld(t)
	p := newProxy(t, w.addr)
	rdb := redis.NewClient(&redis.Options{Addr: p.addr(), ReadTimeout: timeout})
	t.Cleanup(func() { _ = rdb.Close() })
	w.locks = slock.New(rdb, options...)
	t.Cleanup(func() { _ = w.locks.Close() })
	return w, p
}

// left is for how long the server has the hold.
func (w *world) left(key, token string) time.Duration {
	w.t.Helper()
	return time.Duration(w.do("SLOCK.PTTL", key, token).(int64)) * time.Millisecond
}

// A command that got no answer sets its ttl after a later one has set a longer ttl.
func TestLateCommandDoesNotEndAHoldBeforeItsValidity(t *testing.T) {
	const short, long = 30 * time.Second, time.Hour
	ctx := context.Background()
	lock := func(w *world, mode slock.Mode, ttl time.Duration) *slock.Hold {
		request := w.locks.Write("job")
		if mode == slock.Read {
			request = w.locks.Read("job")
		}
		return must(request.With(slock.TTL(ttl), slock.NoRenewal()).Lock(ctx))
	}
	for command, begin := range map[string]func(*world) (*slock.Hold, error){
		"SLOCK.LOCK": func(w *world) (*slock.Hold, error) { return lock(w, slock.Write, short), nil },
		"SLOCK.EXTEND": func(w *world) (*slock.Hold, error) {
			hold := lock(w, slock.Write, long)
			return hold, hold.Extend(ctx, short)
		},
		"SLOCK.UPGRADE": func(w *world) (*slock.Hold, error) {
			hold := lock(w, slock.Read, short)
			return hold, hold.Upgrade(ctx)
		},
		"SLOCK.DOWNGRADE": func(w *world) (*slock.Hold, error) {
			hold := lock(w, slock.Write, short)
			return hold, hold.Downgrade(ctx)
		},
	} {
		t.Run(command, func(t *testing.T) {
			w, p := newLateWorld(t, soon)
			p.keep(command)
			hold, err := begin(w)
			if err != nil || p.keeping() != 1 {
				t.Fatal(err, p.keeping())
			}
			if err := hold.Extend(ctx, long); err != nil {
				t.Fatal(err)
			}
			p.deliver(t)
			eventually(t, func() bool { return w.left("job", hold.Token()) <= short })
			now := time.Now()
			if left := w.left("job", hold.Token()); left <= 0 || hold.ValidUntil().After(now.Add(left)) {
				t.Fatal(left, hold.ValidUntil().Sub(now))
			}
		})
	}
}

func TestLateRenewalDoesNotEndAHold(t *testing.T) {
	w, p := newLateWorld(t, soon)
	const short = 3 * time.Second
	hold := must(w.locks.Write("job").With(slock.TTL(short)).Lock(t.Context()))
	p.keep("SLOCK.EXTEND")
	eventually(t, func() bool { return p.keeping() == 1 })
	if err := hold.Extend(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(hold.ValidUntil()); left > short {
		t.Fatal(left)
	}
	p.deliver(t)
	eventually(t, func() bool { return w.left("job", hold.Token()) <= short })
	eventually(t, func() bool { return w.left("job", hold.Token()) > short }) // it is renewed
	if err := hold.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestHoldIsRenewedAfterAnExtendThatFailed(t *testing.T) {
	w := newWorld(t)
	locks := slock.New(limitedClient(t, w))
	defer locks.Close()
	hold := must(locks.Write("job").With(slock.TTL(time.Hour)).Lock(t.Context()))
	if err := hold.Extend(t.Context(), 5*time.Second); !isForbidden(err) {
		t.Fatal(err)
	}
	until := hold.ValidUntil()
	w.do("ACL", "SETUSER", "limited", "+slock.extend")
	eventually(t, func() bool { return hold.ValidUntil().After(until) || hold.Check() != nil })
	if err := hold.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestLateExtendDoesNotEndAQuorumHoldBeforeItsValidity(t *testing.T) {
	const short, long = 30 * time.Second, time.Hour
	var worlds []*world
	var proxies []*proxy
	var clients []redis.UniversalClient
	for range 3 {
		w, p := newLateWorld(t, soon)
		rdb := redis.NewClient(&redis.Options{Addr: p.addr(), ReadTimeout: soon})
		t.Cleanup(func() { _ = rdb.Close() })
		worlds, proxies, clients = append(worlds, w), append(proxies, p), append(clients, rdb)
	}
	quorum := slock.NewQuorum(clients)
	t.Cleanup(func() { _ = quorum.Close() })
	hold := must(quorum.Write("job").With(slock.TTL(long), slock.NoRenewal()).Lock(t.Context()))
	for _, p := range proxies {
		p.keep("SLOCK.EXTEND")
	}
	if err := hold.Extend(t.Context(), short); err != nil {
		t.Fatal(err)
	}
	if err := hold.Extend(t.Context(), long); err != nil {
		t.Fatal(err)
	}
	for i, w := range worlds {
		proxies[i].deliver(t)
		eventually(t, func() bool { return w.left("job", hold.Token()) <= short })
		now := time.Now()
		if left := w.left("job", hold.Token()); left <= 0 || hold.ValidUntil().After(now.Add(left)) {
			t.Fatal(left, hold.ValidUntil().Sub(now))
		}
	}
}

func TestUpgradeAfterADowngradeWithoutAnAnswer(t *testing.T) {
	w, p := newLateWorld(t, soon)
	hold := must(w.locks.Write("job").Lock(t.Context()))
	p.keep("SLOCK.DOWNGRADE")
	if err := hold.Downgrade(t.Context()); err != nil || p.keeping() != 1 {
		t.Fatal(err, p.keeping())
	}
	if err := hold.Upgrade(t.Context()); !errors.Is(err, slock.ErrWrongMode) || w.calls("slock.upgrade") != 0 {
		t.Fatal(err, w.calls("slock.upgrade"))
	}
	if err := hold.Check(); err != nil || hold.Mode() != slock.Read {
		t.Fatal(err, hold.Mode())
	}
	if err := hold.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft("job")
}

func TestUpgradeAfterAnUpgradeWhoseWithdrawalGotNoAnswer(t *testing.T) {
	w, p := newCutWorld(t)
	w.do("SLOCK.RLOCK", "job", another, 60000)
	hold := must(w.locks.Read("job").Lock(t.Context()))
	p.loseReply("SLOCK.DOWNGRADE")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- hold.Upgrade(ctx) }()
	w.waiters("job", 1)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := hold.Upgrade(t.Context(), slock.Wait(0)); !errors.Is(err, slock.ErrWrongMode) {
		t.Fatal(err)
	}
	if err := hold.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A downgrade that no server answers leaves a reader: it may have been carried out.
func TestDowngradeWithoutAnyAnswerLeavesAReader(t *testing.T) {
	w, p := newCutWorld(t)
	hold := must(w.locks.Write("job").With(slock.TTL(3 * time.Second)).Lock(t.Context()))
	p.refuse("SLOCK.DOWNGRADE")
	if err := hold.Downgrade(t.Context()); err == nil || hold.Mode() != slock.Read {
		t.Fatal(err, hold.Mode())
	}
}
