package slock

import (
	"context"
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

// request is an acquisition at a server, or a change of mode that may have to wait.
type request struct {
	attempts
	server *server
	owner  owner
	ask    Call
	wanted *requestSettings
	try    bool // a refusal is ErrNotAcquired

	waits    bool          // others had the lock, so it waits by a message from now on
	ticket   *ticket       // by which its last copy waits; nil: it has not waited
	sent     time.Duration // before the last copy was sent that was answered null
	queue    time.Duration // how long the server lets that copy wait
	isLoose  bool          // a copy of it may be on its way to the server
	isQueued bool          // it waits on the server, or is held
}

// request sends a request until it is granted or over. If it failed, isOpen tells whether something of it may be left on
// the server.
func (s *server) request(
	ctx context.Context, o owner, ask Call, wanted *requestSettings, try bool,
) (got answer, isOpen bool, err error) {
	r := request{
		attempts: newAttempts(ctx, s.closing, s.settings, o.names),
		server:   s, owner: o, ask: ask, wanted: wanted, try: try,
	}
	r.wait(wanted, try)
	r.failed = r.unsuccessful
	err = r.run(func() (err error) {
		got, err = r.attempt()
		return err
	})
	s.listener.forget(r.ticket)
	if known, ok := err.(*Error); ok {
		known.Keys = o.names
	}
	return got, err != nil && (r.isLoose || r.isQueued), err
}

// unsuccessful is the error of a wait that is over, which has who has the lock, or of one without a reply.
func (r *request) unsuccessful(isTimedOut bool) error {
	if !isTimedOut {
		return r.unanswered()
	}
	text := "timed out after " + time.Since(r.began).Round(time.Millisecond).String()
	failed := failure(ErrTimedOut, r.names, text, overErr(r.ctx))
	failed.Holders = r.server.holders(context.WithoutCancel(r.ctx), holdersReply, r.owner.keys)
	return failed
}

// attempt sends the request once, and waits for what comes of it.
func (r *request) attempt() (answer, error) {
	call, channel, wait := r.ask, "", time.Duration(0)
	if !r.once {
		channel = r.channel()
	}
	if channel != "" {
		wait = serverWait
		if !r.deadline.IsZero() {
			wait = min(wait, max(time.Until(r.deadline), time.Millisecond))
		}
		call = call.waiting(wait, channel, r.ticket.tag)
	}
	until := earlier(r.limit(), time.Now().Add(r.retryFor))
	if !r.deadline.IsZero() {
		until = earlier(until, r.deadline.Add(lateReply))
	}
	reply, err := r.server.number(r.ctx, until, call)
	if err == nil && reply.number > 0 {
		return r.confirm(reply, false)
	}
	isAnswered := err == nil || code(err) != ""
	// The end of a token of the program's might end another hold of it, so there only copies count that are known.
	r.isLoose = r.isLoose || !isAnswered || !reply.alone && !r.owner.given
	if isAnswered {
		r.contact = time.Now()
	}
	if err != nil {
		if channel != "" && r.server.listener.failed(r.owner.keys[0], err) {
			err = errAgain
		}
		return answer{}, err
	}
	r.last, r.failures = nil, 0
	switch {
	case channel != "":
		r.isQueued, r.waits, r.sent, r.queue = true, true, reply.sent, wait
		return r.await()
	case r.try:
		return answer{}, failure(ErrNotAcquired, r.names, "the lock is held")
	case r.once:
		return answer{}, r.failed(true)
	case r.waits: // it wants a channel, and may not have one
		return answer{}, errPoll
	}
	r.waits = true
	return answer{}, errAgain
}

// channel is the channel to wait by. A request that has not been refused waits only if there is one already. If it is
// new, the confirmation of the server is waited for, but not for long.
func (r *request) channel() string {
	name, isNew := r.server.listener.channel(r.owner.keys[0], r.waits)
	if name != "" {
		r.server.listener.forget(r.ticket)
		r.ticket = r.server.listener.ticket(r.owner.keys[0])
	}
	if isNew {
		select {
		case <-r.ticket.heard:
		case <-time.After(subscribing):
		}
	}
	return name
}

// await waits for the message of a request that is in the queue.
func (r *request) await() (answer, error) {
	pause := min(sendAgain-rand.N(sendAgain/5), r.settings.retryWaitFor/4)
	if !r.deadline.IsZero() {
		pause = min(pause, time.Until(r.deadline)+lateMessage)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case m := <-r.ticket.heard:
		switch {
		case m.again:
			return answer{}, errAgain
		case m.err != nil:
			return answer{}, m.err
		case m.fence > 0:
			return r.confirm(answer{number: m.fence, sent: r.sent}, true)
		}
		// The wait has run out on the server, which may be because no copy arrived in time. Before that, an operator has
		// withdrawn the request.
		r.isQueued = false
		if sending()-r.sent < r.queue {
			return answer{}, r.failed(true)
		}
	case <-timer.C:
	case <-r.closing.Done():
	case <-r.ctx.Done():
	}
	return answer{}, errAgain
}

// confirm makes sure of how long the hold is valid, and that enough replicas have it. The ttl began at a grant that may
// be long ago, if a message told of it, and at a server that may not be the primary any more.
func (r *request) confirm(got answer, byMessage bool) (answer, error) {
	r.isQueued = true
	if r.contact.IsZero() {
		r.contact = r.began
	}
	s, since, ttl := r.server, sending()-got.sent, r.wanted.ttl
	isSure := !byMessage || since <= ttl/3 && !s.topology.Failover
	if r.wanted.minReplicas == 0 && isSure && since < s.settings.counted(ttl) {
		return got, nil
	}
	extended, err := s.extend(r.ctx, time.Now().Add(r.retryFor), r.owner, extension{ttl, got.number, r.wanted})
	if err == nil && extended.number == 0 {
		err = errAgain // it is over by now
	}
	return answer{number: got.number, sent: extended.sent}, err
}
