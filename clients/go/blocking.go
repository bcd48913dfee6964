package slock

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file has a wait on a connection of its own. No reply there is too late, so other commands tell whether the
// server is in reach.

const (
	// testAfter is how long after the beginning of a wait the server is tested first.
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
	ctx, cancel := context.WithDeadline(context.Background(), a.answerBy())
	defer cancel()
	s := a.locks.servers
	n, err := s.node(ctx, a.owner.keys[0])
	if err != nil {
		s.note(err)
		return 0, err
	}
	sent := now()
	cmd := redis.NewCmd(context.Background(), w...)
	done, left := make(chan struct{}), make(chan struct{})
	go func() {
		_ = n.waits.Process(context.Background(), cmd)
		close(done)
		select {
		case <-left:
			if fence, err := cmd.Int64(); err == nil {
				a.late(fence)
			}
		default:
		}
	}()
	a.queued = true
	if err := a.awaitReply(n, done); err != nil {
		close(left)
		a.doubt = true
		return a.answer(sent, 0, err)
	}
	fence, err := cmd.Int64()
	s.note(err)
	fence, err = a.answer(sent, fence, err)
	a.queued = err == nil
	return fence, err
}

// awaitReply waits for the reply as long as the server is in reach. After an outage the request is asked again:
// nobody would tell a connection that has nothing to send that its server was restarted.
func (a *acquisition) awaitReply(n *node, done <-chan struct{}) error {
	var over <-chan time.Time
	if !a.deadline.IsZero() {
		timer := time.NewTimer(time.Until(a.deadline.Add(lateAnswer)))
		defer timer.Stop()
		over = timer.C
	}
	test := time.NewTimer(testAfter)
	defer test.Stop()
	outage := false
	for {
		select {
		case <-done:
			return nil
		case <-over:
			a.note(errNoAnswer)
			return a.over()
		case <-a.ctx.Done():
			return errLeft
		case <-a.locks.ending.Done():
			return errLeft
		case <-test.C:
		}
		ctx, cancel := context.WithTimeout(a.ctx, testEvery)
		err := n.commands.Ping(ctx).Err()
		cancel()
		switch a.locks.servers.note(err); {
		case !isConnectionError(err) && outage:
			return errAskAgain
		case !isConnectionError(err):
			a.contact = time.Now()
		case time.Until(a.end()) <= 0:
			return err
		default:
			outage = true
		}
		test.Reset(testEvery)
	}
}
