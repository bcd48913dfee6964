package slock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// This file has the life of an acquisition, from its first command to a grant or an error. All commands of it have one
// owner token, so each may be sent again: it is the same hold, or the same request in its place in the queue.

const (
	// sendAgain is how long a request waits for its message before it is sent again. So a lost message costs no more.
	sendAgain = 5 * time.Second
	// lateReply is how long after the end of a wait a reply is still waited for.
	lateReply = 500 * time.Millisecond
	// holdersAnswer is how long a call that has timed out waits to learn who has the lock.
	holdersAnswer = 250 * time.Millisecond
)

// errAgain means that the request has to be sent again at once.
var errAgain = errors.New("send again")

// errPoll means that the lock was refused, and that the request cannot wait by a message.
var errPoll = errors.New("poll")

// grant is what an acquisition gives.
type grant struct {
	fence int64
	from  instant // the validity counts from then
}

// acquisition is one use of a request, or a change of mode that may have to wait.
type acquisition struct {
	server   *server
	listener *listener
	ctx      context.Context
	owner    owner
	ask      Call
	wanted   *requestSettings
	try      bool // a refusal is ErrNotAcquired
	once     bool // a refusal ends it

	began     time.Time
	deadline  time.Time // of the wait; zero: none
	contact   time.Time // when the server last replied; zero: never
	last      error     // the last error that passes; nil after a reply without one
	failures  int       // such errors, one after the other
	refusals  int       // polls that were refused
	isRefused bool      // others had the lock, so it waits by a message from now on

	ticket *ticket       // by which it waits; nil: it has not waited
	queued instant       // before the last copy was sent that was answered null
	waits  time.Duration // how long the server lets that copy wait
	isOpen bool          // something of it may be on its way to the server, wait there, or be held
}

// newAcquisition is one that is to be run. With try a refusal is no timeout.
func newAcquisition(
	ctx context.Context, s *server, l *listener, o owner, ask Call, wanted *requestSettings, try bool,
) acquisition {
	a := acquisition{server: s, listener: l, ctx: ctx, owner: o, ask: ask, wanted: wanted, try: try, began: time.Now()}
	a.deadline, _ = ctx.Deadline()
	if a.once = try || wanted.hasWait && wanted.wait == 0; wanted.hasWait && !a.once {
		a.deadline = earlier(a.began.Add(wanted.wait), a.deadline)
	}
	return a
}

// run sends the request until it is granted or over. If it may have left something on the server then, isOpen is true.
func (a *acquisition) run() (grant, error) {
	defer func() {
		if a.ticket != nil {
			a.listener.register(a.ticket, nil)
		}
	}()
	for {
		if err := a.over(); err != nil {
			return grant{}, err
		}
		got, err := a.attempt()
		pause := time.Duration(0)
		switch {
		case err == nil:
			return got, nil
		case errors.Is(err, errAgain), errors.Is(err, errLeft): // over says why it was left
			continue
		case errors.Is(err, errPoll):
			pause, _ = polling.pause(a.refusals)
			a.refusals++
		case passes(err):
			a.last = moreTelling(a.last, err)
			pause, _ = afterErrors.pause(a.failures)
			a.failures++
		default:
			return grant{}, explain(err)
		}
		sleep(a.ctx, a.server.closing, min(pause, time.Until(a.end())))
	}
}

// limit is until when the server has to reply.
func (a *acquisition) limit() time.Time {
	if a.contact.IsZero() || a.once {
		return a.began.Add(a.server.settings.retryFor)
	}
	return a.contact.Add(a.server.settings.retryWaitFor)
}

// end is when the acquisition is over if no other reply comes.
func (a *acquisition) end() time.Time {
	if a.last == nil && !a.deadline.IsZero() {
		return a.deadline
	}
	return earlier(a.limit(), a.deadline)
}

// over is the error of an acquisition that has to end without a grant, or nil.
func (a *acquisition) over() error {
	isOver := a.ctx.Err() != nil || !a.deadline.IsZero() && !time.Now().Before(a.deadline)
	switch {
	case a.server.closing.Err() != nil:
		return ErrClosed
	case errors.Is(a.ctx.Err(), context.Canceled):
		return ended(a.ctx)
	case isOver && a.last == nil && !a.contact.IsZero():
		return a.timedOut()
	case isOver || a.last != nil && !time.Now().Before(a.limit()):
		return noAnswer(a.owner.names, time.Since(a.began), a.last, a.ctx.Err())
	}
	return nil
}

// timedOut is the error of a wait that is over: it asks who has the lock.
func (a *acquisition) timedOut() error {
	failed := &TimedOutError{Keys: a.owner.names, Waited: time.Since(a.began)}
	if end, ok := a.ctx.Deadline(); ok && !time.Now().Before(end) {
		failed.cause = context.DeadlineExceeded
	}
	failed.Holders = a.server.holders(context.WithoutCancel(a.ctx), holdersAnswer, a.owner.keys)
	return failed
}

