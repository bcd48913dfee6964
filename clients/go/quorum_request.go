package slock

import (
	"context"
	"errors"
	"time"
)

// QuorumRequest is what a Quorum is asked for. It is a value, and may be used many times and by several
// goroutines at once: each use takes a token of its own.
type QuorumRequest struct {
	quorum   *Quorum
	keys     []string
	mode     Mode
	settings requestSettings
}

// With is the request with further options. MinReplicas does not count here.
func (r QuorumRequest) With(options ...RequestOption) QuorumRequest {
	for _, option := range options {
		option(&r.settings)
	}
	return r
}

// Lock asks again and again until a majority has granted the lock, and gives the hold. It ends as that of
// Request does, or when the strategy of polling has ended: with ErrTimedOut if a majority of nodes refused, and
// else with ErrQuorumMissed. Both are a *QuorumError, which says what each node answered.
func (r QuorumRequest) Lock(ctx context.Context) (*QuorumHold, error) {
	return r.acquire(ctx, true)
}

// TryLock asks once, and gives the hold, or false when a majority of nodes refused, because others have the
// lock. A *QuorumError means that too few nodes answered to know.
func (r QuorumRequest) TryLock(ctx context.Context) (*QuorumHold, bool, error) {
	hold, err := r.acquire(ctx, false)
	if errors.Is(err, errRefused) {
		return nil, false, nil
	}
	return hold, hold != nil, err
}

// Do runs the work under the lock, as that of Request does.
func (r QuorumRequest) Do(ctx context.Context, work func(ctx context.Context) error) error {
	hold, err := r.Lock(ctx)
	if err != nil {
		return err
	}
	return hold.lease.run(ctx, func(ctx context.Context) error {
		_, err := hold.Release(context.WithoutCancel(ctx)) // waits no longer than for a node
		return err
	}, work)
}

func (r QuorumRequest) acquire(ctx context.Context, wait bool) (*QuorumHold, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	r.quorum.background.enter()
	defer r.quorum.background.leave()
	token := r.settings.token
	if token == "" {
		token = newToken()
	}
	p := &poll{
		request: r,
		owner:   owner{keys: r.keys, token: token},
		seats:   r.quorum.newSeats(),
		began:   time.Now(),
		tries:   !wait,
		once:    !wait || (r.settings.hasWait && r.settings.wait == 0),
	}
	if wait && r.settings.hasWait {
		p.deadline = p.began.Add(r.settings.wait)
	}
	if end, ok := ctx.Deadline(); ok && (p.deadline.IsZero() || end.Before(p.deadline)) {
		p.deadline, p.byCaller = end, true
	}
	sent, err := p.run(ctx)
	r.quorum.settings.observer.Waited(r.settings.labelOr(r.keys[0]), time.Since(p.began), outcome(err))
	if err != nil {
		return nil, err
	}
	return r.quorum.newHold(ctx, p, sent), nil
}

func (r QuorumRequest) check() error {
	if err := errors.Join(r.quorum.check(), r.settings.check(r.keys, r.mode)); err != nil {
		return err
	}
	return r.quorum.checkTTL(r.settings.ttl)
}

// poll is one use of a request.
type poll struct {
	request  QuorumRequest
	owner    owner
	seats    seats
	began    time.Time
	adopts   bool // an Adopt: the hold is there already
	tries    bool // a TryLock: it may be refused
	once     bool
	deadline time.Time // zero: none
	byCaller bool      // whether that is the deadline of the caller's context
	attempts int       // so far
}

// run asks until a majority has granted, and gives the time before the first request of that attempt.
func (p *poll) run(ctx context.Context) (time.Time, error) {
	q := p.request.quorum
	if !p.awaitToken(ctx) {
		return time.Time{}, ended(ctx, q.ending, p.owner.keys, errStillRuns)
	}
	var last *QuorumError
	for ctx.Err() == nil && q.ending.Err() == nil {
		sent, released, missed := p.attempt(ctx)
		if missed == nil {
			return sent, nil
		}
		if ctx.Err() != nil || q.ending.Err() != nil {
			// It was cut short, so the attempt before may tell more.
			if last == nil || missed.isRefusal() {
				last = missed
			}
			break
		}
		last = missed
		if p.once || !missed.mayHelp() {
			return time.Time{}, p.refusedOr(missed)
		}
		pause, more := q.settings.strategy.pause(p.attempts - 1)
		switch {
		case !more:
			return time.Time{}, p.over(missed, nil)
		case !p.deadline.IsZero() && time.Until(p.deadline) < pause:
			return time.Time{}, p.over(missed, p.deadlineError())
		}
		p.rest(ctx, pause, released)
	}
	return time.Time{}, p.ended(ctx, last)
}

