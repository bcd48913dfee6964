package slock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

func TestWatchdogRenewsUntilTheRelease(t *testing.T) {
	w := newWorld(t)
	hold := must(w.locks.Write("job").With(slock.TTL(500 * time.Millisecond)).Lock(t.Context()))
	eventually(t, func() bool { return w.calls("slock.extend") >= 7 })
	if err := hold.Check(); err != nil {
		t.Fatal(err)
	}
	if released, err := hold.Release(t.Context()); !released || err != nil {
		t.Fatal(released, err)
	}
	if err := hold.Context().Err(); err == nil {
		t.Fatal("the context goes on after the release")
	}
}

func TestHoldWithoutRenewalEnds(t *testing.T) {
	w := newWorld(t)
	hold := must(w.locks.Write("job").With(slock.TTL(100*time.Millisecond), slock.NoRenewal()).Lock(t.Context()))
	<-hold.Context().Done()
	var lost *slock.LostError
	if !errors.As(context.Cause(hold.Context()), &lost) || lost.Reason != slock.Expired ||
		lost.Cause != nil {
		t.Fatal(context.Cause(hold.Context()))
	}
	if time.Now().Before(hold.ValidUntil()) {
		t.Fatal("it ended too early")
	}
	if w.calls("slock.extend") > 0 {
		t.Fatal("it was renewed")
	}
}

func TestLossIsToldAndFinal(t *testing.T) {
	w := newWorld(t)
	request := w.locks.Write("job").With(slock.Token("owner"), slock.TTL(200*time.Millisecond))
	hold := must(request.Lock(t.Context()))
	w.do("DEL", "job")
	<-hold.Context().Done()
	if lost := (*slock.LostError)(nil); !errors.As(hold.Check(), &lost) || lost.Reason != slock.Gone {
		t.Fatal(hold.Check())
	}
	w.do("SLOCK.LOCK", "job", "owner", 60000) // the token holds it again
	if err := hold.Extend(t.Context(), time.Minute); !errors.Is(err, slock.ErrLost) {
		t.Fatalf("Extend of a lost hold: %v", err)
	}
	if err := hold.Check(); !errors.Is(err, slock.ErrLost) {
		t.Fatalf("Check of a lost hold: %v", err)
	}
}

func TestServerIsAwayPastTheTTL(t *testing.T) {
	w := newWorld(t)
	hold := must(w.locks.Write("job").With(slock.TTL(300 * time.Millisecond)).Lock(t.Context()))
	until := hold.ValidUntil()
	w.kill()
	<-hold.Context().Done()
	if time.Now().Before(until) {
		t.Fatal("it ended too early")
	}
	if lost := (*slock.LostError)(nil); !errors.As(hold.Check(), &lost) || lost.Reason != slock.Expired ||
		lost.Cause == nil {
		t.Fatal(hold.Check())
	}
}

// limitedClient is the client of a user who may lock and release, but not extend.
func limitedClient(t *testing.T, w *world) *redis.Client {
	w.do("ACL", "SETUSER", "limited", "on", ">pw", "~*", "+slock.lock", "+slock.unlock", "+slock.munlock", "+slock.cancel",
		"+ping", "+hello", "+client")
	rdb := redis.NewClient(&redis.Options{Addr: w.addr, Username: "limited", Password: "pw"})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func isForbidden(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && strings.HasPrefix(reply.Error(), "NOPERM")
}

func TestLossHasTheErrorOfTheRenewalsAsItsCause(t *testing.T) {
	w := newWorld(t)
	locks := slock.New(limitedClient(t, w))
	defer locks.Close()
	request := locks.Write("job").With(slock.TTL(300 * time.Millisecond))
	hold := must(request.Lock(t.Context()))
	<-hold.Context().Done()
	var lost *slock.LostError
	cause := context.Cause(hold.Context())
	if !errors.As(cause, &lost) || lost.Reason != slock.Expired || !isForbidden(lost.Cause) {
		t.Fatal(cause)
	}
	if !isForbidden(cause) || !isForbidden(hold.Check()) || !strings.Contains(cause.Error(), "NOPERM") {
		t.Fatal(cause, hold.Check())
	}
	err := request.Do(t.Context(), func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, slock.ErrLost) || !isForbidden(err) {
		t.Fatal(err)
	}
}

func TestLossOfAQuorumHoldHasTheAnswersOfTheNodes(t *testing.T) {
	w := newWorld(t)
	quorum := slock.NewQuorum([]redis.UniversalClient{limitedClient(t, w)})
	defer quorum.Close()
	hold := must(quorum.Write("job").With(slock.TTL(300 * time.Millisecond)).Lock(t.Context()))
	<-hold.Context().Done()
	var missed *slock.QuorumError
	if cause := context.Cause(hold.Context()); !errors.As(cause, &missed) || !isForbidden(cause) {
		t.Fatal(cause)
	}
}

func TestLossAtASilentServerHasACause(t *testing.T) {
	w := newWorld(t)
	hold := must(w.locks.Write("job").With(slock.TTL(300 * time.Millisecond)).Lock(t.Context()))
	w.pause()
	<-hold.Context().Done()
	w.resume()
	var lost *slock.LostError
	if !errors.As(hold.Check(), &lost) || lost.Reason != slock.Expired || lost.Cause == nil {
		t.Fatal(hold.Check())
	}
}

func TestLongestLease(t *testing.T) {
	w := newWorld(t)
	began := time.Now()
	request := w.locks.Write("job").With(slock.TTL(500*time.Millisecond), slock.LongestLease(1200*time.Millisecond))
	hold := must(request.Lock(t.Context()))
	<-hold.Context().Done()
	if lost := (*slock.LostError)(nil); !errors.As(hold.Check(), &lost) || lost.Reason != slock.LeaseEnded {
		t.Fatal(hold.Check())
	}
	if time.Since(began) < 1200*time.Millisecond {
		t.Fatal("it ended too early")
	}
	w.nothingLeft("job")
}

func TestHoldsEndAfterClose(t *testing.T) {
	w := newWorld(t)
	hold := must(w.locks.Write("job").With(slock.TTL(300 * time.Millisecond)).Lock(t.Context()))
	ctx := hold.Context()
	if err := w.locks.Close(); err != nil {
		t.Fatal(err)
	}
	if w.info("job", "mode") != "write" {
		t.Fatal("Close released the hold")
	}
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), slock.ErrLost) {
		t.Fatal(context.Cause(ctx))
	}
}

