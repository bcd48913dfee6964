//go:build !linux

package slock

import "time"

func sleepingClock() time.Duration { return monotonic() }
