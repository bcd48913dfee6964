package slock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// This file has the pauses after which a request is asked again, and the one wait for whatever comes first.

// Strategy says how polling asks again. Make one by NoPolling, ConstantPause or ExponentialPause.
type Strategy struct {
	first, most time.Duration
	attempts    int // further attempts; negative: no limit
}

// NoPolling asks once.
func NoPolling() Strategy { return Strategy{} }

// ConstantPause asks again after each pause.
func ConstantPause(pause time.Duration) Strategy {
	return Strategy{first: pause, most: pause, attempts: -1}
}

// ExponentialPause asks again after pauses that begin with first and double up to most. Each is shortened by
// a random part of up to a half, so that contenders do not ask in step.
func ExponentialPause(first, most time.Duration) Strategy {
	return Strategy{first: first, most: max(first, most), attempts: -1}
}

// Limit returns the strategy with at most n further attempts after the first.
func (s Strategy) Limit(n int) Strategy {
	if s.attempts < 0 || n < s.attempts {
		s.attempts = max(n, 0)
	}
	return s
}

// pause is the pause before the further attempt n, counted from 0, or false if there is none.
func (s Strategy) pause(n int) (time.Duration, bool) {
	if s.attempts >= 0 && n >= s.attempts {
		return 0, false
	}
	if s.first == s.most {
		return s.first, true
	}
	pause := s.first
	for ; n > 0 && pause < s.most; n-- {
		pause = min(2*pause, s.most)
	}
	return pause/2 + rand.N(pause/2+1), true
}

// afterErrors has the pauses after temporary errors.
var afterErrors = ExponentialPause(10*time.Millisecond, time.Second)

// sleep waits for a pause. It is false when one of the contexts was over before.
func sleep(ctx, ending context.Context, pause time.Duration) bool {
	_, err := await[struct{}](ctx, nil, time.Now().Add(pause), nil, ending.Done())
	return errors.Is(err, errNoAnswer)
}

// await waits for what comes. It ends with errNoAnswer at the time, if that is not zero, with errAskAgain when the
// channel is gone that it would come by, and with errLeft when the client ends the wait. A nil channel never ends it.
func await[T any](
	ctx context.Context, comes <-chan T, until time.Time, gone, ending <-chan struct{},
) (came T, err error) {
	select {
	case came = <-comes: // it needs no timer
		return came, nil
	default:
	}
	var over <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case came = <-comes:
	case <-over:
		err = errNoAnswer
	case <-gone:
		err = errAskAgain
	case <-ending:
		err = errLeft
	case <-ctx.Done():
		err = errLeft
	}
	return came, err
}
