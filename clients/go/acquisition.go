package slock

import (
	"context"
	"errors"
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
	// lateMessage is how long after the end of a wait the message that says so is still waited for.
	lateMessage = 50 * time.Millisecond
	// subscribing is how long the confirmation of a new channel is waited for before the request is sent.
	subscribing = 100 * time.Millisecond
	// holdersReply is how long a call that has timed out waits to learn who has the lock.
	holdersReply = 250 * time.Millisecond
)

var (
	// errAgain means that the request has to be sent again at once.
	errAgain = errors.New("send again")
	// errPoll means that the lock was refused, and that the request cannot wait by a message.
	errPoll = errors.New("poll")
)

// grant is what an acquisition gives.
type grant struct {
	fence int64
	from  time.Duration // the validity counts from then
}

// acquisition is one use of a request, or a change of mode that may have to wait, at a server or a quorum.
type acquisition struct {
	ctx      context.Context
	settings *settings
	closing  context.Context
	wanted   *requestSettings
	try      bool // a refusal is ErrNotAcquired
	once     bool // a refusal ends it
	polling  Strategy
	send     func() (grant, error)       // sends the request once, and waits for what comes of it
	failed   func(isTimedOut bool) error // the error of a call that is over, because others have the lock or without a reply

	began    time.Time
	deadline time.Time // of the wait; zero: none
	contact  time.Time // when the server last replied; zero: never
	last     error     // the last error that passes; nil after a reply without one
	failures int       // such errors, one after the other
	polls    int
}

// newAcquisition is one that is to be run. With try a refusal is no timeout.
func newAcquisition(ctx context.Context, closing context.Context, s *settings, wanted *requestSettings, try bool) acquisition {
	a := acquisition{ctx: ctx, settings: s, closing: closing, wanted: wanted, try: try, polling: polling, began: time.Now()}
	a.deadline, _ = ctx.Deadline()
	if a.once = try || wanted.hasWait && wanted.wait == 0; wanted.hasWait && !a.once {
		a.deadline = earlier(a.began.Add(wanted.wait), a.deadline)
	}
	return a
}

// run sends the request until it is granted or over.
func (a *acquisition) run() (grant, error) {
	for {
		if err := a.over(); err != nil {
			return grant{}, err
		}
		got, err := a.send()
		pause, more := time.Duration(0), true
		switch {
		case err == nil:
			return got, nil
		case errors.Is(err, errAgain), errors.Is(err, errLeft): // over says why it was left
			continue
		case errors.Is(err, errPoll):
			pause, more = a.polling(a.polls)
			a.polls++
		case passes(err):
			a.last = moreTelling(a.last, err)
			pause, _ = afterErrors(a.failures)
			a.failures++
		default:
			return grant{}, explain(err)
		}
		if !more {
			return grant{}, a.failed(a.last == nil)
		}
		sleep(a.ctx, a.closing, min(pause, time.Until(earlier(a.limit(), a.deadline))))
	}
}

// limit is until when the server has to reply.
func (a *acquisition) limit() time.Time {
	if a.contact.IsZero() || a.once {
		return a.began.Add(a.settings.retryFor)
	}
	return a.contact.Add(a.settings.retryWaitFor)
}

// over is the error of an acquisition that has to end without a grant, or nil.
func (a *acquisition) over() error {
	isOver := a.ctx.Err() != nil || !a.deadline.IsZero() && !time.Now().Before(a.deadline)
	switch {
	case a.closing.Err() != nil || errors.Is(a.ctx.Err(), context.Canceled):
		return ended(a.ctx)
	case isOver || a.last != nil && !time.Now().Before(a.limit()):
		return a.failed(isOver && a.last == nil && !a.contact.IsZero())
	}
	return nil
}

// request is an acquisition at a server.
type request struct {
	acquisition
	server *server
	owner  owner
	ask    Call

	waits    bool          // others had the lock, so it waits by a message from now on
	ticket   *ticket       // by which its last copy waits; nil: it has not waited
	sent     time.Duration // before the last copy was sent that was answered null
	queue    time.Duration // how long the server lets that copy wait
	isLoose  bool          // a copy of it may be on its way to the server
	isQueued bool          // it waits on the server, or is held
}

// request sends a request until it is granted or over. If something of it may be left on the server then, isOpen is true.
func (s *server) request(
	ctx context.Context, o owner, ask Call, wanted *requestSettings, try bool,
) (got grant, isOpen bool, err error) {
	r := request{acquisition: newAcquisition(ctx, s.closing, s.settings, wanted, try), server: s, owner: o, ask: ask}
	r.send, r.failed = r.attempt, r.unsuccessful
	got, err = r.run()
	s.listener.forget(r.ticket)
	if known, ok := err.(*Error); ok {
		known.Keys = o.names
	}
	return got, r.isLoose || r.isQueued, err
}

