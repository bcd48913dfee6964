package slock

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// giveUp takes the request and what it was granted off the server, in the background. A command that is on
// its way gets its answer first, because SLOCK.CANCEL does not withdraw what arrives after it.
func (a *acquisition) giveUp() {
	ctx := context.WithoutCancel(a.ctx)
	pending, blocked := a.pending, a.blocked
	a.givenUp = true
	a.locks.tokenTasks.run(&a.locks.background, a.owner.token, func() {
		answered := pending == nil
		if blocked {
			a.unblock(ctx, pending)
			answered = true
		} else if !answered {
			answered = isClosedWithin(pending, a.locks.settings.retryFor)
		}
		answer, lost, err := a.takeAway(ctx)
		if !answered {
			<-pending
			var again error
			answer, again, err = a.takeAway(ctx)
			lost = join(lost, again)
		}
		if pending != nil {
			a.unanswered.note(a.ttl, a.left.Err())
		}
		if err != nil && a.channel != nil {
			// The request may still wait. The server forgets it when nobody listens to its channel.
			a.locks.listen.lost(a.channel)
			a.channel.drop()
		}
		if a.withdrawn != nil {
			a.withdrawn(answer, lost)
		}
	})
}

// unblock makes the server answer a command that waits on a connection of its own. The command may reach the
// server after a SLOCK.CANCEL, so that is sent until the answer is there.
func (a *acquisition) unblock(ctx context.Context, pending <-chan struct{}) {
	var pauses backoff
	for {
		_ = a.locks.server.send(ctx, a.owner.cancel(ctx))
		if isClosedWithin(pending, pauses.next()) {
			return
		}
	}
}

func isClosedWithin(done <-chan struct{}, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// takeAway withdraws the request and then takes back what was granted, in this order on one connection. After
// the ttl nothing is left of a grant anyway. It gives the last command, the error of one of these that got no
// answer, and an error if the server may not have got them.
func (a *acquisition) takeAway(ctx context.Context) (last redis.Cmder, lost, err error) {
	end := time.Now().Add(a.ttl + a.locks.settings.retryFor)
	var pauses backoff
	for {
		commands := []redis.Cmder{a.owner.cancel(ctx)}
		if cmd, ok := a.withdraw(ctx); ok {
			commands = append(commands, cmd)
		}
		err := a.locks.server.sendAll(ctx, commands)
		last := commands[len(commands)-1]
		if mayRunLater(last.Err()) {
			lost = last.Err()
		}
		pause := pauses.next()
		if err == nil || time.Until(end) < pause {
			return last, lost, err
		}
		time.Sleep(pause)
	}
}

// sendAll sends commands in one go, on one connection if they are for one node. The error is that of one of
// them, or that of a hook that did not let them pass, if they may be sent again.
func (s server) sendAll(ctx context.Context, commands []redis.Cmder) error {
	pipeline := s.Pipeline()
	for _, cmd := range commands {
		_ = pipeline.Process(ctx, cmd)
	}
	_, passed := pipeline.Exec(ctx)
	for _, cmd := range commands {
		if err := cmd.Err(); isTemporary(err) {
			s.noticeError(err)
			return err
		}
	}
	if isTemporary(passed) {
		return passed
	}
	return nil
}
