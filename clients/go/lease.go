package slock

import (
	"cmp"
	"slices"
	"time"
)

// This file has what is known of a hold: its mode and fence, until when it is valid, and why it was lost. It sends
// nothing and reads no clock: the time is passed in.

type leaseState int

const (
	live  leaseState = iota
	ended            // released, or handed over
	lost
)

// drift is what of a ttl does not count for the validity.
type drift struct {
	factor float64
	fixed  time.Duration
}

// oneServer: a clock that is slewed runs up to 500 ppm fast, on both sides, and the server counts in milliseconds.
var oneServer = drift{factor: 0.001, fixed: time.Millisecond}

func (d drift) counted(ttl time.Duration) time.Duration {
	return ttl - time.Duration(float64(ttl)*d.factor) - d.fixed
}

var errEnded error = &failure{kind: ErrNotHeld, text: "the hold has ended"}

type lease struct {
	state    leaseState
	mode     Mode
	fence    int64 // 0 for a quorum
	doubt    bool  // something that is not known may be left on the server
	changing bool  // a change of mode is open: the server may have done it already
	drift    drift
	ttl      time.Duration
	until    instant // valid until then
	renews   bool
	renewAt  instant // when the next renewal is due
	leaseEnd instant // 0: none
	failed   error   // what the last renewal said, or that it has no answer, unless one has succeeded since
	reason   Reason  // of a loss
}

// renewal is one that was sent.
type renewal struct {
	fence int64
	ttl   time.Duration
	sent  instant
}

// look ends a live hold whose time is over.
func (l *lease) look(at instant) {
	if l.state == live && l.leaseEnd != 0 && at >= l.leaseEnd {
		l.lose(LeaseEnded)
	} else if l.state == live && at >= l.until {
		l.lose(Expired)
	}
}

func (l *lease) lose(reason Reason) { l.state, l.reason = lost, reason }

// problem is nil while the hold is live, and a *LostError when it is lost.
func (l *lease) problem(keys []string) error {
	switch l.state {
	case live:
		return nil
	case ended:
		return errEnded
	}
	loss := &LostError{Keys: slices.Clone(keys), Reason: l.reason}
	if l.reason == Expired {
		loss.Cause = l.failed
	}
	return loss
}

// lengthen notes that the server has set a deadline, a ttl after a command that was sent then, or has a later one.
func (l *lease) lengthen(sent instant, ttl time.Duration) {
	l.failed = nil
	l.until = max(l.until, sent.add(l.drift.counted(ttl)))
	l.renewAt = l.until.add(l.ttl/3 - l.drift.counted(l.ttl)) // a third of the ttl after the last
}

// granted notes a new mode and its fence.
func (l *lease) granted(mode Mode, fence int64, sent instant, ttl time.Duration) {
	l.mode, l.fence, l.changing = mode, fence, false
	l.lengthen(sent, ttl)
}

// renewed notes the answer to a renewal, and tells whether it was one that counts. An answer counts for the fence
// that it names. While a change of mode is open, a 0 says only that the change may be done.
func (l *lease) renewed(at instant, r renewal, held bool, err error) bool {
	if l.look(at); l.state != live || r.fence != l.fence {
		return false
	}
	switch {
	case err == nil && held:
		l.lengthen(r.sent, r.ttl)
	case err == nil && l.changing:
		l.failed = nil
	case err == nil || hasCode(err, "WRONGTYPE"):
		l.lose(Gone)
	default:
		l.failed = named(err)
		l.renewAt = at.add(r.ttl / 10)
	}
	return true
}

// due is when the watchdog has to look at the hold: it is over, or to be renewed.
func (l *lease) due() instant {
	due := l.until
	if l.leaseEnd != 0 {
		due = min(due, l.leaseEnd)
	}
	if l.renews {
		due = min(due, l.renewAt)
	}
	return due
}

// begin is the renewal that is to be sent now, if one is due. If no answer comes for a third of the ttl, another
// one is sent, over another connection.
func (l *lease) begin(at instant) (renewal, bool) {
	if l.look(at); l.state != live || !l.renews || at < l.renewAt {
		return renewal{}, false
	}
	l.renewAt, l.failed = at.add(l.ttl/3), cmp.Or(l.failed, errNoAnswer)
	return renewal{fence: l.fence, ttl: l.ttl, sent: at}, true
}
