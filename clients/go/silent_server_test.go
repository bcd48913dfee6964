package slock_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// newPatientWorld is a world whose client waits for answers without an end.
func newPatientWorld(t *testing.T, options ...slock.Option) *world {
	w := newWorld(t)
	rdb := redis.NewClient(&redis.Options{Addr: w.addr, ReadTimeout: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	w.locks = slock.New(rdb, options...)
	t.Cleanup(func() { _ = w.locks.Close() })
	return w
}

func TestDoEndsWithTheLossAtASilentServer(t *testing.T) {
	w := newPatientWorld(t, slock.RetryFor(50*time.Millisecond))
	request := w.locks.Write("job").With(slock.TTL(300 * time.Millisecond))
	err := request.Do(t.Context(), func(ctx context.Context) error {
		w.pause()
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, slock.ErrLost) {
		t.Fatal(err)
	}
	w.resume()
	w.nothingLeft("job")
}

func TestDoThatIsCancelledEndsAtASilentServer(t *testing.T) {
	w := newPatientWorld(t, slock.RetryFor(50*time.Millisecond))
	ctx, cancel := context.WithCancel(t.Context())
	request := w.locks.Write("job").With(slock.TTL(time.Hour), slock.NoRenewal())
	err := request.Do(ctx, func(ctx context.Context) error {
		w.pause()
		cancel()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	w.resume()
	w.nothingLeft("job") // the release goes on
}

func TestDeadlineOfACallAtASilentServer(t *testing.T) {
	w := newPatientWorld(t)
	hold := must(w.locks.Write("job").With(slock.TTL(time.Minute)).Lock(t.Context()))
	w.pause()
	defer w.resume()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	extended := hold.Extend(ctx, time.Minute)
	_, released := hold.Release(ctx)
	_, adopted := w.locks.Write("job").Adopt(ctx, another)
	for _, err := range []error{extended, adopted} {
		if !errors.Is(err, slock.ErrTimedOut) || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
	if !errors.Is(released, context.DeadlineExceeded) {
		t.Error(released)
	}
}

func TestWaitEndsAtASilentServer(t *testing.T) {
	for name, option := range waitings() {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, option)
			w.pause()
			began := time.Now()
			// Only a release ends a hold with this ttl.
			request := w.locks.Write("job").With(slock.Wait(300*time.Millisecond), slock.TTL(time.Hour))
			_, err := request.Lock(t.Context())
			took := time.Since(began)
			w.resume()
			if !errors.Is(err, slock.ErrTimedOut) || !strings.Contains(err.Error(), "did not answer") ||
				took > 2*time.Second {
				t.Fatal(err, took)
			}
			if err := w.locks.Close(); err != nil {
				t.Fatal(err)
			}
			w.nothingLeft("job") // the giving up went on
		})
	}
}

// The server falls silent while the listening connection is made anew.
func TestCloseWhileTheServerIsSilent(t *testing.T) {
	w := newWorld(t)
	var pauses atomic.Bool
	paused := make(chan struct{})
	rdb := redis.NewClient(&redis.Options{
		Addr:        w.addr,
		ReadTimeout: -1,
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			if pauses.CompareAndSwap(true, false) {
				w.pause()
				close(paused)
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	})
	defer rdb.Close()
	locks := slock.New(rdb, slock.RetryFor(50*time.Millisecond))
	w.do("SLOCK.LOCK", "job", another, 60000)
	waiting := lockBeside(t.Context(), locks.Write("job"))
	w.waiters("job", 1)
	pauses.Store(true)
	w.do("CLIENT", "KILL", "TYPE", "pubsub")
	<-paused
	if err := locks.Close(); err != nil {
		t.Fatal(err)
	}
	if r := <-waiting; !errors.Is(r.err, slock.ErrClosed) {
		t.Fatal(r.err)
	}
	w.resume()
	w.waiters("job", 0)
}
