//go:build !linux

package slock

func now() instant { return monotonic() }
