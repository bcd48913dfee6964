package slock

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Locks is what a program asks for locks. Make one for the program by New; all methods may be called by
// several goroutines at once. Close it when the program ends.
type Locks struct {
	server   server
	settings settings
	watchdog *watchdog
	listen   *listening
	blocking *blocking

	ending     context.Context // done after Close
	end        context.CancelFunc
	background tasks
	tokenTasks tokenTasks
}

// New makes a Locks from a client of go-redis: a *redis.Client (of one server, or of Sentinel) or a
// *redis.ClusterClient. It sends nothing. The client stays the caller's, who closes it after the Locks.
//
// Options are the defaults of all requests (such as TTL), how to wait, RetryFor and WithObserver.
func New(rdb redis.UniversalClient, options ...Option) *Locks {
	l := &Locks{server: server{rdb}, settings: newSettings(options)}
	l.ending, l.end = context.WithCancel(context.Background())
	l.watchdog = newWatchdog(l.renew)
	l.listen = newListening(l.server)
	l.blocking = newBlocking(l.server)
	return l
}

// Write is a request for the lock of all keys, or of none, as the one writer. It sends nothing.
func (l *Locks) Write(keys ...string) Request {
	return Request{locks: l, keys: slices.Clone(keys), mode: Write, settings: l.settings.request}
}

// Read is a request for the lock of all keys, or of none, as a reader. It sends nothing.
func (l *Locks) Read(keys ...string) Request {
	return Request{locks: l, keys: slices.Clone(keys), mode: Read, settings: l.settings.request}
}

// Release releases the keys that the token holds, in whichever mode, and tells how many those were. It is for
// a token that another process took; a Hold has a Release of its own. If ctx ends meanwhile, the release goes
// on in the background.
func (l *Locks) Release(ctx context.Context, token string, keys ...string) (int, error) {
	if token == "" || len(keys) == 0 {
		return 0, invalid("a release needs a token and keys")
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	o := owner{keys: slices.Clone(keys), token: token}
	type result struct {
		released int64
		err      error
	}
	done := make(chan result, 1)
	l.tokenTasks.run(&l.background, token, func() {
		end := retryEnd(l.settings.retryFor)
		released, _, err := l.repeat(context.WithoutCancel(ctx), end, func(ctx context.Context) command {
			return o.release(ctx, "")
		})
		done <- result{released, err}
	})
	select {
	case r := <-done:
		return int(r.released), r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Close stops the watchdog and closes the connections on which waits end. Requests that wait end with
// ErrClosed. It lets requests that were given up get off the server first, for at most the time of RetryFor.
// It releases nothing: holds that are still there are no longer renewed, and lost at the end of their ttl.
func (l *Locks) Close() error {
	l.end()
	l.background.wait(l.settings.retryFor)
	l.watchdog.close()
	l.listen.close()
	return l.blocking.close()
}
