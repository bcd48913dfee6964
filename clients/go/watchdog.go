// SPDX-License-Identifier: MIT OR Apache-2.0

package slock

import "time"

// This file has holds looked after: each has a timer that renews it when that is due, and ends it when its time is over.

const (
	// longestTimer is how long a timer runs at most: timers stop while the machine sleeps, and the hold may be over by
	// the time it wakes.
	longestTimer = time.Second
	// longHold is after which time a hold without MaxHold is worth a warning.
	longHold = time.Hour
)

// watch looks after a new hold.
func (l *Locks) watch(h *Hold) {
	h.mu.Lock()
	l.holds.Store(h, nil)
	h.setTimer(h.lease.granted)
	h.mu.Unlock()
	l.servers[0].follow(h.owner.keys[0])
}

// confirm extends all holds: the primary may be another one, which has not all of them.
func (l *Locks) confirm() {
	for hold := range l.holds.Range {
		h, ttl := hold.(*Hold), time.Millisecond // lengthens nothing, but finds out whether the hold is there
		if h.isRenewed() {
			ttl = h.snapshot().ttl
		}
		l.servers[0].follow(h.owner.keys[0])
		go func() { _ = h.confirm(h.values, ttl) }()
	}
}

// setTimer has the hold looked at when that is due next. It is locked.
func (h *Hold) setTimer(at time.Duration) {
	due := min(h.lease.until, h.lease.last)
	if h.isRenewed() {
		due = min(due, h.lease.renewAt)
	}
	pause := min(due-at, longestTimer)
	if h.timer == nil {
		h.timer = time.AfterFunc(pause, h.look)
	} else {
		h.timer.Reset(pause)
	}
}

func (h *Hold) isRenewed() bool { return !h.settings.noRenewal && h.locks.closing.Err() == nil }

// look ends a hold whose time is over, and renews it if that is due.
func (h *Hold) look() {
	at, isDue, isLong := now(), false, false
	_ = h.updateAt(at, func(l *lease) {
		isDue, isLong = h.isRenewed() && at >= l.renewAt, at >= l.warnAt
		if isDue {
			l.renewAt = at + l.ttl/10 // unless this one succeeds
		}
		if isLong {
			l.warnAt = l.last
		}
	})
	if isLong {
		h.locks.report.warn(h.values, "a lock has been held for an hour and has no maximum hold time", h.label(), h.owner.names, nil)
	}
	if !isDue {
		return
	}
	select {
	case h.extending <- struct{}{}:
		defer func() { <-h.extending }()
		// A reply may be waited for in vain, so it is not waited for long.
		ttl := h.snapshot().ttl
		err := h.extend(h.values, time.Now().Add(min(ttl/4, h.Remaining())), ttl)
		if err != nil && h.Check() == nil {
			tell(h.locks.report, h.locks.report.hooks.RenewalFailed, h.values, h.label(), explain(err, h.owner.names))
		}
	default: // another extension is on its way
	}
}
