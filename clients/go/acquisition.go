package slock

import (
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
	// mostMessages is how many messages to one acquisition are kept.
	mostMessages = 16
)

type acquisition struct {
	locks *Locks
	owner owner
	mode  Mode // that is asked for
	ttl   time.Duration
	ask   words
	once  bool // ask once, without a wait

	upgrades bool // a hold: what is given up is not released

	minReplicas    int
	replicaTimeout time.Duration

	ctx      context.Context // the caller's
	deadline time.Time       // of the wait; zero: none
	byCaller bool            // whether that is the deadline of the caller's context
	limit    time.Time       // of a request that asks once, or has no answer yet

	contact    time.Time // when the server last answered; zero: it has not
	taken      bool      // the server has said that the lock is not free
	doubt      bool      // a command had no answer, so that something may be left on the server
	queued     bool      // it waits on the server, or has been granted and not handed out
	waitIsOver bool      // with the one answer
	sent       instant   // before the first command was sent that may have been granted
	tag        string
	messages   chan string
	channel    *channel // that the tag is known to; nil: none
	last       error    // after which it was asked again; nil after another answer
	failures   int      // temporary errors one after the other
}

// run asks until there is a grant or an error. On an error nothing is left on the server, or it is being taken off.
func (a *acquisition) run(ctx context.Context) (grant, error) {
	a.locks.background.count.Add(1)
	defer a.locks.background.count.Add(-1)
	a.ctx = ctx
	if ctx.Err() != nil || a.locks.ending.Err() != nil {
		return grant{}, a.left()
	}
	if end, ok := ctx.Deadline(); ok && (a.deadline.IsZero() || end.Before(a.deadline)) {
		a.deadline, a.byCaller = end, true
	}
	var g grant
	var err error
	if !a.upgrades {
		err = a.mayRelease()
	}
	if err == nil {
		g, err = a.attempts()
	}
	if a.channel != nil {
		a.channel.note(a.tag, nil)
	}
	if err == nil {
		g.doubt = a.doubt
		return g, nil
	}
	if a.isOpen() && !a.upgrades {
		a.locks.giveUp(a.owner, a.ttl, a.channel)
	}
	if errors.Is(err, errLeft) {
		err = a.left()
	}
	return grant{}, named(err)
}

// isOpen tells whether something may be left on the server.
func (a *acquisition) isOpen() bool { return a.doubt || a.queued }

// setTimes notes how long the acquisition may take.
func (a *acquisition) setTimes(began time.Time, s *requestSettings, once bool) {
	a.once, a.limit = once, began.Add(a.locks.settings.retryFor)
	switch {
	case once:
	case s.hasWait && s.wait == 0:
		a.once, a.waitIsOver, a.limit = true, true, began
	case s.hasWait:
		a.deadline = began.Add(s.wait)
	}
}

