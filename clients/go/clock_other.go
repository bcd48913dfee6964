//go:build !linux

package slock

func sleepingClock() instant { return monotonic() }
