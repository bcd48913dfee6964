package slock

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// lateAnswer is how long after the end of its wait a request still takes the answer of the server, which rounds
// the wait up. Then it is given up.
const lateAnswer = 100 * time.Millisecond

// earlyAnswer is how long before the end of a wait the server may end it, because it counts in milliseconds.
const earlyAnswer = 2 * time.Millisecond

// onlyAnswer is how long a request whose wait is zero takes the answer to its one command.
const onlyAnswer = 2 * time.Second

// longestWait is the longest that the server takes.
const longestWait = 365 * 24 * time.Hour

var (
	// errRefused means that the lock is not free, and that the request does not wait.
	errRefused error = &kind{"refused", "refused"}
	// errLeft means that the client ended the wait: its context is over, or the Locks is closed.
	errLeft error = &kind{"left", "left"}
	// errAskAgain means that the request has to be asked again: the listening connection or the hold was
	// lost.
	errAskAgain error = &kind{"ask again", "ask again"}
)

// acquisition is one use of a request, or one upgrade of a hold, from its first command to a grant or an
// error.
type acquisition struct {
	locks *Locks
	owner owner
	ttl   time.Duration
	once  bool // ask once, without a wait
	fresh bool // it asks for a new hold

	unanswered *unanswered // of the hold that is asked for or changed

	// ask makes the command, with further arguments, such as those of the wait.
	ask func(ctx context.Context, rest ...any) command
	// withdraw makes the command that takes away what SLOCK.CANCEL leaves, if there is one.
	withdraw func(ctx context.Context) (command, bool)
	// withdrawn sees the answer of withdraw, when a request was given up, and the error of one of these commands
	// that got no answer, or nil. It may be nil.
	withdrawn func(reply redis.Cmder, lost error)
	// confirm looks at a grant before it is given to the caller. It may be nil.
	confirm func(grant) (grant, error)

	callers  context.Context
	ctx      context.Context // over when the caller's is, or soon after the end of the wait
	deadline time.Time       // of the wait; zero: none
	byCaller bool            // whether that is the deadline of the caller's context

	began   time.Time
	refused bool            // whether the server has refused the request, so that it has to wait
	sent    time.Time       // before the command was sent that was answered last, or that waits
	unknown bool            // whether something may be left on the server
	pending <-chan struct{} // closed when the answer comes of a command that was left alone
	left    redis.Cmder     // that command
	blocked bool            // whether that command waits on a connection of its own
	channel *channel        // where the message of its last NOTIFY comes; nil: none
	pauses  backoff
	last    error // the last error after which it was asked again; nil after another answer
	givenUp bool  // whether it is being taken off the server
}

// grant is what an acquisition gives.
type grant struct {
	fence int64
	until time.Time
}

// run asks until there is a grant or an error. On an error nothing is left on the server, or it is being
// taken away.
func (a *acquisition) run(ctx context.Context) (grant, error) {
	a.locks.background.enter()
	defer a.locks.background.leave()
	if err := a.begin(ctx); err != nil {
		return grant{}, err
	}
	a.callers, a.ctx, a.began = ctx, ctx, time.Now()
	if end, ok := ctx.Deadline(); ok && (a.deadline.IsZero() || end.Before(a.deadline)) {
		a.deadline, a.byCaller = end, true
	} else if !a.deadline.IsZero() {
		late := lateAnswer
		if a.once {
			late = onlyAnswer
		}
		limited, cancel := context.WithDeadline(ctx, a.deadline.Add(late))
		defer cancel()
		a.ctx = limited
	}
	var g grant
	err := a.awaitToken()
	if err == nil {
		g, err = a.attempts()
	}
	if err == nil {
		return g, nil
	}
	if a.unknown {
		a.giveUp()
	}
	switch {
	case errors.Is(err, errLeft):
		err = a.ended(ctx)
	case errors.Is(err, errRefused) && !a.once:
		// Somebody may also have withdrawn the request before the end of its wait.
		a.byCaller = a.byCaller && time.Until(a.deadline) < earlyAnswer
		err = a.over()
	}
	return grant{}, named(err)
}

// awaitToken waits until nothing runs any more that could take away what the token is granted.
func (a *acquisition) awaitToken() error {
	var end time.Time // that of the context
	if a.once {
		end = a.began.Add(onlyAnswer)
	}
	if !a.fresh || a.locks.tokenTasks.wait(a.ctx, a.locks.ending, end, a.owner.token) {
		return nil
	}
	a.last = errStillRuns
	return errLeft
}

func (a *acquisition) begin(ctx context.Context) error {
	if ctx.Err() != nil || a.locks.ending.Err() != nil {
		return a.ended(ctx)
	}
	return nil
}

// ended is the error of a wait that the client ended.
func (a *acquisition) ended(ctx context.Context) error {
	// At the end of the wait itself the server answers, whatever the lock.
	if a.last == nil && (ctx.Err() == nil || a.pending != nil && !a.blocked) {
		a.last = errNoAnswer
	}
	return ended(ctx, a.locks.ending, a.owner.keys, a.last)
}

