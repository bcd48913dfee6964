package slock

import (
	"sync/atomic"
	"time"
)

// instant is a moment on a clock that goes on while the machine sleeps, where the system has one. It cannot be
// compared with a time.Time.
type instant int64

func (i instant) add(d time.Duration) instant { return i + instant(d) }

func (i instant) sub(other instant) time.Duration { return time.Duration(i - other) }

// until is how long it is from now to the instant.
func (i instant) until() time.Duration { return i.sub(now()) }

// now is the clock. It is read where the end of a hold is decided.
func now() instant {
	at := sleepingClock()
	asleep.Store(int64(at - monotonic()))
	return at
}

// sending is now for the moment before a command is sent. It does not ask the system, and is too early if the machine
// has just slept: that makes a hold end sooner.
func sending() instant { return monotonic() + instant(asleep.Load()) }

// asleep is by how much the clock was ahead of the standard library's when it was last read.
var asleep atomic.Int64

func init() { now() }

var start = time.Now()

// monotonic is the clock of the standard library.
func monotonic() instant { return instant(time.Since(start)) }

// earlier is the earlier of two times, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if b.IsZero() || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}
