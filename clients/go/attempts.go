// SPDX-License-Identifier: MIT OR Apache-2.0

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
	// errTimedOut means that others have the lock, and that the wait is over.
	errTimedOut = errors.New("timed out")
)

const (
	// forever is how long a wait without a limit lasts.
	forever = 100 * 365 * 24 * time.Hour
	// late is how long after the end of its time an attempt ends only if the process stood still: it may have missed a reply.
	late = sharedStep + 100*time.Millisecond
	// mostMore is how much more time such a process gets at most.
	mostMore = 3 * time.Second
)

// attempts are those of one call.
type attempts struct {
	ctx      context.Context
	closing  context.Context // ends them too
	names    []string
	began    time.Time
	limit    time.Time // until when the server has to reply
	deadline time.Time // of the wait
	once     bool      // a refusal ends them
	polling  Strategy

	isReached bool  // the server has replied
	last      error // the last error that passes; nil after a reply without one
	failures  int   // such errors, one after the other
	excused   bool  // there was more time, because the process stood still
	polls     int
}

// newAttempts are those of a call about the names, which goes on for a time while no reply comes.
func newAttempts(ctx, closing context.Context, names []string, retryFor time.Duration) attempts {
	began := time.Now()
	return attempts{
		ctx: ctx, closing: closing, names: names, began: began, limit: began.Add(retryFor), deadline: began.Add(forever),
		polling: polling,
	}
}

// wait sets how long a refused request is tried again. A wait below a millisecond, the unit of the server, is none. The
// deadline of ctx ends its wait too.
func (a *attempts) wait(wait time.Duration, try bool) {
	if a.once = try || wait < time.Millisecond; !a.once {
		a.deadline = a.began.Add(wait)
	}
	if at, ok := a.ctx.Deadline(); ok {
		a.deadline = earlier(a.deadline, at)
	}
}

// reached notes that the server has replied to a request, which may wait for so long until it replies again.
func (a *attempts) reached(retryWaitFor time.Duration) {
	if a.isReached = true; !a.once {
		a.limit = time.Now().Add(retryWaitFor)
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
		case err == errAgain, a.ctx.Err() != nil: // over says what ended it
			continue
		case err == errPoll:
			pause, more = a.polling(a.polls)
			a.polls++
		case passes(err):
			a.last = telling(a.last, err)
			if code(err) == "" {
				a.excuse()
			}
			pause, more = afterErrors(a.failures)
			a.failures++
		default:
			return explain(err, a.names)
		}
		if !more {
			return errTimedOut
		}
		sleep(a.ctx, a.closing, min(pause, time.Until(earlier(a.limit, a.deadline))))
	}
}

// excuse gives a process that stood still, and so may have missed a reply, the time for one more, once: as much as it came
// late.
func (a *attempts) excuse() {
	now := time.Now()
	if by := now.Sub(earlier(a.limit, a.deadline.Add(lateReply))); by > late && !a.excused {
		a.excused = true
		a.limit = now.Add(min(max(by, lateReply), mostMore))
		a.deadline = later(a.deadline, a.limit)
	}
}

// over is the error of attempts that have to end without an answer, or nil.
func (a *attempts) over() error {
	now := time.Now()
	isOver := a.ctx.Err() != nil || !now.Before(a.deadline)
	switch {
	case a.closing.Err() != nil:
		return closed()
	case errors.Is(a.ctx.Err(), context.Canceled):
		return a.ctx.Err()
	case isOver && a.last == nil && a.isReached:
		return errTimedOut
	case isOver || a.last != nil && !now.Before(a.limit):
		return a.unanswered()
	}
	return nil
}

// unanswered is the error of attempts that had no reply, or only replies after which they went on.
func (a *attempts) unanswered() error {
	what := "no reply from the server"
	if code(a.last) != "" {
		what = "only errors from the server"
	}
	return failure(ErrNoAnswer, a.names, what+" within "+a.took(), explain(a.last, a.names), overErr(a.ctx))
}

func (a *attempts) took() string { return time.Since(a.began).Round(time.Millisecond).String() }

// closed is the error of a call after Close.
func closed() error { return failure(ErrClosed, nil, "the Locks has been closed") }

// overErr is the error of a context. A context learns of its deadline a little later than who reads the clock.
func overErr(ctx context.Context) error {
	if at, ok := ctx.Deadline(); ok && !time.Now().Before(at) {
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

// outliving is ctx for a release, which ends the contexts of the hold: it does not end with a hold that is released. If ctx
// is over already, there is this much time left.
func outliving(ctx context.Context, left time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Err() != nil {
		return context.WithTimeout(context.WithoutCancel(ctx), left)
	}
	until, ok := ctx.Deadline()
	if !ok {
		until = time.Now().Add(forever)
	}
	free, end := context.WithDeadline(context.WithoutCancel(ctx), until)
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), ErrNotHeld) {
			end()
		}
	})
	return free, func() {
		stop()
		end()
	}
}

// earlier is the earlier of two times.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// later is the later of two times.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
