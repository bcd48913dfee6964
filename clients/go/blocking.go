package slock

import (
	"context"
	"time"
)

// This file has a wait on a connection of its own. No reply there is too late, so other commands tell whether the
// server is in reach.

const (
	// testAfter is how long after the beginning of a wait the server is tested first, if there is so much time.
	testAfter = time.Second
	// testEvery is how often a server is tested while somebody waits there, and how long the answer may take.
	testEvery = 5 * time.Second
)

// block asks, and waits for the reply.
func (a *acquisition) block() (int64, error) {
	w, err := a.waiting()
	if err != nil {
		return 0, err
	}
	s := a.locks.servers
	n, err := s.find(a.ctx, a.answerBy(), a.owner.keys[0])
	if err != nil {
		return 0, err
	}
	sent := now()
	c := newCall(time.Time{}, w)
	done := make(chan struct{})
	c.answered = func() { close(done) }
	c.late = a.late
	n.waits.start(c)
	a.queued = true
	tested, err := a.awaitReply(n, done)
	if err != nil && c.over.CompareAndSwap(false, true) {
		a.doubt = true
		return a.answer(sent, 0, err)
	}
	<-done
	fence, err := c.commands[0].Int64()
	s.note(err)
	fence, err = a.answer(sent, fence, err)
	if mayRunLater(err) && (tested || a.contact.IsZero()) {
		a.contact = time.Now() // it was there until now
	}
	a.queued = err == nil
	return fence, err
}

// awaitReply waits for the reply as long as the server is in reach, and tells whether it was. After an outage the
// request is asked again: nobody would tell a connection that has nothing to send that its server was restarted.
func (a *acquisition) awaitReply(n *node, done <-chan struct{}) (inReach bool, err error) {
	var over <-chan time.Time
	if !a.deadline.IsZero() {
		timer := time.NewTimer(time.Until(a.deadline.Add(lateAnswer)))
		defer timer.Stop()
		over = timer.C
	}
	test := time.NewTimer(min(testAfter, time.Until(a.end())/3))
	defer test.Stop()
	for outage := false; ; {
		select {
		case <-done:
			return inReach, nil
		case <-over:
			a.note(errNoAnswer)
			return inReach, a.over()
		case <-a.ctx.Done():
			return inReach, errLeft
		case <-a.locks.ending.Done():
			return inReach, errLeft
		case <-test.C:
		}
		ctx, cancel := context.WithTimeout(a.ctx, min(testEvery, time.Until(a.answerBy())))
		err := asSilence(n.commands.client.Ping(ctx).Err())
		cancel()
		a.locks.servers.note(err)
		switch isDown := isConnectionError(err); {
		case !isDown && outage:
			return true, errAskAgain
		case !isDown:
			inReach, a.contact = true, time.Now()
		case time.Until(a.end()) <= 0:
			return inReach, err
		default:
			outage = true
		}
		test.Reset(min(testEvery, max(time.Until(a.end()), 0)))
	}
}