// attempt sends the request once, and waits for what comes of it.
func (a *acquisition) attempt() (grant, error) {
	until := earlier(a.limit(), time.Now().Add(a.server.settings.retryFor))
	if !a.deadline.IsZero() {
		until = earlier(until, a.deadline.Add(lateReply))
	}
	line, err := a.line(until)
	if err != nil {
		return grant{}, err
	}
	call, wait := a.ask, time.Duration(0)
	if line != nil {
		if a.ticket == nil {
			a.ticket = newTicket()
		}
		if !a.listener.register(a.ticket, line) {
			return grant{}, errAgain
		}
		wait = serverWait
		if !a.deadline.IsZero() {
			wait = min(wait, max(time.Until(a.deadline), time.Millisecond))
		}
		call = call.waiting(wait, line.name, a.ticket.tag)
	}
	wasOpen := a.isOpen
	a.isOpen = true
	reply, err := a.server.number(a.ctx, until, call)
	if err == nil && reply.number > 0 {
		return a.confirm(reply.number, reply.sent, false)
	}
	if err == nil || code(err) != "" {
		a.contact = time.Now()
	}
	switch {
	case err != nil:
		// What the server refused is not on its way.
		a.isOpen = wasOpen || code(err) == "" || !a.isAlone(reply)
		return grant{}, a.failed(line, err)
	case line != nil:
		a.last, a.failures = nil, 0
		a.queued, a.waits, a.isRefused = reply.sent, wait, true
		return a.await()
	}
	a.last, a.failures = nil, 0
	a.isOpen = wasOpen || !a.isAlone(reply)
	switch {
	case a.once:
		return grant{}, a.refused()
	case a.isRefused: // it wants a channel, and may not have one
		return grant{}, errPoll
	}
	a.isRefused = true
	return grant{}, errAgain
}

// isAlone tells whether no other copy of what was answered can be on its way. The end of a token of the program's may end
// another hold of it, so a copy that the Redis client library may have sent does not count there.
func (a *acquisition) isAlone(reply answer) bool { return reply.alone || a.owner.given }

// line is the channel to wait by. A request that has not been refused waits only if there is one already.
func (a *acquisition) line(until time.Time) (*channel, error) {
	switch {
	case a.once:
		return nil, nil
	case a.isRefused:
		return a.listener.subscribe(a.ctx, until, a.owner.keys[0])
	}
	return a.listener.current(a.owner.keys[0]), nil
}

// failed notes what an error says about the channel.
func (a *acquisition) failed(line *channel, err error) error {
	switch {
	case line == nil:
	case code(err) == "NOSUBSCRIBER":
		a.isRefused = true
		a.listener.drop(line, err)
	case a.listener.forbid(err):
		a.isRefused = true
		return errAgain
	}
	return err
}

// refused is the error of a request that is sent once.
func (a *acquisition) refused() error {
	if !a.try {
		return a.timedOut()
	}
	return because(ErrNotAcquired, fmt.Sprintf("%s is held", named(a.owner.names)))
}

// await waits for the message of a request that is in the queue.
func (a *acquisition) await() (grant, error) {
	pause := sendAgain - rand.N(sendAgain/5)
	if !a.deadline.IsZero() {
		pause = min(pause, time.Until(a.deadline))
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case m := <-a.ticket.heard:
		return a.hear(m)
	case <-timer.C:
		return grant{}, errAgain
	case <-a.server.closing.Done():
	case <-a.ctx.Done():
	}
	return grant{}, errLeft
}

func (a *acquisition) hear(m message) (grant, error) {
	switch {
	case m.again:
		a.isRefused = true
		return grant{}, errAgain
	case m.err != nil:
		return grant{}, m.err
	case m.fence > 0:
		return a.confirm(m.fence, a.queued, true)
	}
	// The wait has run out on the server, which may be because no copy arrived in time. Before that, an operator has
	// withdrawn the request.
	a.isOpen = false
	if now().sub(a.queued) < a.waits {
		return grant{}, a.timedOut()
	}
	return grant{}, errAgain
}

// confirm makes sure of how long the hold is valid, and that enough replicas have it. The ttl began at a grant that may
// be long ago, if a message told of it, and at a server that may not be the primary any more.
func (a *acquisition) confirm(fence int64, from instant, byMessage bool) (grant, error) {
	a.isOpen = true
	if a.contact.IsZero() {
		a.contact = a.began
	}
	s, replicas, ttl := a.server, a.wanted.minReplicas, a.wanted.ttl
	since := sending().sub(from)
	isSure := !byMessage || since <= ttl/3 && !s.topology.Failover
	if replicas == 0 && isSure && since < counted(ttl) {
		return grant{fence, from}, nil
	}
	until := earlier(a.limit(), time.Now().Add(s.settings.retryFor))
	got, err := s.extend(a.ctx, until, a.owner, extension{ttl: ttl, fence: fence, replicas: replicas, within: a.wanted.replicaTimeout})
	switch {
	case err != nil:
		return grant{}, err
	case got.number == 0:
		return grant{}, errAgain // it is over by now
	}
	return grant{fence, got.sent}, nil
}
