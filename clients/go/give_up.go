package slock

import (
	"context"
	"errors"
	"time"
)

// This file has the ends on one server. A release names the fence, so that it does no harm when it arrives late. The end
// of an acquisition in doubt has the server withdraw what waits, refuse what comes later, and release what was given.
// It is sent whole until it is answered.

// over is the context of a call that nobody waits for.
func over() context.Context {
	ctx, end := context.WithCancel(context.Background())
	end()
	return ctx
}

// release ends what a server has given an owner.
func (l *Locks) release(ctx context.Context, o owner, ending lease) (bool, error) {
	inDoubt := ending.doubt || ending.changing // then the mode may be one that is only assumed
	isWhole := ending.reason == Gone && len(o.keys) == 1 && !inDoubt
	if ending.state == lost && (isWhole || o.given && inDoubt) {
		return false, nil // nothing is left, or the token may have a later hold by now
	}
	most := ending.ttl // then nothing is left
	if inDoubt && !o.given {
		most = refuseFor * time.Millisecond
	}
	end := func(ctx context.Context, limit time.Time) (int64, error) {
		if inDoubt {
			return l.end(ctx, limit, o, ending.fence)
		}
		return l.askOnce(ctx, limit, o, o.release(ending.mode, ending.fence))
	}
	began, r, err := time.Now(), reply{}, ctx.Err()
	if err == nil {
		r, err = l.repeat(ctx, "release", o, l.retryEnd(), end)
	}
	if errors.Is(err, ErrTimedOut) || err != nil && ctx.Err() != nil {
		l.background.run(func() { _, _ = l.repeat(context.Background(), "release", o, began.Add(most), end) })
	}
	// A 0 after a copy without an answer means that this copy released the hold, if it was valid then.
	return err == nil && (r.number == int64(len(o.keys)) || r.late && ending.until > now()), err
}

// giveUp ends the acquisition in the background. What a server that says nothing to that may keep waiting, it forgets when
// the connection closes that listens.
func (a *attempts) giveUp() {
	l, end := a.locks, time.Now().Add(refuseFor*time.Millisecond)
	if a.owner.given {
		end = earlier(end, time.Now().Add(a.wanted.ttl))
		go a.releaseLate(end)
	} else {
		a.forget()
	}
	send := func(ctx context.Context, limit time.Time) (int64, error) { return l.end(ctx, limit, a.owner, noFence) }
	l.background.run(func() {
		_, err := l.repeat(context.Background(), "release", a.owner, end, send)
		if errors.Is(err, ErrTimedOut) && code(err) == "" && a.channel != nil {
			a.channel.connection.close(err)
		}
	})
}

// releaseLate releases what the program's token is granted after the end, by its fence.
func (a *attempts) releaseLate(end time.Time) {
	defer a.forget()
	for {
		h, err := await(a.locks.closed, a.heard, end, nil, nil)
		if err != nil {
			return
		}
		if h.fence > 0 {
			_, _ = a.locks.ask(context.Background(), "release", a.owner, end, a.owner.release(a.mode, h.fence))
		}
	}
}

// end ends an acquisition in doubt, and tells how many keys that released. A token of the program's is released by its
// fence; when that is not the one that is known, it is asked again.
func (l *Locks) end(ctx context.Context, limit time.Time, o owner, fence int64) (int64, error) {
	for {
		answers, err := l.servers.send(ctx, limit, o.keys[0], o.end(fence)...)
		if err != nil {
			return 0, err
		}
		last := len(answers) - 1
		released, err := answers[last].Int64()
		if !o.given || released > 0 || err != nil {
			return released, err
		}
		write, _ := answers[last-2].Int64()
		read, _ := answers[last-1].Int64()
		if fence = max(write, read); fence == 0 {
			return 0, nil
		}
	}
}
