package slock

import (
	"errors"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// notify asks, and waits for the message that says how the wait ended. The first command goes without a wait,
// so that a program subscribes only when a request has to wait.
func (a *acquisition) notify() (int64, error) {
	key := a.owner.keys[0]
	channel := a.locks.listen.known(key)
	if channel == nil {
		if !a.refused {
			fence, err := a.send(a.ask, a.locks.server.send)
			if !errors.Is(err, errRefused) {
				return fence, err
			}
			a.refused = true
		}
		var err error
		if channel, err = a.locks.listen.open(key); err != nil {
			return 0, err
		}
	}
	defer a.locks.listen.leave(channel)
	select {
	case <-channel.ready:
	case <-channel.gone:
		return 0, a.afterLoss(channel)
	case <-a.ctx.Done():
		return 0, errLeft
	case <-a.locks.ending.Done():
		return 0, errLeft
	}
	return a.waitOn(channel)
}

func (a *acquisition) waitOn(channel *channel) (int64, error) {
	// The message may arrive before the null, so the tag is noted before the command is sent.
	tag, message := channel.note()
	defer channel.forget(tag)
	args, err := a.waitArgs()
	if err != nil {
		return 0, err
	}
	a.channel = channel
	fence, err := a.send(a.ask, a.locks.server.send, append(args, "NOTIFY", channel.name, tag)...)
	switch {
	case hasCode(err, "NOSUBSCRIBER"):
		a.locks.listen.lost(channel)
		a.locks.server.noticeError(err)
		return 0, errAskAgain
	case hasCode(err, "NOPERM") && strings.Contains(err.Error(), "channel"):
		a.locks.listen.denied.Store(true)
		return 0, errAskAgain
	case !errors.Is(err, redis.Nil):
		return fence, err
	}
	before := a.unknown
	a.queued()
	select {
	case answer := <-message:
		a.unknown = before
		return readMessage(answer)
	case <-channel.gone:
		return 0, a.afterLoss(channel)
	case <-a.ctx.Done():
	case <-a.locks.ending.Done():
	}
	return 0, errLeft
}

// queued notes that the request stands in the queue of the server.
func (a *acquisition) queued() {
	a.unknown = true
	a.last = nil
	a.pauses.reset()
}

// afterLoss is the error of a request whose channel was lost.
func (a *acquisition) afterLoss(channel *channel) error {
	select {
	case <-channel.ready:
		// It was subscribed: what ended it says nothing about this request.
		return errAskAgain
	default:
	}
	err := channel.reason()
	if hasCode(err, "NOPERM") {
		return errAskAgain // it blocks from now on
	}
	return err
}

// readMessage reads the first word of a message: a fence, 0, or the code of an error after a minus.
func readMessage(answer string) (int64, error) {
	if code, ok := strings.CutPrefix(answer, "-"); ok {
		return 0, serverError(code)
	}
	fence, err := strconv.ParseInt(answer, 10, 64)
	if err != nil {
		return 0, invalid("the message %q of the server is not understood", answer)
	}
	if fence == 0 {
		return 0, errRefused
	}
	return fence, nil
}
