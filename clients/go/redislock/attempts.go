package redislock

import (
	"context"
	"errors"
	"time"
)

// attempts calls attempt until it succeeds, fails for good, or no retry is left: an attempt that fails tells whether
// the retry strategy decides about another. It returns the error of the last attempt, joined with that of ctx if ctx
// ended between two attempts. A ctx without a deadline gets one after ttl, so that nobody tries for ever.
func attempts(
	ctx context.Context, ttl time.Duration, retry RetryStrategy, attempt func(context.Context) (again bool, err error),
) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, ttl)
		defer cancel()
	}
	for {
		again, err := attempt(ctx)
		if !again {
			return err
		}
		pause := retry.NextBackoff()
		if pause < 1 {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(pause):
		}
	}
}