// awaitToken waits until nothing runs any more that could take away what the token is granted.
func (p *poll) awaitToken(ctx context.Context) bool {
	q := p.request.quorum
	var end time.Time // that of the context
	switch {
	case p.once:
		end = p.began.Add(onlyAnswer)
	case !p.byCaller:
		end = p.deadline
	}
	return q.tokenTasks.wait(ctx, q.ending, end, p.owner.token)
}

// deadlineError is the error of the caller's context at the deadline, if it is that of the context.
func (p *poll) deadlineError() error {
	if p.byCaller {
		return context.DeadlineExceeded
	}
	return nil
}

// ended is the error when the context is over or the Quorum is closed. The last attempt may be nil.
func (p *poll) ended(ctx context.Context, last *QuorumError) error {
	if last != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return p.over(last, ctx.Err())
	}
	return ended(ctx, p.request.quorum.ending, p.owner.keys, nil)
}

// over is the error when the wait is over, with what ended it, if that was the context.
func (p *poll) over(last *QuorumError, cause error) error {
	last.ended = cause
	if last.isRefusal() {
		last.heldKeys = p.owner.keys
	}
	return last
}

// attempt asks all nodes once. It ends when a majority has granted. When the majority is out of reach it
// releases, so that others may have it, and waits for the other answers only to tell them; with FailFast it
// does not. Released is closed when all nodes have answered the releases.
func (p *poll) attempt(ctx context.Context) (sent time.Time, released <-chan struct{}, missed *QuorumError) {
	p.attempts++
	number := p.attempts
	q, s := p.request.quorum, &p.request.settings
	nodeCtx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(q.ending, cancel)
	end := func() {
		stop()
		cancel()
	}
	timer := time.AfterFunc(q.nodeTimeout(s.ttl), end)
	sent = time.Now()
	answers := p.seats.each(func(seat *seat) (int64, error) {
		return seat.lock(nodeCtx, number, s.ttl, func(ctx context.Context) command {
			return p.owner.lock(ctx, p.request.mode, s)
		})
	}, func(got []answer) bool {
		granted := count(got)
		if released == nil && len(got)-granted > len(q.nodes)-q.majority() {
			released = p.takeAway()
		}
		return granted >= q.majority() || (released != nil && q.settings.quorum.failFast)
	})
	if count(answers) >= q.majority() && time.Since(sent) < q.counts(s.ttl) {
		return sent, nil, nil // the other nodes may still grant
	}
	timer.Stop()
	end()
	if released == nil {
		released = p.takeAway()
	}
	return time.Time{}, released, q.missed(answers)
}

func count(answers []answer) int {
	granted := 0
	for _, a := range answers {
		if a.granted() {
			granted++
		}
	}
	return granted
}

func (q *Quorum) missed(answers []answer) *QuorumError {
	e := &QuorumError{Needed: q.majority()}
	for i, a := range answers {
		e.Answers = append(e.Answers, NodeAnswer{Node: q.nodes[i].name, Granted: a.granted(), Err: a.err})
	}
	return e
}

// takeAway releases on all nodes, also on those that have not answered. The channel is closed when all have.
func (p *poll) takeAway() <-chan struct{} {
	q := p.request.quorum
	done := make(chan struct{})
	attempt := p.attempts
	q.tokenTasks.run(&q.background, p.owner.token, func() {
		defer close(done)
		p.seats.each(func(seat *seat) (int64, error) {
			return seat.release(attempt, func(ctx context.Context) command {
				return p.owner.release(ctx, p.request.mode)
			}, p.request.settings.ttl)
		}, whole)
	})
	return done
}

// refusedOr is errRefused for a TryLock when a majority of nodes refused.
func (p *poll) refusedOr(missed *QuorumError) error {
	if p.tries && missed.isRefusal() {
		return errRefused
	}
	return p.over(missed, nil)
}

// rest waits for the releases of an attempt, for no longer than for a node, and then for the pause. It ends
// early with the context and with the Quorum.
func (p *poll) rest(ctx context.Context, pause time.Duration, released <-chan struct{}) {
	q := p.request.quorum
	resting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(q.ending, cancel)()
	timer := time.NewTimer(q.nodeTimeout(p.request.settings.ttl))
	defer timer.Stop()
	select {
	case <-released:
	case <-timer.C:
	case <-resting.Done():
	}
	_ = sleep(resting, pause)
}
