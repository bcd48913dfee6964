package slock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// refusing is a hook of go-redis that lets some pipelines not pass, as a circuit breaker does. It leaves the
// commands without an error.
type refusing struct{ pipelines atomic.Int32 }

func (*refusing) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*refusing) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (r *refusing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, commands []redis.Cmder) error {
		if commands[0].Name() == "slock.cancel" && r.pipelines.Add(-1) >= 0 {
			return errors.New("refused by the hook")
		}
		return next(ctx, commands)
	}
}

func TestGivingUpIsRepeatedAfterAHookRefusedIt(t *testing.T) {
	w := newWorld(t)
	rdb, hook := w.client(t), &refusing{}
	hook.pipelines.Store(2)
	rdb.AddHook(hook)
	locks := slock.New(rdb)
	defer locks.Close()
	w.do("SLOCK.LOCK", "job", another, 60000)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := lockBeside(ctx, locks.Write("job"))
	w.waiters("job", 1)
	cancel()
	if r := <-waiting; !errors.Is(r.err, context.Canceled) {
		t.Fatal(r.err)
	}
	w.waiters("job", 0)
}
