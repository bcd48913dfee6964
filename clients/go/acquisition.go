// SPDX-License-Identifier: MIT OR Apache-2.0

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
)

// request is an acquisition at a server, or a change of mode that may have to wait.
type request struct {
	attempts
	server *server
	owner  owner
	ask    Call
	wanted *requestSettings
	try    bool // a refusal is ErrNotAcquired

	isAllowed bool // the server allows the time of AtLeast

	waits    bool          // others had the lock, so it waits by a message from now on
	ticket   *ticket       // by which its last copy waits; nil: it does not
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
		attempts: newAttempts(ctx, s.closing, o.names, s.settings.retryFor),
		server:   s, owner: o, ask: ask, wanted: wanted, try: try, isAllowed: wanted.atLeast <= wanted.ttl,
	}
	r.wait(wanted.wait, try)
	err = r.run(func() (err error) {
		if !r.isAllowed {
			if err = s.allows(ctx, r.limit, o.names, wanted.atLeast); err != nil {
				if code(err) != "" {
					r.reached(s.settings.retryWaitFor)
				}
				return err
			}
			r.isAllowed = true
		}
		got, err = r.attempt()
		return err
	})
	s.listener.forget(r.ticket)
	if err == errTimedOut {
		failed := failure(ErrTimedOut, o.names, "timed out after "+r.took(), overErr(ctx))
		failed.Holders = s.holders(context.WithoutCancel(ctx), o.keys)
		err = failed
	}
	return got, err != nil && (r.isLoose || r.isQueued), err
}

// attempt sends the request once, and waits for what comes of it.
func (r *request) attempt() (got answer, err error) {
	call, wait, key := r.ask, time.Duration(0), r.owner.keys[0]
	if !r.once {
		r.server.listener.forget(r.ticket)
		r.ticket = r.server.listener.ticket(key, r.waits)
	}
	if r.ticket != nil {
		wait = max(min(serverWait, time.Until(r.deadline)), time.Millisecond)
		call = call.waiting(wait, r.ticket.channel.name, r.ticket.tag)
	}
	got, err = r.server.number(r.ctx, earlier(r.limit, r.deadline.Add(lateReply)), call)
	if err == nil && got.number > 0 {
		return r.confirm(got, false)
	}
	isAnswered := err == nil || code(err) != ""
	// The end of a token of the program's might end another hold of it, so there only copies count that are known.
	r.isLoose = r.isLoose || !isAnswered || !got.alone && !r.owner.given
	if isAnswered {
		r.reached(r.server.settings.retryWaitFor)
	}
	if err != nil {
		if r.ticket != nil && r.server.listener.failed(r.ticket, err) {
			err = errAgain
		}
		return got, err
	}
	r.last, r.failures = nil, 0
	switch {
	case r.ticket != nil:
		r.isQueued, r.waits, r.sent, r.queue = true, true, got.sent, wait
		return r.await()
	case r.try:
		return got, failure(ErrNotAcquired, r.names, "the lock is held")
	case r.once:
		return got, errTimedOut
	case r.waits: // it wants a channel, and may not have one
		return got, errPoll
	}
	r.waits = true
	return got, errAgain
}

// await waits for the message of a request that is in the queue.
func (r *request) await() (answer, error) {
	pause := min(sendAgain-rand.N(sendAgain/5), r.server.settings.retryWaitFor/4)
	timer := time.NewTimer(min(pause, time.Until(r.deadline)+lateMessage))
	defer timer.Stop()
	select {
	case m := <-r.ticket.heard:
		if m.err != nil {
			return answer{}, m.err
		}
		if m.fence > 0 {
			return r.confirm(answer{number: m.fence, sent: r.sent}, true)
		}
		// The wait has run out on the server, which may be because no copy arrived in time. Before that, an operator has
		// withdrawn the request. The server counts whole milliseconds: it may be early by two.
		r.isQueued = false
		if sending()-r.sent+2*time.Millisecond < r.queue {
			return answer{}, errTimedOut
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
	s, since, ttl := r.server, sending()-got.sent, r.wanted.ttl
	isSure := !byMessage || since <= ttl/3 && !s.topology.Failover
	if r.wanted.minReplicas == 0 && isSure && since < s.settings.counted(ttl) {
		return got, nil
	}
	r.reached(s.settings.retryWaitFor)
	extended, err := s.extend(r.ctx, r.limit, r.owner, ttl, got.number, r.wanted)
	if err == nil && extended.number == 0 {
		err = errAgain // it is over by now
	}
	return answer{number: got.number, sent: extended.sent}, err
}
