// SPDX-License-Identifier: MIT OR Apache-2.0

package slock

import (
	"sync/atomic"
	"time"
)

// This file has the clock: durations since a moment in the past, on a clock that goes on while the machine sleeps, where
// the system has one.

var (
	start = time.Now()
	// asleep is by how much the clock was ahead of the standard library's when it was last read.
	asleep atomic.Int64
)

// If this goroutine does not run between the two readings, sending is too early, which makes holds end sooner.
func init() { asleep.Store(int64(sleepingClock() - monotonic())) }

// now is the clock. It is read where the end of a hold is decided.
func now() time.Duration {
	before := monotonic()
	if before < 0 {
		return before + forever // see instant
	}
	at := sleepingClock()
	if after := monotonic(); after-before < time.Millisecond { // else this goroutine did not run for a while
		asleep.Store(int64(at - after))
	}
	return at
}

// sending is now for the moment before a command is sent. It does not ask the system, and is too early if the machine
// has just slept: that makes a hold end sooner.
func sending() time.Duration { return instant(time.Now()) }

// instant is sending for a time that has just been read. The clock of testing/synctest begins in the year 2000, and does
// not go on with that of the system.
func instant(at time.Time) time.Duration {
	since := at.Sub(start)
	if since < 0 {
		return since + forever
	}
	return since + time.Duration(asleep.Load())
}

// monotonic is the clock of the standard library.
func monotonic() time.Duration { return time.Since(start) }
