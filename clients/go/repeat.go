package slock

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

func retryEnd(retryFor time.Duration) time.Time { return time.Now().Add(retryFor) }

// call runs one command, and tells whether it was answered before the context was over. The command itself is
// never cut short, since nobody would know then whether it was run. If it was left alone, pending is closed
// when its answer came; it is nil when nothing was sent.
func call(
	ctx context.Context, cmd command, send func(context.Context, redis.Cmder) error,
) (pending <-chan struct{}, answered bool) {
	if ctx.Done() == nil {
		_ = send(ctx, cmd) // the command keeps its error
		return nil, true
	}
	if ctx.Err() != nil {
		return nil, false
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = send(context.WithoutCancel(ctx), cmd)
	}()
	select {
	case <-done:
		return nil, true
	case <-ctx.Done():
		return done, false
	}
}

// repeat runs a command that may be repeated, until an answer comes or the end is reached. Lost is the error of
// one of the commands that were sent and got no answer; nil: there was none.
func (l *Locks) repeat(
	ctx context.Context, end time.Time, build func(context.Context) command,
) (reply int64, lost, err error) {
	var pauses backoff
	for {
		cmd := build(context.WithoutCancel(ctx))
		if _, answered := call(ctx, cmd, l.server.send); !answered {
			return 0, lost, ctx.Err()
		}
		reply, err = cmd.Int64()
		if err == nil || !isTemporary(err) {
			return reply, lost, named(err)
		}
		if mayRunLater(err) {
			lost = err
		}
		pause := pauses.next()
		if time.Until(end) < pause {
			return 0, lost, err
		}
		if err := sleep(ctx, pause); err != nil {
			return 0, lost, err
		}
	}
}

func sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