func TestLongestLeaseEndsAfterClose(t *testing.T) {
	w := newWorld(t)
	// The first renewal would be due before the end of the lease.
	request := w.locks.Write("job").With(slock.TTL(3*time.Second), slock.LongestLease(1200*time.Millisecond))
	hold := must(request.Lock(t.Context()))
	if err := w.locks.Close(); err != nil {
		t.Fatal(err)
	}
	<-hold.Context().Done()
	if !time.Now().Before(hold.ValidUntil()) {
		t.Fatal("it ended with the ttl")
	}
}

func TestHoldsHaveNoGoroutinesOfTheirOwn(t *testing.T) {
	w := newWorld(t)
	must(w.locks.Write("warm").Lock(t.Context()))
	before := runtime.NumGoroutine()
	const holds = 500
	for n := range holds {
		must(w.locks.Write(fmt.Sprintf("renewed-%d", n)).With(slock.TTL(time.Minute)).Lock(t.Context()))
		must(w.locks.Write(fmt.Sprintf("plain-%d", n)).With(slock.NoRenewal()).Lock(t.Context()))
	}
	// The pool of go-redis may have some of its own.
	if more := runtime.NumGoroutine() - before; more > 10 {
		t.Fatalf("%d goroutines for %d holds", more, 2*holds)
	}
}

func TestRenewalsArePipelined(t *testing.T) {
	w := newWorld(t)
	const holds = 300
	var all []*slock.Hold
	for n := range holds {
		request := w.locks.Write(fmt.Sprint(n)).With(slock.TTL(2 * time.Second))
		all = append(all, must(request.Lock(t.Context())))
	}
	eventually(t, func() bool { return w.calls("slock.extend") >= 5*holds })
	for _, hold := range all {
		if err := hold.Check(); err != nil {
			t.Fatal(err)
		}
	}
}

// recorder notes what hooks hear.
type recorder struct {
	mu    sync.Mutex
	heard []string
}

func (r *recorder) note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard = append(r.heard, text)
}

func (r *recorder) has(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, heard := range r.heard {
		if heard == text {
			return true
		}
	}
	return false
}

func (r *recorder) hooks() slock.Option {
	return slock.WithHooks(slock.Hooks{
		Waited:        func(label string, _ time.Duration, outcome string) { r.note(label + " " + outcome) },
		Held:          func(label string, _ time.Duration) { r.note(label + " held") },
		Lost:          func(label string, reason slock.Reason) { r.note(label + " " + string(reason)) },
		RenewalFailed: func(label string, _ error) { r.note(label + " renewal failed") },
		ReleaseFailed: func(label string, _ error) { r.note(label + " release failed") },
	})
}

func TestHooks(t *testing.T) {
	r := &recorder{}
	w := newWorld(t, r.hooks())
	request := w.locks.Write("job").With(slock.Label("import"), slock.TTL(200*time.Millisecond))
	hold := must(request.Lock(t.Context()))
	if _, ok, err := w.locks.Write("job").TryLock(t.Context()); ok || err != nil {
		t.Fatal(ok, err)
	}
	_, _ = w.locks.Write("job").With(slock.Wait(10 * time.Millisecond)).Lock(t.Context())
	w.do("DEL", "job")
	<-hold.Context().Done()
	for _, text := range []string{"import granted", "job refused", "job timed out", "import gone", "import held"} {
		eventually(t, func() bool { return r.has(text) })
	}
}
