package slock

import (
	"context"
	"errors"
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

// block asks, and waits for the reply as long as the server is in reach. After an outage the request is asked again:
// nobody would tell a connection that has nothing to send that its server was restarted.
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
	sent, c := now(), newCall(time.Time{}, w)
	done := make(chan struct{})
	c.answered = func() { close(done) }
	c.late = a.late
	n.waits.start(c)
	a.queued = true
	tested, outage := false, false
	test := time.Now().Add(min(testAfter, time.Until(a.end())/3))
	for {
		_, err = await(a.ctx, done, earlier(a.waitBy(), test), nil, a.locks.ending.Done())
		if errors.Is(err, errNoAnswer) && !a.deadline.IsZero() && time.Until(a.waitBy()) <= 0 {
			a.note(err)
			err = a.over()
		}
		if !errors.Is(err, errNoAnswer) {
			break
		}
		ctx, cancel := context.WithTimeout(a.ctx, min(testEvery, time.Until(a.answerBy())))
		err = asSilence(n.commands.client.Ping(ctx).Err())
		cancel()
		s.note(err)
		isDown := isConnectionError(err)
		if !isDown {
			tested, a.contact, err = true, time.Now(), errAskAgain
		}
		if !isDown && outage || isDown && time.Until(a.end()) <= 0 {
			break
		}
		outage = isDown
		test = time.Now().Add(min(testEvery, max(time.Until(a.end()), 0)))
	}
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
