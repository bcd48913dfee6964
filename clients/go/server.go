// SPDX-License-Identifier: MIT OR Apache-2.0

package slock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// This file has one server behind a Transport: how a call to it ends in time, and what is sent until it is answered.

const (
	// silentAfter is how long a reply is waited for before the call is made once more.
	silentAfter = 500 * time.Millisecond
	// sharedStep is how much later than its limit a call may end.
	sharedStep = 250 * time.Millisecond
	// shortestPause is the time before a command is sent again, at least.
	shortestPause = 5 * time.Millisecond
	// replicasReply is how long one command waits for replicas, so that its reply comes before it would count as missing.
	replicasReply = silentAfter / 2
	// holdersReply is how long a call that has timed out waits to learn who has the lock.
	holdersReply = 250 * time.Millisecond
	// mostEnding is how many ends are on their way at once. During an outage the others cost their memory.
	mostEnding = 8
)

// errSilent is the error of a call to a server that says nothing.
var errSilent = errors.New("the connection is silent")

// telling is the later of two errors, unless it only says that nothing came in time.
func telling(last, err error) error {
	var slow net.Error
	if last != nil && (err == errSilent || errors.As(err, &slow) && slow.Timeout()) {
		return last
	}
	return err
}

// server is one server, or one cluster, as this package uses it.
type server struct {
	transport Transport
	topology  Topology
	settings  *settings
	report    *reporter
	listener  *listener
	closing   context.Context // done when Close begins
	running   *atomic.Int64   // what Close waits for
	shared    atomic.Pointer[shared]
	ending    chan struct{} // has room for the ends that are on their way
}

// replies are what came of a call.
type replies struct {
	reply, then any
	err         error         // nothing came
	sent        time.Duration // before the copy was sent that was answered
	alone       bool          // no other copy was sent
}

// try makes a call, and waits for the replies until a time, at most for RetryFor. Without a reply it is made once more: the
// connection may be silent, all connections of the program's pool may be in use, or its time limits too short.
func (s *server) try(ctx context.Context, until time.Time, call Call) replies {
	now := time.Now()
	sent, until := instant(now), earlier(until, now.Add(s.settings.retryFor))
	got := s.once(ctx, now.Add(max(shortestPause, min(silentAfter, until.Sub(now)/2))), call)
	if passes(got.err) && ctx.Err() == nil && time.Until(until) > shortestPause {
		sleep(ctx, ctx, shortestPause)
		call.Again = true
		again := s.once(ctx, until, call)
		again.err = telling(got.err, again.err)
		got = again
	}
	if ctx.Err() != nil { // also if it has a reply: the caller is told that it has left
		got.err = ctx.Err()
	} else {
		s.report.reached(got.err)
	}
	got.sent, got.alone = sent, time.Since(now) < min(s.topology.RepeatsAfter, shortestPause)
	return got
}

// once makes a call once. The Redis client library may go on for longer, and then nobody waits for it.
func (s *server) once(ctx context.Context, until time.Time, call Call) (got replies) {
	ctx, end := s.limited(ctx, until)
	defer end()
	if s.topology.Prompt {
		got = s.call(ctx, call)
	} else {
		came := make(chan replies, 1)
		go func() { came <- s.call(ctx, call) }()
		select {
		case got = <-came:
		case <-ctx.Done():
			got.err = errSilent
		}
	}
	if errors.Is(got.err, context.DeadlineExceeded) {
		got.err = errSilent
	}
	return got
}

func (s *server) call(ctx context.Context, call Call) (got replies) {
	got.reply, got.then, got.err = s.transport.Call(ctx, call)
	return got
}

// shared is the end of calls that the program cannot cancel. Those that end at about the same time share it, because each
// would take a timer.
type shared struct {
	context.Context
	at  time.Time
	end context.CancelFunc
}

// limited is a context that is over at a time, or a little later.
func (s *server) limited(ctx context.Context, until time.Time) (context.Context, context.CancelFunc) {
	if ctx.Done() != nil {
		return context.WithDeadline(ctx, until)
	}
	l := s.shared.Load()
	if l == nil || until.After(l.at) || l.at.Sub(until) > sharedStep {
		l = &shared{at: until.Add(sharedStep)}
		l.Context, l.end = context.WithDeadline(context.Background(), l.at)
		s.shared.Store(l)
	}
	return valued{l, ctx}, func() {}
}

// valued is a context with the values of another one.
type valued struct {
	context.Context
	values context.Context
}

func (v valued) Value(key any) any { return v.values.Value(key) }

// answer is the reply to a command that may have been sent several times.
type answer struct {
	number int64         // a fence, if the command asks for a lock
	sent   time.Duration // before the copy was sent that was answered; the validity counts from then
	alone  bool          // no other copy was sent
}

