// SPDX-License-Identifier: MIT OR Apache-2.0

package redislock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Options are the options of [Client.Obtain], [Client.ObtainMulti] and [Lock.Refresh]. Nil stands for the
// defaults.
type Options struct {
	// RetryStrategy says when to try again. The default is [NoRetry].
	RetryStrategy RetryStrategy

	// Metadata is a note that is kept with the lock: at most 1024 bytes. SLOCK.INFO key FULL shows it.
	// Refresh does not use it.
	Metadata string

	// Token is the owner's identity: 1 to 255 bytes. The default is a random one for each lock. Whoever asks
	// with the token of a lock that is held obtains it too. Refresh does not use it.
	Token string
}

func (o *Options) retryStrategy() RetryStrategy {
	if o == nil || o.RetryStrategy == nil {
		return NoRetry()
	}
	return o.RetryStrategy
}

// RetryStrategy says how long to pause between two attempts.
//
// NextBackoff is called after each attempt that failed. With less than one nanosecond the attempts end. One
// value that several calls share is called by all of them at once.
type RetryStrategy interface {
	// NextBackoff returns the pause before the next attempt, or 0 when there shall be none.
	NextBackoff() time.Duration
}

// strategy is a RetryStrategy that is a function.
type strategy func() time.Duration

func (s strategy) NextBackoff() time.Duration { return s() }

// NoRetry is the strategy of a single attempt.
func NoRetry() RetryStrategy { return LinearBackoff(0) }

// LinearBackoff makes the same pause each time.
func LinearBackoff(backoff time.Duration) RetryStrategy {
	return strategy(func() time.Duration { return backoff })
}

// LimitRetry ends the attempts of another strategy after max retries.
//
// The count belongs to the returned value: a value that is used again goes on where it was.
func LimitRetry(s RetryStrategy, max int) RetryStrategy {
	var retries atomic.Int64
	return strategy(func() time.Duration {
		if retries.Add(1) > int64(max) {
			return 0
		}
		return s.NextBackoff()
	})
}

// longestDoubling is the number of the attempt after which pauses no longer grow.
const longestDoubling = 25

// ExponentialBackoff doubles the pause each time: 4 ms, 8 ms, 16 ms, and so on up to 2^26 ms.
//
// A pause is never shorter than least, nor longer than most. A most of 0 is no limit. The count belongs to the
// returned value: a value that is used again goes on where it was.
func ExponentialBackoff(least, most time.Duration) RetryStrategy {
	var attempts atomic.Uint64
	return strategy(func() time.Duration {
		pause := max(time.Millisecond<<(min(attempts.Add(1), longestDoubling)+1), least)
		if most != 0 {
			pause = min(pause, most)
		}
		return pause
	})
}

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
		case <-time.After(pause):
		}
		if ctx.Err() != nil { // also where both came at once
			return errors.Join(err, ctx.Err())
		}
	}
}
