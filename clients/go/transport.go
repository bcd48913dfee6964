package slock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// This file has the one interface to Redis client libraries, and the repetition of commands over it.

// Transport is what a Locks needs of a Redis client library: New makes one of a client of go-redis. Other packages have
// one for rueidis and valkey-go, and slocktest has one that needs no server.
type Transport interface {
	// Call sends a command, and returns its reply and that of the command that follows it: int64, string, nil, []any,
	// map[any]any, or a *ReplyError. It may send a command more than once. It returns within a second after ctx is over;
	// what was sent may be carried out later. The error means that a reply is missing: it is an *UnusableError if that
	// cannot change.
	Call(ctx context.Context, call Call) (reply, then any, err error)
	// Listen subscribes to a channel by SSUBSCRIBE, on the primary that has the channel's slot, and calls heard with each
	// message. It calls changed when the server has confirmed the subscription, and whenever a message may have been
	// missed. It does not wait for the server, and may be called for a channel again after stop.
	Listen(channel string, heard func(payload string), changed func()) (stop func())
	// Topology describes the servers. The error says why the client cannot be used.
	Topology() (Topology, error)
	// Close ends what the Transport has made. The program's client stays open, and Call goes on over it.
	Close() error
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
	// RepeatsAfter is the shortest time after which Call may have sent a command again. If it is zero, a request that was
	// refused is always ended by a command, because a copy of it may still arrive.
	RepeatsAfter time.Duration
}

// ReplyError is an error reply of the server. The text of Err begins with the code.
type ReplyError struct{ Err error }

func (e *ReplyError) Error() string { return e.Err.Error() }

// Unwrap is the error of the Redis client library.
func (e *ReplyError) Unwrap() error { return e.Err }

// UnusableError says that a Transport cannot be used any more, for example because the program has closed its client.
type UnusableError struct{ Err error }

func (e *UnusableError) Error() string { return e.Err.Error() }

// Unwrap is the error of the Redis client library.
func (e *UnusableError) Unwrap() error { return e.Err }

var (
	// errLeft means that the caller's context was over, or that the Locks was closed.
	errLeft = errors.New("left")
	// errSilent is the last error of a call to a server that says nothing.
	errSilent = errors.New("the connection is silent")
)

// server is one server, or one cluster, as this package uses it.
type server struct {
	transport Transport
	topology  Topology
	problem   error // why the transport cannot be used
	settings  *settings
	report    *reporter
	listener  *listener
	ends      ends
	limit     atomic.Pointer[limit]

	closing, closed context.Context // done when Close begins, and when it has ended
}

// try sends a call once, and waits for the replies until a time. The error is errLeft if ctx was over before.
func (s *server) try(ctx context.Context, until time.Time, call Call) (reply, then any, err error) {
	if ctx.Err() != nil {
		return nil, nil, errLeft
	}
	limited, end := s.limited(ctx, until)
	defer end()
	reply, then, err = s.transport.Call(limited, call)
	switch {
	case ctx.Err() != nil: // also if it has a reply: the caller is told that it has left
		return nil, nil, errLeft
	case errors.Is(err, context.DeadlineExceeded):
		err = errSilent
	}
	s.report.reached(err)
	return reply, then, err
}

// limit is the end of calls without a context of the program's. Those that end at about the same time share it, because
// each would take a timer.
type limit struct {
	context.Context
	at  time.Time
	end func()
}

const limitSteps = 250 * time.Millisecond

// limited is a context that is over at a time, or a little later.
func (s *server) limited(ctx context.Context, until time.Time) (context.Context, func()) {
	if ctx.Done() != nil {
		return context.WithDeadline(ctx, until)
	}
	l := s.limit.Load()
	if l == nil || until.After(l.at) || l.at.Sub(until) > limitSteps {
		l = &limit{at: until.Add(limitSteps)}
		l.Context, l.end = context.WithDeadline(context.Background(), l.at)
		s.limit.Store(l)
	}
	return shared{l, ctx}, func() {}
}

// shared is a context that ends with one that many share, and has values of its own.
type shared struct {
	context.Context
	values context.Context
}

func (s shared) Value(key any) any { return s.values.Value(key) }

// answer is the reply to a command that may have been sent several times.
type answer struct {
	number int64
	sent   time.Duration // before the copy was sent that was answered
	alone  bool          // no other copy was sent
}

// number sends one command once. A reply that is no number, such as null, is 0.
func (s *server) number(ctx context.Context, until time.Time, call Call) (answer, error) {
	a := answer{sent: sending()}
	reply, _, err := s.try(ctx, until, call)
	if err == nil {
		a.number, err = asNumber(reply)
		a.alone = sending()-a.sent < s.topology.RepeatsAfter
	}
	return a, err
}

func asNumber(reply any) (int64, error) {
	number, _ := reply.(int64)
	err, _ := reply.(error)
	return number, err
}

// ask sends one command until it is answered, for a time.
func (s *server) ask(ctx context.Context, names []string, limit time.Duration, call Call) (answer, error) {
	return repeat(ctx, s.closed, names, limit, func(until time.Time) (answer, error) { return s.number(ctx, until, call) })
}

// repeat sends until there is an answer, for a time. Then the error is an ErrNoAnswer about the names. It is that of ctx
// if ctx is over before.
func repeat(
	ctx, closed context.Context, names []string, limit time.Duration, send func(until time.Time) (answer, error),
) (answer, error) {
	began := time.Now()
	var last error
	for failures := 0; ; failures++ {
		a, err := send(began.Add(limit))
		a.alone = a.alone && failures == 0
		switch {
		case err == nil:
			return a, nil
		case errors.Is(err, errLeft):
			return a, ended(ctx)
		case !passes(err):
			return a, explain(err)
		}
		last = moreTelling(last, err)
		pause, _ := afterErrors(failures)
		if left := limit - time.Since(began); left <= pause {
			return a, noAnswer(names, limit, last, nil)
		}
		if !sleep(ctx, closed, pause) {
			return a, ended(ctx)
		}
	}
}

// moreTelling is the later of two errors, unless it only says that nothing came.
func moreTelling(last, err error) error {
	if last != nil && errors.Is(err, errSilent) {
		return last
	}
	return err
}

// ended is the error of a call that ctx or Close ended.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	switch {
	case err == nil:
		return failure(ErrClosed, nil, plain("the Locks has been closed"))
	case errors.Is(cause, err):
		return cause
	}
	return errors.Join(err, cause)
}

// overErr is the error of a context. A context learns of its deadline a little later than who reads the clock.
func overErr(ctx context.Context) error {
	if at, ok := ctx.Deadline(); ok && ctx.Err() == nil && !time.Now().Before(at) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// sleep waits for a pause. It returns false as soon as one of the contexts is over.
func sleep(ctx, closing context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-closing.Done():
	}
	return false
}
