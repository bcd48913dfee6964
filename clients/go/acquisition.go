package slock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file has one use of a request, or one upgrade of a hold, from its first command to a grant or an error: its
// limits of time, its pauses, and what each answer leads to.

const (
	// lateAnswer is how long after the end of its time a call still takes the answer of the server.
	lateAnswer = 700 * time.Millisecond
	// earlyAnswer is how long before the end of a wait the server may end it, because it counts in milliseconds.
	earlyAnswer = 2 * time.Millisecond
	// longestWait is the longest that the server takes.
	longestWait = 365 * 24 * time.Hour
	// askInDoubt is how often a request that waits asks again while a command of it has no answer: that one may
	// arrive late, and then it is the request.
	askInDoubt = 5 * time.Second
)

// acquisition is what was asked for, and what is known so far. All its attempts have one token and one tag, so
// whichever of them is carried out, its answer counts.
type acquisition struct {
	locks    *Locks
	owner    owner
	wanted   requestSettings
	mode     Mode // that is asked for
	ask      words
	upgrades bool // a hold: what is given up is not released

	ctx      context.Context // the caller's
	once     bool            // ask once, without a wait
	deadline time.Time       // of the wait; zero: none
	byCaller bool            // whether that is the deadline of the caller's context
	limit    time.Time       // of a request that asks once, or has no answer yet

	contact  time.Time // when the server last answered; zero: it has not
	doubt    bool      // a command had no answer, so that something may be left on the server
	queued   bool      // it waits on the server, or has been granted and not handed out
	sent     instant   // before the first command was sent that may have been granted
	refused  bool      // others had the lock, so it needs a channel
	channel  *channel  // that it waits by; nil: none
	tag      string    // of its messages
	messages <-chan string
	last     error // after which it was asked again; nil after another answer
	failures int   // temporary errors one after the other
}

func (l *Locks) acquisition(o owner, mode Mode, wanted requestSettings, once bool) *acquisition {
	began := time.Now()
	a := &acquisition{locks: l, owner: o, mode: mode, wanted: wanted}
	a.limit = began.Add(cmp.Or(wanted.retryFor, l.settings.retryFor))
	a.once = once || wanted.hasWait && wanted.wait == 0
	if wanted.hasWait && !once {
		a.deadline = began.Add(wanted.wait)
	}
	return a
}

// run asks until there is a grant or an error. On an error nothing is left on the server, or it is being taken off.
func (a *acquisition) run(ctx context.Context) (grant, error) {
	a.locks.background.count.Add(1)
	defer a.locks.background.count.Add(-1)
	a.ctx = ctx
	if end, ok := ctx.Deadline(); ok && (a.deadline.IsZero() || end.Before(a.deadline)) {
		a.deadline, a.byCaller = end, true
	}
	g, err := grant{}, errLeft
	if ctx.Err() == nil && a.locks.ending.Err() == nil {
		g, err = a.attempts()
	}
	if a.tag != "" {
		a.locks.listener.removeTag(a.tag)
	}
	if err == nil {
		g.doubt = a.doubt
		return g, nil
	}
	if a.isOpen() && !a.upgrades {
		a.locks.giveUp(a.owner, a.wanted.ttl, a.channel)
	}
	if errors.Is(err, errLeft) {
		err = a.left()
	}
	return grant{}, named(err)
}

// isOpen tells whether something may be left on the server.
func (a *acquisition) isOpen() bool { return a.doubt || a.queued }

// attempts asks again and again, with the same token, as long as that makes sense.
func (a *acquisition) attempts() (g grant, err error) {
	if !a.upgrades {
		if err := a.mayRelease(); err != nil {
			return grant{}, err
		}
	}
	s := &a.locks.settings
	for polls := 0; ; {
		var fence int64
		switch {
		case a.once || s.waiting == byPolling:
			fence, err = a.send(a.ask)
		case s.waiting == byBlocking || a.locks.listener.isForbidden(a.owner.keys[0]):
			fence, err = a.block()
		default:
			fence, err = a.notify()
		}
		if err == nil {
			a.queued = true
			if g, err = a.confirm(fence); err == nil {
				return g, nil
			}
		}
		var pause time.Duration
		var more bool
		switch left := time.Until(a.end()); {
		case errors.Is(err, errTaken) && a.once:
			return grant{}, err
		case errors.Is(err, errTaken):
			// Else the wait has run out on the server, or was withdrawn there.
			a.last = nil
			if s.waiting == byPolling {
				pause, more = s.strategy.pause(polls)
				more = more && (a.deadline.IsZero() || time.Until(a.deadline) >= pause)
				polls++
			}
		case isTemporary(err):
			a.note(err)
			pause, _ = afterErrors.pause(a.failures)
			pause, more = min(pause, left), left > 0
			a.failures++
		default:
			return grant{}, err
		}
		if !more {
			return grant{}, a.over()
		}
		if !sleep(a.ctx, a.locks.ending, pause) {
			return grant{}, errLeft
		}
	}
}

