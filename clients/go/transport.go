package slock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// This file has the one interface to Redis client libraries, and how a call over it ends in time.

// Transport is what a Locks needs of a Redis client library: New makes one of a client of go-redis. Other packages have
// one for rueidis and valkey-go, and slocktest has one that needs no server.
type Transport interface {
	// Call sends a command, and returns its reply and that of the command that follows it: int64, string, nil, []any,
	// map[any]any, or a *ReplyError. The error means that a reply is missing. It may send a command more than once, and
	// what was sent may be carried out later.
	Call(ctx context.Context, call Call) (reply, then any, err error)
	// Listen subscribes to a channel by SSUBSCRIBE, on the primary that has the channel's slot, and hands on each message.
	// When the server has confirmed the subscription, and whenever a message may have been missed, it hands on that with
	// ok false. It does not wait for the server, and may be called for a channel again after stop.
	Listen(channel string, heard func(message string, ok bool)) (stop func())
	// Topology describes the servers. The error says why the client cannot be used.
	Topology() (Topology, error)
	// Close ends what the Transport has made. The program's client stays open, and Call goes on over it.
	Close()
}

// Call is what a Transport sends.
type Call struct {
	// Key is a key of the command, and tells which primary has to have it. If it is empty, the command goes to each
	// primary, and the reply is a []any of theirs.
	Key string
	// KeyAt is the position of the key in the command, counted from 0 for the name.
	KeyAt int8
	// Command is the command with its arguments.
	Command []any
	// Then is a command that follows over the same connection, if it is not empty.
	Then []any
	// Reserved asks for a connection that the program's own commands cannot occupy.
	Reserved bool
	// Again is whether the same call had no reply, perhaps because its connection is silent: it asks for another one.
	Again bool
}

// Topology describes the servers behind a Transport.
type Topology struct {
	// Name is the address for texts of errors.
	Name string
	// Cluster is whether keys and channels belong to slots.
	Cluster bool
	// Failover is whether another server, which may lack some locks, can take over while the former one still replies, as
	// with Sentinel. Then Locks listens while there are holds, and confirms them when a message may have been missed.
	Failover bool
	// Prompt is whether Call returns within a second after ctx is over. Otherwise each call takes a goroutine.
	Prompt bool
	// RepeatsAfter is the shortest time after which Call may have sent a command again. If it is zero, a request that was
	// refused is always ended by a command, because a copy of it may still arrive.
	RepeatsAfter time.Duration
}

// ReplyError is an error reply of the server, whose text begins with the code, or an error of the Redis client library
// that stays, for example because the program has closed its client.
type ReplyError struct{ Err error }

func (e *ReplyError) Error() string { return e.Err.Error() }

// Unwrap is the error of the Redis client library.
func (e *ReplyError) Unwrap() error { return e.Err }

const (
	// silentAfter is how long a reply is waited for before the call is made once more.
	silentAfter = 500 * time.Millisecond
	// sharedStep is how much later than its limit a call may end.
	sharedStep = 250 * time.Millisecond
	// shortestPause is the time before a command is sent again, at least.
	shortestPause = 5 * time.Millisecond
)

// server is one server, or one cluster, as this package uses it.
type server struct {
	transport Transport
	topology  Topology
	settings  *settings
	report    *reporter
	listener  *listener
	ends      ends
	shared    atomic.Pointer[shared]
	closing   context.Context // done when Close begins
}

// replies are what came of a call.
type replies struct {
	reply, then any
	err         error // nothing came
}

// try makes a call, and waits for the replies until a time. Without a reply it is made once more: the connection may be
// silent, all connections of the program's pool may be in use, or its time limits too short. The error is errLeft if ctx
// was over before.
func (s *server) try(ctx context.Context, until time.Time, call Call) (replies, error) {
	if ctx.Err() != nil {
		return replies{}, errLeft
	}
	now := time.Now()
	got := s.once(ctx, now.Add(max(shortestPause, min(silentAfter, until.Sub(now)/2))), call)
	if passes(got.err) && ctx.Err() == nil && time.Until(until) > shortestPause {
		sleep(ctx, ctx, shortestPause)
		call.Again = true
		if again := s.once(ctx, until, call); again.err != errSilent {
			got = again
		}
	}
	if ctx.Err() != nil { // also if it has a reply: the caller is told that it has left
		return got, errLeft
	}
	s.report.reached(got.err)
	return got, got.err
}

// once makes a call once. The Redis client library may go on for longer, and then nobody waits for it.
func (s *server) once(ctx context.Context, until time.Time, call Call) (got replies) {
	limited, end := s.limited(ctx, until)
	defer end()
	if s.topology.Prompt {
		got.reply, got.then, got.err = s.transport.Call(limited, call)
	} else {
		came := make(chan replies, 1)
		go func() {
			var r replies
			r.reply, r.then, r.err = s.transport.Call(limited, call)
			came <- r
		}()
		select {
		case got = <-came:
		case <-limited.Done():
			got.err = errSilent
		}
	}
	if errors.Is(got.err, context.DeadlineExceeded) {
		got.err = errSilent
	}
	return got
}

// shared is the end of calls that the program cannot cancel. Those that end at about the same time share it, because each
// would take a timer.
type shared struct {
	context.Context
	end context.CancelFunc
}

// limited is a context that is over at a time, or a little later.
func (s *server) limited(ctx context.Context, until time.Time) (context.Context, context.CancelFunc) {
	if ctx.Done() != nil {
		return context.WithDeadline(ctx, until)
	}
	l := s.shared.Load()
	if l == nil || !l.endsAt(until) {
		l = &shared{}
		l.Context, l.end = context.WithDeadline(context.Background(), until.Add(sharedStep))
		s.shared.Store(l)
	}
	return valued{l, ctx}, func() {}
}

// endsAt tells whether it is over at the time, or a little later.
func (s *shared) endsAt(until time.Time) bool {
	at, _ := s.Deadline()
	return !until.After(at) && at.Sub(until) <= sharedStep
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

// number sends one command once. A reply that is no number, such as null, is 0.
func (s *server) number(ctx context.Context, until time.Time, call Call) (answer, error) {
	a := answer{sent: sending()}
	got, err := s.try(ctx, until, call)
	if err == nil {
		a.number, err = asNumber(got.reply)
		a.alone = sending()-a.sent < min(s.topology.RepeatsAfter, shortestPause)
	}
	return a, err
}

func asNumber(reply any) (int64, error) {
	number, _ := reply.(int64)
	err, _ := reply.(error)
	return number, err
}

// ask sends one command until it is answered, for a time, also after Close.
func (s *server) ask(ctx context.Context, names []string, limit time.Duration, call Call) (got answer, err error) {
	a := newAttempts(ctx, context.Background(), s.settings, names)
	a.retryFor = limit
	err = a.run(func() (err error) {
		got, err = s.number(ctx, a.limit(), call)
		return err
	})
	got.alone = got.alone && a.failures == 0
	return got, err
}
