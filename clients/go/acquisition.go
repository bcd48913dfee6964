package slock

import (
	"context"
	"errors"
	"time"
)

// This file has one use of a request, or one other call that asks the server, from its first command to an answer or an
// error: its limits of time, its pauses, and what each answer leads to. It knows nothing of commands.

const (
	// lateAnswer is how long after the end of its time a call still takes the answer of the server.
	lateAnswer = 700 * time.Millisecond
	// earlyAnswer is how long before the end of a wait the server may end it, because it counts in milliseconds.
	earlyAnswer = 2 * time.Millisecond
	// longestWait is the longest that the server takes.
	longestWait = 365 * 24 * time.Hour
)

// acquisition has the limits of time, and what is known of the server so far.
type acquisition struct {
	by       *base
	what     string // that is asked for, for people to read
	keys     []string
	ctx      context.Context // the caller's
	ending   context.Context // done when it has to end because the Locks is closed
	try      bool            // a refusal is no timeout
	once     bool            // ask once, without a wait
	deadline time.Time       // of the wait; zero: none
	byCaller bool            // whether that is the deadline of the caller's context
	limit    time.Time       // of a request that asks once, or has no answer yet

	contact  time.Time // when the server last answered; zero: it has not
	last     error     // after which it was asked again; nil after another answer
	failures int       // temporary errors one after the other
}

func (b *base) acquisition(ctx context.Context, keys []string, wanted *requestSettings, try bool) acquisition {
	began := time.Now()
	a := acquisition{by: b, what: "lock", keys: keys, ctx: ctx, ending: b.ending, limit: began.Add(b.settings.retryFor)}
	a.try, a.once = try, try || wanted.hasWait && wanted.wait == 0
	a.deadline, a.byCaller = ctx.Deadline()
	if end := began.Add(wanted.wait); wanted.hasWait && !try && (!a.byCaller || end.Before(a.deadline)) {
		a.deadline, a.byCaller = end, false
	}
	return a
}

// try sends commands once, and waits for the answer until the limit.
type try func(ctx context.Context, limit time.Time) (int64, error)

// repeat tries until there is an answer, ctx is over, or the time has ended. No try takes longer than RetryFor.
func (b *base) repeat(ctx context.Context, what string, o owner, end time.Time, send try) (r reply, err error) {
	a := acquisition{by: b, what: what, keys: o.keys, ctx: ctx, ending: b.closed, once: true, limit: end}
	a.deadline, a.byCaller = ctx.Deadline()
	err = a.run(func() (err error) {
		r.sent = now()
		r.number, err = send(ctx, a.answerBy())
		r.late = r.late || mayRunLater(err)
		return err
	})
	return r, err
}

// run asks again and again, as long as that makes sense.
func (a *acquisition) run(ask func() error) error {
	a.by.background.count.Add(1)
	defer a.by.background.count.Add(-1)
	for polls := 0; ; {
		if a.ctx.Err() != nil {
			return a.left()
		}
		err := ask()
		if err == nil {
			return nil
		}
		var nodes *QuorumError
		isMissed := errors.As(err, &nodes)
		if isMissed && (a.last == nil || a.ctx.Err() == nil || nodes.isRefusal()) {
			a.last = nodes // one that was cut short may tell less than the one before
		}
		isTaken := errors.Is(err, errTaken) || isMissed && nodes.isRefusal()
		left, pause, more := time.Until(a.end()), time.Duration(0), false
		switch {
		case a.try && isTaken:
			return errTaken
		case isTaken || isMissed:
			// Else the wait has run out on the server, or was withdrawn there.
			if !isMissed {
				a.last = nil
			}
			if isTaken {
				a.contact = time.Now() // a majority has answered
			}
			if a.by.settings.waiting == byPolling && !a.once && (!isMissed || nodes.mayHelp()) {
				pause, more = a.by.settings.strategy.pause(polls)
				more = more && (isTaken || left >= pause) && (a.deadline.IsZero() || time.Until(a.deadline) >= pause)
				polls++
			}
		case isTemporary(err):
			a.note(err)
			pause, _ = afterErrors.pause(a.failures)
			pause, more = min(pause, left), left > 0
			a.failures++
		case errors.Is(err, errLeft):
			return a.left()
		default:
			return named(err)
		}
		if !more {
			return a.over(pause)
		}
		if !sleep(a.ctx, a.ending, pause) {
			return a.left()
		}
	}
}

// note keeps an error after which the request is asked again. One that says only that nothing came tells the least.
func (a *acquisition) note(err error) {
	if isTemporary(err) && !errors.Is(err, errAskAgain) && (a.last == nil || !isSilence(err)) {
		a.last = err
	}
}

// end is until when the request is asked again while no answer comes.
func (a *acquisition) end() time.Time { return earlier(a.deadline, a.outageEnd()) }

// outageEnd is until when an outage is survived.
func (a *acquisition) outageEnd() time.Time {
	if a.once || a.contact.IsZero() {
		return a.limit
	}
	return a.contact.Add(a.by.settings.retryWaitFor)
}

// earlier is the earlier of two times, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if b.IsZero() || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}

// answerBy is until when an answer is waited for: for no longer than RetryFor.
func (a *acquisition) answerBy() time.Time { return earlier(a.end(), a.by.retryEnd()).Add(lateAnswer) }

// waitBy is until when the end of a wait is waited for; zero: without end.
func (a *acquisition) waitBy() time.Time {
	if a.deadline.IsZero() {
		return a.deadline
	}
	return a.deadline.Add(lateAnswer)
}

// over is the error when the wait is over, or would be after the pause, with the last error before.
func (a *acquisition) over(pause time.Duration) error {
	kind, cause := ErrTimedOut, a.last
	if nodes, ok := a.last.(*QuorumError); ok && !nodes.isRefusal() {
		kind = ErrQuorumMissed
	}
	// Somebody may also have withdrawn the request before the end of its wait.
	if a.byCaller && time.Until(a.deadline) < max(earlyAnswer, pause) {
		cause = errors.Join(context.DeadlineExceeded, a.last)
	}
	return about(kind, a.what, a.keys, cause)
}

// left is the error of a wait that the client ended.
func (a *acquisition) left() error {
	err, cause := a.ctx.Err(), context.Cause(a.ctx)
	switch {
	case err == nil:
		return about(ErrClosed, a.what, a.keys, a.last)
	case errors.Is(err, context.DeadlineExceeded):
		if a.last == nil && a.contact.IsZero() {
			a.last = errNoAnswer
		}
		return a.over(0)
	case !errors.Is(cause, err):
		return errors.Join(err, cause)
	}
	return err
}
