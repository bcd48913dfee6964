package slock

import (
	"slices"
	"time"
)

// This file has what is known of a hold: its mode and fence, until when it is valid, and why it was lost. It sends
// nothing and reads no clock: the time is passed in.

type leaseState int

const (
	live     leaseState = iota
	finished            // released, or detached
	lost
)

// counted is the part of a ttl that counts for the validity: a clock that is slewed runs up to 500 ppm fast, on both
// sides, and the server counts in milliseconds.
func counted(ttl time.Duration) time.Duration { return ttl - ttl/1000 - time.Millisecond }

type lease struct {
	state    leaseState
	mode     Mode
	fence    int64 // 0 for a quorum
	ttl      time.Duration
	counted  func(ttl time.Duration) time.Duration
	granted  instant // when it was granted, at the earliest
	until    instant // valid until then
	maxEnd   instant // renewals cannot exceed it; 0: none
	renews   bool
	renewAt  instant // when the next renewal is due
	isOpen   bool    // the server may have changed the mode and the fence: renewals name no fence
	reason   Reason  // of a loss
	failed   error   // what the last renewal said, unless one has succeeded since
	isClosed bool    // the Locks has been closed
	isLong   bool    // it was warned of that nothing limits the hold
}

// look ends a live hold whose time is over.
func (l *lease) look(at instant) {
	switch {
	case l.state != live:
	case l.maxEnd != 0 && at >= l.maxEnd:
		l.lose(MaxHoldOver)
	case at >= l.until && l.isClosed:
		l.lose(LocksClosed)
	case at >= l.until:
		l.lose(Expired)
	}
}

func (l *lease) lose(reason Reason) { l.state, l.reason = lost, reason }

// problem is nil while the hold is live, and a *LostError when it was lost.
func (l *lease) problem(keys []string, mode Mode) error {
	switch l.state {
	case live:
		return nil
	case finished:
		return &notHeldError{keys, mode}
	}
	loss := &LostError{Keys: slices.Clone(keys), Reason: l.reason}
	if l.reason == Expired {
		loss.Cause = l.failed
	}
	return loss
}

// grant notes that the server gave the hold in a mode, by a command that was sent then.
func (l *lease) grant(mode Mode, got grant) {
	l.mode, l.fence, l.isOpen = mode, got.fence, false
	l.lengthen(got.from, l.ttl)
}

// lengthen notes that the server lets the hold live for a ttl, or longer, from a moment on.
func (l *lease) lengthen(from instant, ttl time.Duration) {
	l.until = max(l.until, from.add(l.counted(ttl)))
	l.renewAt = from.add(l.ttl / 3)
	l.failed = nil
}

// extension is a command that prolongs a hold.
type extension struct {
	ttl      time.Duration
	fence    int64 // 0: whatever the token holds
	replicas int   // that have to acknowledge it within the time
	within   time.Duration
}

// extension prolongs the hold to the ttl.
func (l *lease) extension(ttl time.Duration) extension {
	if l.isOpen {
		return extension{ttl: ttl}
	}
	return extension{ttl: ttl, fence: l.fence}
}

// extended notes the reply to an extension, 1 or 0, or the error.
func (l *lease) extended(at instant, e extension, got answer, err error) {
	l.renewAt = at.add(l.ttl / 10)
	switch {
	case err != nil:
		l.failed = err
	case got.number > 0:
		l.ttl = max(l.ttl, e.ttl)
		l.lengthen(got.sent, e.ttl)
	case e.fence == l.extension(0).fence: // else it was about another fence
		l.lose(Gone)
	}
	l.look(at)
}

// due is when the lease has to be looked at next.
func (l *lease) due() instant {
	due := l.until
	if l.maxEnd != 0 {
		due = min(due, l.maxEnd)
	}
	if l.renews && !l.isClosed {
		due = min(due, l.renewAt)
	}
	return due
}