// attempts asks again and again, with the same token, as long as that makes sense.
func (a *acquisition) attempts() (grant, error) {
	for polls := 0; ; {
		fence, err := a.attempt()
		if err == nil {
			a.queued = true
			var g grant
			if g, err = a.confirm(fence); err == nil {
				return g, nil
			}
		}
		switch {
		case errors.Is(err, errTaken):
			if a.last = nil; a.once {
				return grant{}, err
			}
			if a.locks.settings.waiting != byPolling {
				return grant{}, a.over() // the wait has run out on the server, or was withdrawn there
			}
			err = a.poll(polls)
			polls++
		case isTemporary(err):
			a.note(err)
			err = a.pause()
		}
		if err != nil {
			return grant{}, err
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

// attempt asks, and waits as the settings say.
func (a *acquisition) attempt() (fence int64, err error) {
	switch {
	case a.once || a.locks.settings.waiting == byPolling:
		return a.send(a.ask)
	case a.locks.settings.waiting == byBlocking || a.locks.listener.isForbidden(a.owner.keys[0]):
		return a.block()
	}
	return a.notify()
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
	if a.sent == 0 || !a.doubt && !a.queued {
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
		r := &release{locks: a.locks, owner: a.owner, grant: grant{mode: a.mode, fence: fence}}
		r.until = now().add(a.ttl)
		a.locks.background.run(r.rest)
	}
}

// confirm makes sure of how long the hold is valid, and that enough replicas have it: the ttl began at a grant that may
// be long ago, if there was a wait.
func (a *acquisition) confirm(fence int64) (grant, error) {
	g := grant{mode: a.mode, fence: fence, sent: a.sent}
	if a.minReplicas == 0 && now().sub(a.sent) <= a.ttl/3 {
		return g, nil
	}
	commands, via, limit := []words{a.owner.extend(a.ttl, fence)}, forCommands, a.answerBy()
	if a.minReplicas > 0 {
		// It counts the replicas that have what its own connection wrote last: the extension.
		commands = append(commands, words{"WAIT", a.minReplicas, milliseconds(a.replicaTimeout)})
		via, limit = forWaits, time.Now().Add(a.replicaTimeout+lateAnswer)
	}
	g.sent = now()
	answers, err := a.locks.servers.pipeline(a.ctx, limit, a.owner.keys[0], via, commands...)
	if err != nil {
		return grant{}, err
	}
	held, err := answers[0].Int64()
	if err == nil && (held == 0 || now().sub(g.sent) >= oneServer.counted(a.ttl)) {
		a.sent, a.queued = 0, a.doubt
		err = errAskAgain // it is over by now
	}
	if err != nil || a.minReplicas == 0 {
		return g, err
	}
	replicas, err := answers[1].Int64()
	if err == nil && replicas < int64(a.minReplicas) {
		err = &failure{kind: ErrTooFewReplicas, text: fmt.Sprintf("%d of %d", replicas, a.minReplicas)}
	}
	return g, err
}

// end is until when the request is asked again while no answer comes.
func (a *acquisition) end() time.Time {
	end := a.limit
	if !a.once && !a.contact.IsZero() {
		end = a.contact.Add(a.locks.settings.retryWaitFor)
	}
	if !a.deadline.IsZero() && a.deadline.Before(end) {
		return a.deadline
	}
	return end
}

// answerBy is until when an answer is waited for.
func (a *acquisition) answerBy() time.Time { return a.end().Add(lateAnswer) }

// poll waits before the next attempt, or ends with an error.
func (a *acquisition) poll(polls int) error {
	pause, more := a.locks.settings.strategy.pause(polls)
	return a.sleep(pause, more && (a.deadline.IsZero() || time.Until(a.deadline) >= pause))
}

// pause waits before a request is asked again after an error, as long as its time lasts.
func (a *acquisition) pause() error {
	left := time.Until(a.end())
	pause, _ := afterErrors.pause(a.failures)
	a.failures++
	return a.sleep(min(pause, left), left > 0 && !a.waitIsOver)
}

func (a *acquisition) sleep(pause time.Duration, more bool) error {
	switch {
	case !more:
		return a.over()
	case !sleep(a.ctx, a.locks.ending, pause):
		return errLeft
	}
	return nil
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
	key, l := a.owner.keys[0], a.locks.listener
	c, err := l.use(key, a.taken)
	if c == nil && err == nil {
		fence, refused := a.send(a.ask)
		if !errors.Is(refused, errTaken) {
			return fence, refused
		}
		a.taken = true
		c, err = l.use(key, true)
	}
	if err != nil {
		return 0, err
	}
	defer l.leave(c)
	if c.isReady() {
		return a.waitOn(c)
	}
	timer := time.NewTimer(time.Until(a.answerBy()))
	defer timer.Stop()
	select {
	case <-c.ready:
		a.contact = time.Now()
		return a.waitOn(c)
	case <-c.gone.Done():
		return 0, a.afterLoss(c)
	case <-timer.C:
		return 0, errNoAnswer
	case <-a.ctx.Done():
	case <-a.locks.ending.Done():
	}
	return 0, errLeft
}

// listen has the messages of the acquisition come from the channel. The tag is the same for all copies of the
// request, so whichever of them is carried out, its message counts.
func (a *acquisition) listen(c *channel) {
	if a.channel == c {
		return
	}
	if a.channel != nil {
		a.channel.note(a.tag, nil)
	} else {
		a.tag, a.messages = newToken(), make(chan string, mostMessages)
	}
	a.channel = c
	c.note(a.tag, a.messages)
}

// waitOn asks with the tag, and waits for its message.
func (a *acquisition) waitOn(c *channel) (int64, error) {
	a.listen(c) // the message may arrive before the null
	w, err := a.waiting("NOTIFY", c.name, a.tag)
	if err != nil {
		return 0, err
	}
	fence, err := a.send(w)
	switch {
	case err == nil:
		return fence, nil
	case hasCode(err, "NOSUBSCRIBER"):
		a.locks.listener.lost(c)
		return 0, err
	case hasCode(err, "NOPERM") && isAboutChannels(err):
		a.locks.listener.forbid(err)
		return 0, errAskAgain
	case !errors.Is(err, redis.Nil):
		return fence, err
	}
	a.queued, a.last = true, nil
	a.failures = 0
	var over, again <-chan time.Time
	if !a.deadline.IsZero() {
		timer := time.NewTimer(time.Until(a.deadline.Add(lateAnswer)))
		defer timer.Stop()
		over = timer.C
	}
	if a.doubt {
		again = time.After(askInDoubt)
	}
	select {
	case message := <-a.messages:
		fence, err := readMessage(message)
		if a.contact = time.Now(); err == nil && fence == 0 {
			err = errTaken
		}
		a.queued = fence > 0
		return fence, err
	case <-c.gone.Done():
		a.contact = time.Now()
		return 0, a.afterLoss(c)
	case <-over:
		a.note(errNoAnswer)
		return 0, a.over()
	case <-again:
		return 0, errAskAgain
	case <-a.ctx.Done():
	case <-a.locks.ending.Done():
	}
	return 0, errLeft
}

// afterLoss is the error of a request whose channel was lost.
func (a *acquisition) afterLoss(c *channel) error {
	// What ended a channel that was ready says nothing about this request. After NOPERM it blocks.
	if err := context.Cause(c.gone); !c.isReady() && !hasCode(err, "NOPERM") {
		return err
	}
	return errAskAgain
}
