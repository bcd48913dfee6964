package slock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file has the attempts of an acquisition at one server: each sends its command, and waits for what comes of it. All
// have one token and one tag, so whichever of them is carried out, its answer counts.

const (
	// askInDoubt is how often a request that waits asks again while a command of it has no answer: that one may arrive
	// late, and then it is the request.
	askInDoubt = 5 * time.Second
	// testEvery is how often a server is tested on which a command blocks, and how long the answer may take.
	testEvery = 5 * time.Second
)

type attempts struct {
	acquisition
	locks  *Locks
	owner  owner
	wanted *requestSettings
	mode   Mode // that is asked for
	ask    words

	doubt   bool       // a command had no answer, so that something may be left on the server
	queued  bool       // it waits on the server, or has been granted and not handed out
	sent    instant    // before the first command was sent that may have been granted
	refused bool       // others had the lock, so it has to wait
	channel *channel   // that it waits by; nil: none
	tag     string     // of its messages
	heard   chan heard // what came
	granted reply      // if it was
}

// heard is an answer, or a message.
type heard struct {
	to    *call // nil: a message
	fence int64
	err   error // redis.Nil: a message will come
}

func (l *Locks) attempts(ctx context.Context, o owner, mode Mode, wanted *requestSettings, ask words, try bool) *attempts {
	return &attempts{
		acquisition: l.acquisition(ctx, o.keys, wanted, try),
		locks:       l, owner: o, mode: mode, wanted: wanted, ask: ask, heard: make(chan heard, mostMessages),
	}
}

// isOpen tells whether something may be left on the server.
func (a *attempts) isOpen() bool { return a.doubt || a.queued }

// forget has no more messages come.
func (a *attempts) forget() {
	if a.tag != "" {
		a.locks.listener.removeTag(a.tag)
	}
}

// attempt asks once, and makes sure of what it is given.
func (a *attempts) attempt() error {
	fence, err := a.send()
	if err != nil {
		return err
	}
	return a.confirm(fence)
}

// way is how to ask: by notify, by blocking, or by polling, which does not wait. The last is also how a request is
// asked first, so that only one that has to wait needs a channel or a connection of its own. Where there is a channel
// it is used at once.
func (a *attempts) way(mayWait bool) (way waiting, err error) {
	switch {
	case !mayWait:
		return byPolling, nil
	case a.locks.settings.waiting == byNotify && !a.locks.listener.isForbidden(a.keys[0]):
		way = byNotify
		a.channel, err = a.listen()
	default:
		way = byBlocking
	}
	if !a.refused && (way == byBlocking || a.channel == nil) {
		way = byPolling
	}
	return way, err
}

// send sends the command, and gives its fence, or errTaken for 0.
func (a *attempts) send() (int64, error) {
	l := a.locks
	mayWait := !a.once && l.settings.waiting != byPolling
	way, err := a.way(mayWait)
	if err != nil {
		return 0, err
	}
	limit, w := a.answerBy(), a.ask
	n, err := l.servers.find(a.ctx, limit, a.keys[0])
	if err != nil {
		return 0, err
	}
	switch way {
	case byNotify:
		if a.tag == "" {
			a.tag = l.listener.addTag(a.heard)
		}
		w = slices.Concat(w, a.rest(), words{"NOTIFY", a.channel.name, a.tag})
	case byBlocking:
		limit, w = time.Time{}, slices.Concat(w, a.rest())
	}
	c := newCall(limit, w)
	c.answered = func() { a.hear(c) }
	if a.sent == 0 || !a.isOpen() { // else an earlier copy may be the one that is granted
		a.sent = now()
	}
	n.start(c, a.ctx.Done() == nil)
	fence, err := a.await(n, c, way)
	c.isLeft.Store(true)
	switch {
	case way == byPolling && mayWait && errors.Is(err, errTaken):
		a.refused = true
		return a.send()
	case way == byNotify && hasCode(err, "NOSUBSCRIBER"):
		l.listener.remove(a.channel, err)
	case way == byNotify && hasCode(err, "NOPERM") && isAboutChannels(err):
		l.listener.forbid(err)
		err = errAskAgain
	}
	return fence, err
}

// rest is what is left of the wait. The server takes 0 as a wait without end.
func (a *attempts) rest() words {
	if a.deadline.IsZero() {
		return words{"WAIT", 0}
	}
	return words{"WAIT", milliseconds(min(max(time.Until(a.deadline), 1), longestWait))}
}

// listen gives a channel that is ready, or none for a request that was not refused.
func (a *attempts) listen() (*channel, error) {
	c := a.locks.listener.channel(a.keys[0], a.refused)
	if c == nil || c.ready.Err() != nil {
		return c, nil
	}
	_, err := await(a.ctx, c.ready.Done(), a.answerBy(), c.gone.Done(), a.ending.Done())
	// After NOPERM it blocks.
	if cause := context.Cause(c.gone); errors.Is(err, errAskAgain) && !hasCode(cause, "NOPERM") {
		err = cause
	}
	if err != nil {
		return nil, err
	}
	a.contact = time.Now()
	return c, nil
}

