package slock

import (
	"context"
	"sync"
	"time"
)

// This file has holds looked after: each has a timer that renews it when that is due, and ends it when its time is over.

const (
	// sleepCheck is how often it is checked whether the machine has slept, for which timers stop.
	sleepCheck = time.Second
	// longHold is after which time a hold without MaxHold is worth a warning.
	longHold = time.Hour
)

// watchdog knows the holds of one Locks or Quorum.
type watchdog struct {
	report *reporter
	first  func(key string) // called with a key of the hold when the first one begins

	mu       sync.Mutex
	holds    map[*Hold]struct{}
	isClosed bool
	check    *time.Timer // of sleepCheck, while there are holds
	slept    instant     // by how much the clock was ahead of the timers' at the last check
}

func newWatchdog(report *reporter, first func(key string)) *watchdog {
	return &watchdog{report: report, first: first, holds: map[*Hold]struct{}{}}
}

func (w *watchdog) add(h *Hold) {
	w.mu.Lock()
	w.holds[h] = struct{}{}
	isFirst := len(w.holds) == 1
	if isFirst && w.check == nil {
		w.slept = now() - monotonic()
		w.check = time.AfterFunc(sleepCheck, w.checkSleep)
	}
	h.lease.isClosed = w.isClosed
	w.mu.Unlock()
	if h.lease.renews {
		h.mu.Lock()
		h.watch()
		h.mu.Unlock()
	}
	if isFirst {
		w.first(h.owner.keys[0])
	}
}

func (w *watchdog) remove(h *Hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.holds, h)
}

// all are the holds of now.
func (w *watchdog) all() []*Hold {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]*Hold, 0, len(w.holds))
	for h := range w.holds {
		all = append(all, h)
	}
	return all
}

// checkSleep looks at all holds if the machine has slept.
func (w *watchdog) checkSleep() {
	w.mu.Lock()
	slept := now() - monotonic()
	hasSlept := slept.sub(w.slept) > sleepCheck/10
	w.slept = slept
	if len(w.holds) == 0 {
		w.check = nil
	} else {
		w.check.Reset(sleepCheck)
	}
	w.mu.Unlock()
	if hasSlept {
		for _, h := range w.all() {
			_ = h.Check()
		}
	}
}

// confirmAll extends all holds: the primary may be another one, which has not all of them.
func (w *watchdog) confirmAll() {
	for _, h := range w.all() {
		go func() { _ = h.Extend(context.WithoutCancel(h.values), h.settings.ttl) }()
	}
}

// close ends all renewals.
func (w *watchdog) close() {
	w.mu.Lock()
	w.isClosed = true
	w.mu.Unlock()
	for _, h := range w.all() {
		_ = h.update(func(l *lease) { l.isClosed = true })
	}
}

// watch has the timer of the hold run, so that its end is noticed. The hold is locked.
func (h *Hold) watch() {
	if h.timer == nil && h.lease.state == live {
		h.timer = time.AfterFunc(h.lease.due().until(), h.look)
	}
}

// look ends a hold whose time is over, and renews it if that is due.
func (h *Hold) look() {
	isDue, isLong := false, false
	held := time.Duration(0)
	_ = h.update(func(l *lease) {
		isDue = l.renews && !l.isClosed && now() >= l.renewAt
		held = now().sub(l.granted)
		isLong = isDue && held > longHold && !l.isLong && l.maxEnd == 0
		l.isLong = l.isLong || isLong
	})
	if isLong {
		h.report.heldLong(h.values, h.label(), h.owner.names, held)
	}
	if isDue {
		h.renew()
	}
}

// renew sends one extension, unless one is on its way. A reply may be waited for in vain, so it is not waited for long.
func (h *Hold) renew() {
	if !h.extending.TryLock() {
		return
	}
	defer h.extending.Unlock()
	ttl := h.snapshot().ttl
	err := h.extend(context.WithoutCancel(h.values), time.Now().Add(min(ttl/4, h.Remaining())), ttl)
	if err != nil && h.Check() == nil {
		h.report.renewalFailed(h.values, h.label(), h.owner.names, explain(err))
	}
}
