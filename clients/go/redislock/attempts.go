package redislock

import (
	"context"
	"errors"
	"time"
)

// outcome is what one attempt came to.
type outcome struct {
	err   error // nil: the attempt succeeded
	again bool  // the retry strategy decides whether there is another attempt
}

// attempts calls attempt until it succeeds, fails for good, or no retry is left. It returns the error of the
// last attempt, joined with that of ctx if ctx ended between two attempts. A ctx without a deadline gets one
// after ttl, so that nobody tries for ever.
func attempts(
	ctx context.Context, ttl time.Duration, retry RetryStrategy, attempt func(context.Context) outcome,
) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, ttl)
		defer cancel()
	}
	for {
		result := attempt(ctx)
		if !result.again {
			return result.err
		}
		pause := retry.NextBackoff()
		if pause < 1 {
			return result.err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(result.err, ctx.Err())
		case <-timer.C:
		}
	}
}