// mayRelease asks, before anything is held, whether the user may release what is asked for: a token that nobody has
// asks for the end of a hold that nobody has. After any answer but NOPERM it does not ask again.
func (a *acquisition) mayRelease() error {
	release := a.owner.release(a.mode, 1)[0]
	if _, ok := a.locks.permitted.Load(release); ok {
		return nil
	}
	o := owner{keys: a.owner.keys, token: newToken(), given: true}
	commands := append(o.cancel(), o.release(a.mode, 1))
	answers, err := a.locks.servers.pipeline(a.ctx, a.answerBy(), o.keys[0], forCommands, commands...)
	for _, answer := range answers {
		if hasCode(answer.Err(), "NOPERM") {
			return answer.Err()
		}
	}
	if errors.Is(err, errLeft) {
		return err
	}
	if a.note(err); err == nil {
		a.locks.permitted.Store(release, true)
	}
	return nil
}

// note keeps an error after which the request is asked again. One that says only that nothing came tells the least.
func (a *acquisition) note(err error) {
	if isTemporary(err) && !errors.Is(err, errAskAgain) && (a.last == nil || !isSilence(err)) {
		a.last = err
	}
}

// send sends one command, and gives its fence, errTaken for 0, or redis.Nil for null.
func (a *acquisition) send(w words) (int64, error) {
	sent, c := now(), newCall(a.answerBy(), w)
	c.late = a.late
	fence, err := a.locks.servers.send(a.ctx, a.owner.keys[0], c)
	return a.answer(sent, fence, err)
}

// answer notes what an answer says of the acquisition.
func (a *acquisition) answer(sent instant, fence int64, err error) (int64, error) {
	if mayRunLater(err) {
		a.doubt = true
	}
	if a.sent == 0 || !a.isOpen() {
		a.sent = sent // else an earlier copy may be the one that is granted
	}
	if !isConnectionError(err) && !errors.Is(err, errLeft) {
		a.contact = time.Now()
	}
	if err == nil && fence == 0 {
		err = errTaken
	}
	return fence, err
}

// late takes an answer that came when the acquisition was over. With a token of its own the server has taken off
// what it gave. Else the fence tells what to release.
func (a *acquisition) late(fence int64, err error) {
	if a.owner.given && err == nil && fence > 0 {
		a.locks.background.run(func() {
			end := time.Now().Add(a.wanted.ttl)
			_, _, _ = a.locks.ask(context.Background(), "release", a.owner, end, a.owner.release(a.mode, fence))
		})
	}
}

// confirm makes sure of how long the hold is valid, and that enough replicas have it: the ttl began at a grant that may
// be long ago, if there was a wait.
func (a *acquisition) confirm(fence int64) (grant, error) {
	g, ttl, replicas := grant{mode: a.mode, fence: fence, sent: a.sent}, a.wanted.ttl, a.wanted.minReplicas
	if replicas == 0 && now().sub(a.sent) <= ttl/3 {
		return g, nil
	}
	commands, via, limit := []words{a.owner.extend(ttl, fence)}, forCommands, a.answerBy()
	if replicas > 0 {
		// It counts the replicas that have what its own connection wrote last: the extension.
		commands = append(commands, words{"WAIT", replicas, milliseconds(a.wanted.replicaTimeout)})
		via, limit = forWaits, time.Now().Add(a.wanted.replicaTimeout+lateAnswer)
	}
	g.sent = now()
	answers, err := a.locks.servers.pipeline(a.ctx, limit, a.owner.keys[0], via, commands...)
	if err != nil {
		return grant{}, err
	}
	held, err := answers[0].Int64()
	if err == nil && (held == 0 || now().sub(g.sent) >= oneServer.counted(ttl)) {
		a.sent, a.queued = 0, a.doubt
		err = errAskAgain // it is over by now
	}
	if err != nil || replicas == 0 {
		return g, err
	}
	confirmed, err := answers[1].Int64()
	if err == nil && confirmed < int64(replicas) {
		err = &failure{kind: ErrTooFewReplicas, text: fmt.Sprintf("%d of %d", confirmed, replicas)}
	}
	return g, err
}

