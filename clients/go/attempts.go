package slock

import (
	"context"
	"errors"
	"time"
)

// This file has the one rule of how long and how often something is tried: until it succeeds, until an error comes that
// stays, or until its time is over.

var (
	// errAgain means that the request has to be sent again at once.
	errAgain = errors.New("send again")
	// errPoll means that the lock was refused, and that the request cannot wait by a message.
	errPoll = errors.New("poll")
	// errLeft means that the caller's context was over.
	errLeft = errors.New("left")
	// errSilent is the last error of a call to a server that says nothing.
	errSilent = errors.New("the connection is silent")
)

// attempts are those of one call.
type attempts struct {
	ctx      context.Context
	closing  context.Context // ends them too
	settings *settings
	names    []string
	retryFor time.Duration
	once     bool // a refusal ends them
	polling  Strategy
	// failed is the error if they end, because others have the lock or without a reply; nil: unanswered.
	failed func(isTimedOut bool) error

	began    time.Time
	deadline time.Time // of the wait; zero: none
	contact  time.Time // when the server last replied to a request that waits; zero: never
	last     error     // the last error that passes; nil after a reply without one
	failures int       // such errors, one after the other
	polls    int
}

// newAttempts are those of a call about the names.
func newAttempts(ctx, closing context.Context, s *settings, names []string) attempts {
	return attempts{
		ctx: ctx, closing: closing, settings: s, names: names, retryFor: s.retryFor, polling: polling, began: time.Now(),
	}
}

// wait sets how long a refused request is tried again. The deadline of ctx ends its wait too.
func (a *attempts) wait(wanted *requestSettings, try bool) {
	a.deadline, _ = a.ctx.Deadline()
	if a.once = try || wanted.hasWait && wanted.wait == 0; wanted.hasWait && !a.once {
		a.deadline = earlier(a.began.Add(wanted.wait), a.deadline)
	}
}

// run sends until there is an answer, or until it is over.
func (a *attempts) run(send func() error) error {
	for {
		if err := a.over(); err != nil {
			return err
		}
		err := send()
		pause, more := time.Duration(0), true
		switch {
		case err == nil:
			return nil
		case err == errAgain, err == errLeft: // over says why it was left
			continue
		case err == errPoll:
			pause, more = a.polling(a.polls)
			a.polls++
		case passes(err):
			if a.last == nil || err != errSilent { // which tells less
				a.last = err
			}
			pause, _ = afterErrors(a.failures)
			a.failures++
		default:
			return explain(err)
		}
		if !more {
			return a.fail(a.last == nil)
		}
		sleep(a.ctx, a.closing, min(pause, time.Until(earlier(a.limit(), a.deadline))))
	}
}

// limit is until when the server has to reply.
func (a *attempts) limit() time.Time {
	if a.contact.IsZero() || a.once {
		return a.began.Add(a.retryFor)
	}
	return a.contact.Add(a.settings.retryWaitFor)
}

// over is the error of attempts that have to end without an answer, or nil.
func (a *attempts) over() error {
	isOver := a.ctx.Err() != nil || !a.deadline.IsZero() && !time.Now().Before(a.deadline)
	switch {
	case a.closing.Err() != nil:
		return closed()
	case errors.Is(a.ctx.Err(), context.Canceled):
		return ended(a.ctx)
	case isOver || a.last != nil && !time.Now().Before(a.limit()):
		return a.fail(isOver && a.last == nil && !a.contact.IsZero())
	}
	return nil
}

func (a *attempts) fail(isTimedOut bool) error {
	if a.failed == nil {
		return a.unanswered()
	}
	return a.failed(isTimedOut)
}

// unanswered is the error of attempts that had no reply, or only replies after which they went on.
func (a *attempts) unanswered() error {
	what := "no reply from the server"
	if code(a.last) != "" {
		what = "the server granted nothing"
	}
	text := what + " within " + time.Since(a.began).Round(time.Millisecond).String()
	return failure(ErrNoAnswer, a.names, text, explain(a.last), overErr(a.ctx))
}

// closed is the error of a call after Close.
func closed() error { return failure(ErrClosed, nil, "the Locks has been closed") }

// ended is the error of a call whose context is over.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return errors.Join(err, cause)
}

// overErr is the error of a context. A context learns of its deadline a little later than who reads the clock.
func overErr(ctx context.Context) error {
	if at, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(at) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// sleep waits for a pause, or until one of the contexts is over.
func sleep(ctx, closing context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-closing.Done():
	}
}
