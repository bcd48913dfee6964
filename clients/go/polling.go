package slock

import (
	"context"
	"math/rand/v2"
	"time"
)

// This file has the pauses after which a request is asked again.

// Strategy says how polling asks again. Make one by NoPolling, ConstantPause or ExponentialPause.
type Strategy struct {
	first, most time.Duration
	attempts    int // further attempts; negative: no limit
}

// NoPolling asks once.
func NoPolling() Strategy {
	return Strategy{}
}

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
	return jitter(doubled(s.first, s.most, n)), true
}

func doubled(first, most time.Duration, n int) time.Duration {
	pause := first
	for range n {
		if pause >= most/2 {
			return most
		}
		pause *= 2
	}
	return pause
}

func jitter(pause time.Duration) time.Duration {
	if pause <= 1 {
		return pause
	}
	return pause/2 + rand.N(pause/2)
}

// backoff gives the pauses after temporary errors: 10 ms, doubled up to 1 s, with jitter.
type backoff struct{ n int }

func (b *backoff) next() time.Duration {
	pause := jitter(doubled(10*time.Millisecond, time.Second, b.n))
	b.n++
	return pause
}

func (b *backoff) reset() { b.n = 0 }

// sleep waits for a pause. It is false when one of the contexts was over before.
func sleep(ctx, ending context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-ending.Done():
	}
	return false
}