// number sends one command once, and the one that follows it, whose reply then counts. A reply that is no number, such as
// null, is 0.
func (s *server) number(ctx context.Context, until time.Time, call Call) (answer, error) {
	got := s.try(ctx, until, call)
	if len(call.Then) > 0 {
		got.reply = got.then
	}
	number, err := asNumber(got.reply, got.err)
	return answer{number, got.sent, got.alone}, err
}

// asNumber is the number of a reply, or the error that it is or that there is none.
func asNumber(reply any, err error) (int64, error) {
	if refusal, ok := reply.(error); ok {
		return 0, refusal
	}
	number, _ := reply.(int64)
	return number, err
}

// ask sends one command until it is answered, for a time, also after Close.
func (s *server) ask(ctx context.Context, names []string, limit time.Duration, call Call) (got answer, err error) {
	a := newAttempts(ctx, context.Background(), names, limit)
	err = a.run(func() (err error) {
		got, err = s.number(ctx, a.limit, call)
		return err
	})
	got.alone = got.alone && a.failures == 0
	return got, err
}

// allows gives the error of the server if it lets no hold last for the time of AtLeast. It asks once, by an extension for
// an owner token that holds nothing.
func (s *server) allows(ctx context.Context, until time.Time, names []string, least time.Duration) error {
	_, err := s.number(ctx, until, newOwner(names, s.settings.prefix, "").extend(least, 0, false))
	if code(err) == "ERR" {
		err = &ReplyError{fmt.Errorf("slock: AtLeast of %s: %w", least, err)}
	}
	return err
}

// holders are those of the first key that somebody holds, at most 10, or none if the server does not tell in time.
func (s *server) holders(ctx context.Context, keys []string) []Holder {
	until := time.Now().Add(holdersReply)
	for _, key := range keys {
		got := s.try(ctx, until, Call{Key: key, KeyAt: 1, Command: []any{"SLOCK.INFO", key, "FULL", "COUNT", 10}})
		if _, err := asNumber(got.reply, got.err); err != nil {
			break
		}
		if info := infoOf(got.reply); len(info.Holders) > 0 {
			return info.Holders
		}
	}
	return nil
}

// extend sends an extension, and waits for replicas if it has to.
func (s *server) extend(
	ctx context.Context, until time.Time, o owner, ttl time.Duration, fence int64, wanted *requestSettings,
) (extended answer, err error) {
	replicas, last := wanted.minReplicas, time.Now().Add(wanted.replicaTimeout)
	if replicas == 0 {
		return s.number(ctx, until, o.extend(ttl, fence, true))
	}
	for {
		// WAIT counts the replicas that have what its connection wrote last. An extension to the same millisecond would
		// write nothing, and any replica would do.
		call := o.extend(ttl+time.Millisecond, fence, true)
		call.Then = []any{"WAIT", replicas, milliseconds(max(min(time.Until(last), replicasReply), time.Millisecond))}
		got := s.try(ctx, until.Add(wanted.replicaTimeout), call)
		extended.sent = got.sent
		if extended.number, err = asNumber(got.reply, got.err); err != nil || extended.number == 0 {
			return extended, err
		}
		number, err := asNumber(got.then, nil)
		if err != nil || number >= int64(replicas) {
			return extended, err
		}
		if !time.Now().Before(last) {
			return extended, failure(ErrTooFewReplicas, o.names, fmt.Sprintf("%d of %d replicas acknowledged", number, replicas))
		}
	}
}

func (s *server) end(ctx context.Context, o owner, fence int64, after time.Duration) (bool, error) {
	call, within := o.ending(fence, after)
	got, err := s.ask(ctx, o.names, s.settings.retryFor, call)
	if errors.Is(err, ErrNoAnswer) || err != nil && ctx.Err() != nil {
		s.deliver(ctx, call, within)
	}
	whole := int64(len(o.keys))
	if after > 0 {
		whole = 1
	}
	// The server does not remember the end of a token of the program's: of two copies the second finds nothing.
	return got.number == whole || o.given && !got.alone, err
}

// deliver sends the end of an acquisition in the background until it is answered, for a time. During an outage most ends
// wait for their turn.
func (s *server) deliver(ctx context.Context, call Call, within time.Duration) {
	call.Reserved = true
	ctx, until := context.WithoutCancel(ctx), time.Now().Add(within)
	s.running.Add(1)
	go func() {
		defer s.running.Add(-1)
		for again := true; again; again = again && time.Now().Before(until) && s.closing.Err() == nil {
			s.ending <- struct{}{}
			_, err := s.ask(ctx, nil, min(max(s.settings.retryFor, leastOutage), time.Until(until)), call)
			<-s.ending
			again = errors.Is(err, ErrNoAnswer)
		}
	}()
}