// unsuccessful is the error of a wait that is over, which has who has the lock, or of one without a reply.
func (a *request) unsuccessful(isTimedOut bool) error {
	waited := time.Since(a.began)
	if !isTimedOut {
		return noAnswer(a.owner.names, waited, a.last, overErr(a.ctx))
	}
	text := plain("timed out after " + waited.Round(time.Millisecond).String())
	failed := failure(ErrTimedOut, a.owner.names, text, overErr(a.ctx))
	failed.Holders = a.server.holders(context.WithoutCancel(a.ctx), holdersReply, a.owner.keys)
	return failed
}

// attempt sends the request once, and waits for what comes of it.
func (a *request) attempt() (grant, error) {
	call, channel, wait := a.ask, "", time.Duration(0)
	if !a.once {
		channel = a.channel()
	}
	if channel != "" {
		wait = serverWait
		if !a.deadline.IsZero() {
			wait = min(wait, max(time.Until(a.deadline), time.Millisecond))
		}
		call = call.waiting(wait, channel, a.ticket.tag)
	}
	until := earlier(a.limit(), time.Now().Add(a.settings.retryFor))
	if !a.deadline.IsZero() {
		until = earlier(until, a.deadline.Add(lateReply))
	}
	reply, err := a.server.number(a.ctx, until, call)
	if err == nil && reply.number > 0 {
		return a.confirm(reply.number, reply.sent, false)
	}
	isAnswered := err == nil || code(err) != ""
	// The end of a token of the program's might end another hold of it, so there only copies count that are known.
	a.isLoose = a.isLoose || !isAnswered || !reply.alone && !a.owner.given
	if isAnswered {
		a.contact = time.Now()
	}
	if err != nil {
		if channel != "" && a.server.listener.failed(a.owner.keys[0], err) {
			err = errAgain
		}
		return grant{}, err
	}
	a.last, a.failures = nil, 0
	switch {
	case channel != "":
		a.isQueued, a.waits, a.sent, a.queue = true, true, reply.sent, wait
		return a.await()
	case a.try:
		return grant{}, failure(ErrNotAcquired, a.owner.names, plain("the lock is held"))
	case a.once:
		return grant{}, a.failed(true)
	case a.waits: // it wants a channel, and may not have one
		return grant{}, errPoll
	}
	a.waits = true
	return grant{}, errAgain
}

// channel is the channel to wait by. A request that has not been refused waits only if there is one already. If it is
// new, the confirmation of the server is waited for, but not for long.
func (a *request) channel() string {
	name, isNew := a.server.listener.channel(a.owner.keys[0], a.waits)
	if name != "" {
		a.server.listener.forget(a.ticket)
		a.ticket = a.server.listener.ticket(a.owner.keys[0])
	}
	if isNew {
		timer := time.NewTimer(subscribing)
		defer timer.Stop()
		select {
		case <-a.ticket.heard:
		case <-timer.C:
		}
	}
	return name
}

// await waits for the message of a request that is in the queue.
func (a *request) await() (grant, error) {
	pause := min(sendAgain-rand.N(sendAgain/5), a.settings.retryWaitFor/4)
	if !a.deadline.IsZero() {
		pause = min(pause, time.Until(a.deadline)+lateMessage)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case m := <-a.ticket.heard:
		switch {
		case m.again:
			return grant{}, errAgain
		case m.err != nil:
			return grant{}, m.err
		case m.fence > 0:
			return a.confirm(m.fence, a.sent, true)
		}
		// The wait has run out on the server, which may be because no copy arrived in time. Before that, an operator has
		// withdrawn the request.
		a.isQueued = false
		if sending()-a.sent < a.queue {
			return grant{}, a.failed(true)
		}
		return grant{}, errAgain
	case <-timer.C:
		return grant{}, errAgain
	case <-a.closing.Done():
	case <-a.ctx.Done():
	}
	return grant{}, errLeft
}

// confirm makes sure of how long the hold is valid, and that enough replicas have it. The ttl began at a grant that may
// be long ago, if a message told of it, and at a server that may not be the primary any more.
func (a *request) confirm(fence int64, from time.Duration, byMessage bool) (grant, error) {
	a.isQueued = true
	if a.contact.IsZero() {
		a.contact = a.began
	}
	s, since, ttl := a.server, sending()-from, a.wanted.ttl
	isSure := !byMessage || since <= ttl/3 && !s.topology.Failover
	if a.wanted.minReplicas == 0 && isSure && since < counted(ttl) {
		return grant{fence, from}, nil
	}
	got, err := s.extend(a.ctx, time.Now().Add(s.settings.retryFor), a.owner, extension{ttl, fence, a.wanted})
	if err == nil && got.number == 0 {
		err = errAgain // it is over by now
	}
	return grant{fence, got.sent}, err
}