// ended is the error of a wait that the client ended. The last error before may be nil.
func ended(ctx, ending context.Context, keys []string, last error) error {
	err := ctx.Err()
	switch cause := context.Cause(ctx); {
	case err == nil && ending.Err() != nil:
		return ErrClosed
	case err == nil:
		return &timeout{keys: keys, cause: last}
	case errors.Is(err, context.DeadlineExceeded):
		return &timeout{keys: keys, cause: join(err, last)}
	case !errors.Is(cause, err):
		return errors.Join(err, cause)
	}
	return err
}

// join joins two errors, of which one may be nil.
func join(err, other error) error {
	switch {
	case err == nil:
		return other
	case other == nil:
		return err
	}
	return errors.Join(err, other)
}

// attempts asks again and again, with the same token, as long as that makes sense.
func (a *acquisition) attempts() (grant, error) {
	for polls := 0; ; {
		fence, err := a.attempt()
		if err == nil {
			before := a.unknown
			a.unknown = true // there is a hold, which is not the caller's yet
			var g grant
			if g, err = a.handOver(fence); err == nil {
				a.unknown = before
				return g, nil
			}
		}
		a.note(err)
		switch {
		case errors.Is(err, errRefused) && !a.once && a.locks.settings.waiting == byPolling:
			err = a.poll(polls)
			polls++
		case errors.Is(err, errAskAgain), isTemporary(err):
			err = a.pause(err)
		}
		if err != nil {
			return grant{}, err
		}
	}
}

// note keeps an error after which the request is asked again, until the server gives another answer.
func (a *acquisition) note(err error) {
	switch {
	case isTemporary(err):
		a.last = err
	case errors.Is(err, errRefused):
		a.last = nil
	}
}

// attempt asks, and waits as the settings say.
func (a *acquisition) attempt() (fence int64, err error) {
	switch {
	case a.once || a.locks.settings.waiting == byPolling:
		return a.send(a.ask, a.locks.server.send)
	case a.locks.settings.waiting == byBlocking || a.locks.listen.forbidden(a.owner.keys[0]):
		return a.block()
	}
	return a.notify()
}

// send sends one command, and gives its fence, errRefused for 0, or redis.Nil for null.
func (a *acquisition) send(
	build func(ctx context.Context, rest ...any) command, send func(context.Context, redis.Cmder) error, rest ...any,
) (int64, error) {
	a.sent = time.Now()
	cmd := build(context.WithoutCancel(a.ctx), rest...)
	pending, answered := call(a.ctx, cmd, send)
	if !answered {
		a.pending, a.left, a.unknown = pending, cmd, a.unknown || pending != nil
		return 0, errLeft
	}
	reply, err := cmd.Int64()
	a.unanswered.note(a.ttl, err)
	switch {
	case isConnectionError(err):
		a.unknown = true
	case err == nil && reply == 0:
		err = errRefused
	}
	return reply, err
}

// handOver makes sure of how long the hold is valid. The ttl began at a grant that may be long ago, if there
// was a wait.
func (a *acquisition) handOver(fence int64) (grant, error) {
	if time.Since(a.sent) > a.ttl/3 {
		_, err := a.send(func(ctx context.Context, _ ...any) command {
			return a.owner.extend(ctx, a.ttl)
		}, a.locks.server.send)
		if errors.Is(err, errRefused) || (err == nil && time.Since(a.sent) >= counted(a.ttl)) {
			err = errAskAgain
		}
		if err != nil {
			return grant{}, err
		}
	}
	g := grant{fence: fence, until: a.sent.Add(counted(a.ttl))}
	if a.confirm == nil {
		return g, nil
	}
	return a.confirm(g)
}

// poll waits before the next attempt, or ends with an error.
func (a *acquisition) poll(polls int) error {
	pause, more := a.locks.settings.strategy.pause(polls)
	switch {
	case !more:
		return &timeout{keys: a.owner.keys}
	case !a.deadline.IsZero() && time.Until(a.deadline) < pause:
		return a.over()
	}
	return a.sleep(pause)
}

// pause waits before a request is asked again after an error, as long as its wait lasts.
func (a *acquisition) pause(err error) error {
	pause := a.pauses.next()
	end := a.deadline
	if retryEnd := a.began.Add(a.locks.settings.retryFor); a.once && (end.IsZero() || retryEnd.Before(end)) {
		end = retryEnd
	}
	switch {
	case end.IsZero() || time.Until(end) >= pause:
		return a.sleep(pause)
	case a.once && !errors.Is(err, errAskAgain):
		return err
	}
	return a.over()
}

// over is the error when the wait is over, with the last error before.
func (a *acquisition) over() error {
	cause := a.last
	if a.byCaller {
		cause = join(context.DeadlineExceeded, a.last)
	}
	return &timeout{keys: a.owner.keys, cause: cause}
}

func (a *acquisition) sleep(pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-a.ctx.Done():
		return errLeft
	case <-a.locks.ending.Done():
		return errLeft
	}
}

// waitArgs are the arguments WAIT and what is left of the wait. The server takes 0 as a wait without end.
func (a *acquisition) waitArgs() ([]any, error) {
	if a.deadline.IsZero() {
		return []any{"WAIT", 0}, nil
	}
	left := time.Until(a.deadline)
	if left <= 0 {
		return nil, a.over()
	}
	return []any{"WAIT", milliseconds(min(left, longestWait))}, nil
}