// end is until when the request is asked again while no answer comes.
func (a *acquisition) end() time.Time {
	end := a.limit
	if !a.once && !a.contact.IsZero() {
		end = a.contact.Add(a.locks.settings.retryWaitFor)
	}
	return earlier(a.deadline, end)
}

// earlier is the earlier of two times, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if b.IsZero() || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}

// answerBy is until when an answer is waited for.
func (a *acquisition) answerBy() time.Time { return a.end().Add(lateAnswer) }

// waitBy is until when the end of a wait is waited for; zero: without end.
func (a *acquisition) waitBy() time.Time {
	if a.deadline.IsZero() {
		return a.deadline
	}
	return a.deadline.Add(lateAnswer)
}

// over is the error when the wait is over, with the last error before.
func (a *acquisition) over() error {
	cause := a.last
	// Somebody may also have withdrawn the request before the end of its wait.
	if a.byCaller && time.Until(a.deadline) < earlyAnswer {
		cause = errors.Join(context.DeadlineExceeded, a.last)
	}
	return timedOut("lock", a.owner.keys, cause)
}

// left is the error of a wait that the client ended.
func (a *acquisition) left() error {
	last := a.last
	if last == nil && a.doubt {
		last = errNoAnswer
	}
	return leftBy(a.ctx, a.locks.ending, a.owner.keys, last)
}

// leftBy is the error of a wait that the client ended. The last error before may be nil.
func leftBy(ctx, ending context.Context, keys []string, last error) error {
	err := ctx.Err()
	switch cause := context.Cause(ctx); {
	case err == nil && ending.Err() != nil:
		return ErrClosed
	case err == nil || errors.Is(err, context.DeadlineExceeded):
		return timedOut("lock", keys, errors.Join(err, last))
	case !errors.Is(cause, err):
		return errors.Join(err, cause)
	}
	return err
}

// waiting adds WAIT and what is left of the wait to the command. The server takes 0 as a wait without end.
func (a *acquisition) waiting(rest ...any) (words, error) {
	wait := int64(0)
	if !a.deadline.IsZero() {
		left := time.Until(a.deadline)
		if left <= 0 {
			return nil, a.over()
		}
		wait = milliseconds(min(left, longestWait))
	}
	w := append(make(words, 0, len(a.ask)+5), a.ask...)
	return append(append(w, "WAIT", wait), rest...), nil
}

// notify asks, and waits for the message that says how the wait ended. As long as there is no subscription, the
// first command goes without a wait, so that a program subscribes only when a request has to wait.
func (a *acquisition) notify() (int64, error) {
	l := a.locks.listener
	c, err := l.channel(a.owner.keys[0], a.refused)
	if c == nil && err == nil {
		fence, err := a.send(a.ask)
		if a.refused = errors.Is(err, errTaken); !a.refused {
			return fence, err
		}
		return a.notify()
	}
	if err != nil {
		return 0, err
	}
	if a.tag == "" {
		a.tag, a.messages = l.addTag() // the message may arrive before the null
	}
	a.channel = c
	if !c.isReady() {
		_, err := await(a.ctx, c.ready, a.answerBy(), c.gone.Done(), a.locks.ending.Done())
		// After NOPERM it blocks.
		if cause := context.Cause(c.gone); errors.Is(err, errAskAgain) && !hasCode(cause, "NOPERM") {
			err = cause
		}
		if err != nil {
			return 0, err
		}
		a.contact = time.Now()
	}
	w, err := a.waiting("NOTIFY", c.name, a.tag)
	if err != nil {
		return 0, err
	}
	fence, err := a.send(w)
	switch {
	case hasCode(err, "NOSUBSCRIBER"):
		l.remove(c, err)
		return 0, err
	case hasCode(err, "NOPERM") && isAboutChannels(err):
		l.forbid(err)
		return 0, errAskAgain
	case !errors.Is(err, redis.Nil):
		return fence, err
	}
	a.queued, a.last, a.failures = true, nil, 0
	until := a.waitBy()
	if a.doubt {
		until = earlier(until, time.Now().Add(askInDoubt))
	}
	message, err := await(a.ctx, a.messages, until, c.gone.Done(), a.locks.ending.Done())
	switch {
	case err == nil:
		fence, err = readMessage(message)
		if a.contact = time.Now(); err == nil && fence == 0 {
			err = errTaken
		}
		a.queued = fence > 0
		return fence, err
	case errors.Is(err, errAskAgain): // what ended the channel says nothing about this request
		a.contact = time.Now()
	case errors.Is(err, errNoAnswer) && until.Equal(a.waitBy()):
		a.note(err)
		err = a.over()
	case errors.Is(err, errNoAnswer):
		err = errAskAgain
	}
	return 0, err
}