// hear takes an answer.
func (a *attempts) hear(c *call) {
	fence, err := c.commands[0].Int64()
	a.locks.servers.note(err)
	if fence == 0 && c.isLeft.Load() {
		return // of an older copy only a grant counts
	}
	select {
	case a.heard <- heard{to: c, fence: fence, err: err}:
	default: // nobody takes what comes: the request is over
	}
}

// test asks a server on which a command blocks whether it is there.
func (a *attempts) test(n *node) error {
	ctx, end := context.WithCancel(a.ctx)
	defer end()
	defer context.AfterFunc(a.ending, end)()
	limit := earlier(a.outageEnd().Add(lateAnswer), time.Now().Add(testEvery))
	_, err := n.ask(ctx, earlier(a.waitBy(), limit), words{"PING"})
	return err
}

// await waits for the answer, and after a null for the message. While the command blocks it tests the server: no reply is
// too late there, and nobody would tell a connection that has nothing to send that its server was restarted.
func (a *attempts) await(n *node, c *call, way waiting) (int64, error) {
	var gone <-chan struct{}
	if way == byNotify {
		gone = a.channel.gone.Done()
	}
	wasThere := way == byBlocking && !a.doubt // the server on which the command blocks
	for until, isNull := c.limit, false; ; {
		if way == byBlocking {
			until = earlier(earlier(a.waitBy(), a.outageEnd()), time.Now().Add(testEvery))
		}
		h, err := await(a.ctx, a.heard, until, gone, a.ending.Done())
		switch {
		case err == nil && h.to != nil && h.to != c && h.fence == 0:
			continue // of an older copy
		case err == nil && h.err == redis.Nil:
			isNull, a.queued, a.last, a.failures, a.contact = true, true, nil, 0, time.Now()
			if until = a.waitBy(); a.doubt {
				until = earlier(until, time.Now().Add(askInDoubt))
			}
			continue
		case err == nil:
			return a.answer(h, wasThere)
		case errors.Is(err, errAskAgain): // what ended the channel says nothing about this request
			// The server may not have noticed yet, and grant what waits there.
			a.doubt, a.contact = true, time.Now()
		case !errors.Is(err, errNoAnswer) || !isNull && way != byBlocking:
		case !a.deadline.IsZero() && time.Until(a.waitBy()) <= 0:
			a.note(err)
			err = a.over(0)
		case isNull:
			return 0, errAskAgain
		default:
			if err = a.test(n); !isConnectionError(err) && !errors.Is(err, errLeft) {
				wasThere, a.contact = true, time.Now()
				continue
			}
		}
		a.doubt = a.doubt || !isNull
		return 0, err
	}
}

// answer notes what an answer says of the acquisition. A server on which the command blocked was there until then.
func (a *attempts) answer(h heard, wasThere bool) (int64, error) {
	if mayRunLater(h.err) {
		a.doubt = true
	}
	if !isConnectionError(h.err) || wasThere && mayRunLater(h.err) {
		a.contact = time.Now()
	}
	a.queued = h.fence > 0
	if h.err == nil && h.fence == 0 {
		h.err = errTaken
	}
	return h.fence, h.err
}

// confirm makes sure of how long the hold is valid, and that enough replicas have it: the ttl began at a grant that may
// be long ago, if there was a wait.
func (a *attempts) confirm(fence int64) error {
	ttl, replicas := a.wanted.ttl, a.wanted.minReplicas
	a.granted = reply{number: fence, sent: a.sent, late: a.doubt}
	if replicas == 0 && now().sub(a.sent) <= ttl/3 {
		return nil
	}
	commands, limit := []words{a.owner.extend(ttl, fence)}, a.answerBy()
	if replicas > 0 {
		// It counts the replicas that have what its own connection wrote last: the extension. To the same millisecond
		// that would write nothing, and any replica would do.
		wait := words{"WAIT", replicas, milliseconds(a.wanted.replicaTimeout)}
		commands = []words{a.owner.extend(ttl+time.Millisecond, fence), wait}
		limit = time.Now().Add(a.wanted.replicaTimeout + lateAnswer)
	}
	a.granted.sent = now()
	answers, err := a.locks.servers.send(a.ctx, limit, a.keys[0], commands...)
	if err != nil {
		return err
	}
	held, err := answers[0].Int64()
	if err == nil && (held == 0 || now().sub(a.granted.sent) >= oneServer.counted(ttl)) {
		a.sent, a.queued = 0, a.doubt
		err = errAskAgain // it is over by now
	}
	if err != nil || replicas == 0 {
		return err
	}
	confirmed, err := answers[1].Int64()
	if err == nil && confirmed < int64(replicas) {
		err = &failure{kind: ErrTooFewReplicas, text: fmt.Sprintf("%d of %d", confirmed, replicas)}
	}
	return err
}
