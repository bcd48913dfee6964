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
// Request does, or when the strategy of polling has ended: with ErrTimedOut if a majority answered and others
// have the lock, and with a *QuorumError if too few nodes answered. errors.As finds the *QuorumError in both.
func (r QuorumRequest) Lock(ctx context.Context) (*QuorumHold, error) {
	hold, err := r.acquire(ctx, true)
	if errors.Is(err, errRefused) {
		return nil, ErrTimedOut
	}
	return hold, err
}

// TryLock asks once, and gives the hold, or false when others have the lock. A *QuorumError means that too
// few nodes answered.
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
	if err := errors.Join(r.quorum.check(), r.settings.check(r.keys, r.mode)); err != nil {
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
		once:    !wait || (r.settings.hasWait && r.settings.wait == 0),
	}
	if wait && r.settings.hasWait {
		p.deadline = p.began.Add(r.settings.wait)
	}
	if end, ok := ctx.Deadline(); ok && (p.deadline.IsZero() || end.Before(p.deadline)) {
		p.deadline = end
	}
	sent, err := p.run(ctx)
	r.quorum.settings.observer.Waited(r.settings.labelOr(r.keys[0]), time.Since(p.began), outcome(err))
	if err != nil {
		return nil, err
	}
	return r.quorum.newHold(ctx, p, sent), nil
}

// poll is one use of a request.
type poll struct {
	request  QuorumRequest
	owner    owner
	seats    seats
	began    time.Time
	once     bool
	deadline time.Time // zero: none
	attempts int       // so far
}

// run asks until a majority has granted, and gives the time before the first request of that attempt.
func (p *poll) run(ctx context.Context) (time.Time, error) {
	q := p.request.quorum
	for {
		if ctx.Err() != nil || q.ending.Err() != nil {
			return time.Time{}, ended(ctx, q.ending)
		}
		sent, released, err := p.attempt(ctx)
		if err == nil {
			return sent, nil
		}
		if ctx.Err() != nil || q.ending.Err() != nil {
			return time.Time{}, ended(ctx, q.ending)
		}
		if p.once || !mayHelp(err, q.majority()) {
			return time.Time{}, p.refusedOr(err)
		}
		pause, more := q.settings.strategy.pause(p.attempts - 1)
		if !more || (!p.deadline.IsZero() && time.Until(p.deadline) < pause) {
			if isRefusal(err) {
				err = &failure{kind: ErrTimedOut, cause: err}
			}
			return time.Time{}, err
		}
		if err := p.rest(ctx, pause, released); err != nil {
			return time.Time{}, err
		}
	}
}

// attempt asks all nodes once. It ends when a majority has granted. When the majority is out of reach it
// releases, so that others may have it, and waits for the other answers only to tell them; with FailFast it
// does not. Released is closed when all nodes have answered the releases.
func (p *poll) attempt(ctx context.Context) (sent time.Time, released <-chan struct{}, err error) {
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
		return seat.lock(nodeCtx, number, func(ctx context.Context) command {
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
	q.background.run(func() {
		defer close(done)
		p.seats.each(func(seat *seat) (int64, error) {
			return seat.release(attempt, func(ctx context.Context) command {
				return p.owner.release(ctx, p.request.mode)
			}, p.request.settings.ttl)
		}, whole)
	})
	return done
}

// mayHelp tells whether another attempt may end otherwise: not where a majority of nodes gives errors that
// last.
func mayHelp(err error, majority int) bool {
	var missed *QuorumError
	lasting := 0
	if errors.As(err, &missed) {
		for _, a := range missed.Answers {
			if a.Err != nil && !isTemporary(a.Err) {
				lasting++
			}
		}
	}
	return lasting < majority
}

// refusedOr is errRefused when it is asked once, the nodes have answered, and others have the lock.
func (p *poll) refusedOr(err error) error {
	if p.once && isRefusal(err) {
		return errRefused
	}
	return err
}

// isRefusal tells whether a majority of nodes answered, so that others have the lock.
func isRefusal(err error) bool {
	var missed *QuorumError
	if !errors.As(err, &missed) {
		return false
	}
	answered := 0
	for _, a := range missed.Answers {
		if a.Err == nil {
			answered++
		}
	}
	return answered >= missed.Needed
}

// rest waits for the releases of an attempt, for no longer than for a node, and then for the pause.
func (p *poll) rest(ctx context.Context, pause time.Duration, released <-chan struct{}) error {
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
	if sleep(resting, pause) != nil {
		return ended(ctx, q.ending)
	}
	return nil
}
