package slock

import (
	"context"
	"time"
)

// This file has holds looked after by the timers of Go's runtime: each is renewed when that is due, and ends when its
// time is over. What is due at once goes in one pipeline.

// mostSleep is the longest that a timer runs: it stops while the machine sleeps, and the hold may be over when it goes
// on.
const mostSleep = time.Second

// setTimer has the hold looked at when that is due. The hold is locked.
func (h *Hold) setTimer() {
	sleep := min(h.lease.due().until(), mostSleep)
	if h.timer == nil {
		h.timer = time.AfterFunc(sleep, h.look)
	} else {
		h.timer.Reset(sleep)
	}
}

// look ends a hold whose time is over, and renews it if that is due.
func (h *Hold) look() {
	var r renewal
	due := false
	_ = h.update(func(l *lease) { r, due = l.begin(now()) })
	if !due || h.base.ending.Err() != nil {
		return
	}
	answer, err := h.keeper.extend(context.Background(), time.Now().Add(r.ttl), h.owner, r)
	counts := false
	_ = h.update(func(l *lease) { counts = l.renewed(now(), r, answer == 1, err) })
	if counts && err != nil {
		h.base.report.renewalFailed(h.request.label(), named(err))
	}
}
