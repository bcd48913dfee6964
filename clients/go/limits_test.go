package slock_test

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// silent is a server that accepts connections and never replies.
func silent(t *testing.T) string {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			if _, err := listener.Accept(); err != nil {
				return
			}
		}
	}()
	return listener.Addr().String()
}

// full is a server that does not even accept connections: its backlog is full, and the kernel drops what comes.
func full(t *testing.T) string {
	socket := must(syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0))
	t.Cleanup(func() { _ = syscall.Close(socket) })
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(socket, 0); err != nil {
		t.Fatal(err)
	}
	port := must(syscall.Getsockname(socket)).(*syscall.SockaddrInet4).Port
	address := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}).String()
	for range 100 {
		connection, err := net.DialTimeout("tcp", address, 100*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = connection.Close() })
	}
	t.Skip("the backlog does not fill here")
	return ""
}

func TestEachCallEndsInABlackHole(t *testing.T) {
	const limit = 500 * time.Millisecond
	redis.SetLogger(&logged{})
	w := newWorld(t, redis.Options{})
	for kind, address := range map[string]string{"silent": silent(t), "full": full(t), "paused": w.Addr} {
		for name, timeout := range map[string]time.Duration{"the usual time limit": 0, "no time limit": -1} {
			rdb := redis.NewClient(&redis.Options{Addr: address, ReadTimeout: timeout, WriteTimeout: timeout})
			defer rdb.Close()
			locks := slock.New(rdb, slock.RetryFor(limit))
			job := locks.Write("job")
			calls := map[string]func(context.Context) error{
				"Lock":    func(ctx context.Context) error { _, err := job.Lock(ctx); return err },
				"TryLock": func(ctx context.Context) error { _, err := job.TryLock(ctx); return err },
				"Wait":    func(ctx context.Context) error { _, err := job.With(slock.Wait(limit / 2)).Lock(ctx); return err },
				"Do":      func(ctx context.Context) error { return job.Do(ctx, nil) },
				"Adopt":   func(ctx context.Context) error { _, err := job.Adopt(ctx, "token"); return err },
				"Release": func(ctx context.Context) error { _, err := locks.Release(ctx, "token", "job"); return err },
				"Info":    func(ctx context.Context) error { _, err := locks.Info(ctx, "job"); return err },
				"Queues":  func(ctx context.Context) error { _, err := locks.Queues(ctx); return err },
			}
			if kind == "paused" {
				held := must(locks.Write(name).Lock(t.Context()))
				calls["Extend"] = func(ctx context.Context) error { return held.Extend(ctx, time.Minute) }
				ended := make(chan *slock.Hold, 2)
				for _, key := range []string{"one ", "two "} {
					ended <- must(locks.Write(key + name).Lock(t.Context()))
				}
				calls["Unlock"] = func(ctx context.Context) error { return (<-ended).Unlock(ctx) }
				w.Pause()
			}
			done := make(chan struct{}, 2*len(calls))
			for call, run := range calls {
				go func() {
					within(t, limit, func() { is(t, run(context.Background()), []error{slock.ErrNoAnswer}) })
					done <- struct{}{}
				}()
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), limit/2)
					defer cancel()
					within(t, limit/2, func() {
						if err := run(ctx); err == nil {
							t.Error(kind, name, call, "succeeded")
						}
					})
					done <- struct{}{}
				}()
			}
			for range 2 * len(calls) {
				<-done
			}
			within(t, limit, func() { _ = locks.Close() })
			w.Resume()
		}
	}
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
	w.Kill()
	for _, request := range []slock.Request{
		w.locks.Write("job"), w.locks.Write("job").With(slock.Wait(time.Minute)),
	} {
		_, err := request.Lock(t.Context())
		is(t, err, []error{slock.ErrNoAnswer, syscall.ECONNREFUSED}, "job", "no reply", "refused")
	}
}

// The time for replicas may be longer than that in which other commands are answered.
func TestTooFewReplicas(t *testing.T) {
	w := newWorld(t, redis.Options{}, slock.MinReplicas(1, time.Second))
	within(t, time.Second, func() {
		_, err := w.locks.Write("job").Lock(t.Context())
		is(t, err, []error{slock.ErrTooFewReplicas}, "job", "0 of 1")
	})
	w.nothingLeft()
}
