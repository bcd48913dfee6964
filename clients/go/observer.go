package slock

import "time"

// Observer hears of waits, holds and losses, by the label of the request. Its methods are called from the
// goroutines of this package and of its callers, several at once: they must not block.
type Observer interface {
	// Waited is called when an acquisition ended, with how long it took. The outcome is "granted", "refused"
	// (by TryLock), "timed out", "cancelled", or the name of an error, such as "Deadlock".
	Waited(label string, duration time.Duration, outcome string)
	// Held is called when a hold ended, released or lost, with how long it lasted.
	Held(label string, duration time.Duration)
	// Lost is called when a hold is lost.
	Lost(label string, reason Reason)
}

type noObserver struct{}

func (noObserver) Waited(string, time.Duration, string) {}
func (noObserver) Held(string, time.Duration)           {}
func (noObserver) Lost(string, Reason)                  {}
