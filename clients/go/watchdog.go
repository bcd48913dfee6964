package slock

import "time"

// This file has holds looked after by the timers of Go's runtime: each is renewed when that is due, and ends when its
// time is over. Nothing waits for answers, so there is no goroutine for it. What is due at once goes in one pipeline.

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
	if due {
		h.keeper.renew(h, r)
	}
}

// renewed notes the answer to a renewal.
func (h *Hold) renewed(r renewal, held bool, err error) {
	counts := false
	_ = h.update(func(l *lease) { counts = l.renewed(now(), r, held, err) })
	if counts && err != nil {
		h.report.renewalFailed(h.label, named(err))
	}
}

// renew sends a renewal of a hold on one server, unless the Locks is closed.
func (l *Locks) renew(h *Hold, r renewal) {
	if l.ending.Err() != nil {
		return
	}
	limit := time.Now().Add(r.ttl)
	n, err := l.servers.find(l.closed, limit, h.owner.keys[0])
	if err != nil {
		h.renewed(r, false, err)
		return
	}
	c := newCall(limit, h.owner.extend(r.ttl, r.fence))
	c.answered = func() {
		held, err := c.commands[0].Int64()
		l.servers.note(err)
		h.renewed(r, held == 1, err)
	}
	n.renewals.start(c)
}
