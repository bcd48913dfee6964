package slock

import "time"

// instant is a moment on a clock that goes on while the machine sleeps, where the system has one. It cannot be
// compared with a time.Time.
type instant int64

func (i instant) add(d time.Duration) instant { return i + instant(d) }

func (i instant) sub(other instant) time.Duration { return time.Duration(i - other) }

// until is how long it is from now to the instant.
func (i instant) until() time.Duration { return i.sub(now()) }

// time is the instant as the standard library counts. It is right as long as the machine does not sleep.
func (i instant) time() time.Time { return time.Now().Add(i.until()) }

var start = time.Now()

// monotonic is the clock of the standard library.
func monotonic() instant { return instant(time.Since(start)) }
