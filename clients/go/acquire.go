package slock

import (
	"context"
	"errors"
	"time"
)

// acquire takes the lock for a request. No hold and no error mean refused.
func (r Request) acquire(ctx context.Context, wait bool) (*Hold, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	began := time.Now()
	o := r.owner()
	a := &acquisition{
		locks:      r.locks,
		owner:      o,
		ttl:        r.settings.ttl,
		once:       !wait,
		fresh:      true,
		unanswered: &unanswered{},
		ask: func(ctx context.Context, rest ...any) command {
			return o.lock(ctx, r.mode, &r.settings, rest...)
		},
		withdraw: func(ctx context.Context) (command, bool) { return o.release(ctx, r.mode), true },
	}
	if r.settings.minReplicas > 0 {
		a.confirm = func(g grant) (grant, error) {
			return a.onReplicas(g, r.settings.minReplicas, r.settings.replicaTimeout)
		}
	}
	if wait && r.settings.hasWait {
		a.deadline = began.Add(r.settings.wait)
		a.once = r.settings.wait == 0
	}
	g, err := a.run(ctx)
	if wait && errors.Is(err, errRefused) {
		err = &timeout{keys: r.keys}
	}
	r.locks.settings.observer.Waited(r.settings.labelOr(r.keys[0]), time.Since(began), outcome(err))
	switch {
	case errors.Is(err, errRefused):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return r.locks.newHold(ctx, r, o, a.unanswered, g), nil
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "granted"
	case errors.Is(err, errRefused):
		return "refused"
	case errors.Is(err, ErrTimedOut):
		return "timed out"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	}
	return errorName(err)
}
