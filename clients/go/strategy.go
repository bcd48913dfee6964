package slock

import (
	"context"
	"math/rand/v2"
	"time"
)

// This file has the pauses between attempts.

// Strategy says how a Quorum tries again. Make one by NoPolling, ConstantPause or ExponentialPause.
type Strategy struct {
	first, most time.Duration
	attempts    int // further attempts; negative: no limit
}

// NoPolling tries once.
func NoPolling() Strategy { return Strategy{} }

// ConstantPause tries again after each pause.
func ConstantPause(pause time.Duration) Strategy {
	return Strategy{first: pause, most: pause, attempts: -1}
}

// ExponentialPause tries again after pauses that begin with first and double up to most. Each is shortened by a random
// part of up to a half, so that contenders do not try in step.
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

var (
	// afterErrors has the pauses after errors that pass.
	afterErrors = ExponentialPause(10*time.Millisecond, time.Second)
	// polling has the pauses of a request that cannot wait by a message.
	polling = ExponentialPause(20*time.Millisecond, time.Second)
)

// sleep waits for a pause. It returns false as soon as one of the contexts is over.
func sleep(ctx, closing context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-closing.Done():
	}
	return false
}

// earlier is the earlier of two times, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if b.IsZero() || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}
