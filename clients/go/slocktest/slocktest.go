// Package slocktest has a server in memory for the tests of programs that use locks. It replies as a server with the
// module does, so a test runs the same library code as the program.
//
//	locks, server := slocktest.New()
//	release := server.Hold("report") // somebody else holds it
//	server.Lose("report")            // the hold of the program is gone
//	server.Fail(errors.New("…"))     // no reply comes
//
// Locks.Info tells who holds a lock and who waits for it.
package slocktest

import (
	"context"
	"errors"
	"sync"
	"time"

	"slock.example/go"
)

// Server is a server in memory: a slock.Transport. Several Locks may share one. Its keys have the prefix of the Locks.
type Server struct {
	mu       sync.Mutex
	holds    []*request          // those that were granted, one for each key, in the order of their grants
	queue    []*request          // those that wait, in order of arrival; changes of mode come first
	ended    map[string]*request // by owner token: those with REFUSE
	channels map[string]channel
	fence    int64 // the last that was given
	failure  error
	timer    *time.Timer // of the next deadline
}

type channel struct {
	heard   func(payload string)
	changed func()
}

// New makes a Locks over a new Server. A test of Fail may want a short slock.RetryFor.
func New(options ...slock.Option) (*slock.Locks, *Server) {
	s := NewServer()
	return slock.NewWith(s, options...), s
}

// NewServer makes a server without locks, for slock.NewWith.
func NewServer() *Server {
	s := &Server{ended: map[string]*request{}, channels: map[string]channel{}}
	s.timer = time.AfterFunc(longest, func() { s.enter()() })
	return s
}

// enter has the caller use the server alone until it leaves. Before and after that, time and the queue go on.
func (s *Server) enter() (leave func()) {
	s.mu.Lock()
	s.advance()
	return func() {
		s.advance()
		s.mu.Unlock()
	}
}

// Hold ends all holds of the key, as Lose does, and has somebody else hold it for writing until release is called, or
// for a day.
func (s *Server) Hold(key string) (release func()) {
	defer s.enter()()
	other := parse([]any{"SLOCK.LOCK", key, "somebody else", longest.Milliseconds()})
	s.lose(other)
	s.grant(other, 0)
	return func() {
		defer s.enter()()
		s.end(other)
	}
}

// Lose ends all holds of the key, as if it had been deleted. Their owners notice that at once.
func (s *Server) Lose(key string) {
	defer s.enter()()
	s.lose(&request{keys: []string{key}})
}

// Fail has all later calls fail with the error, as if no connection could be made. Fail(nil) ends that.
func (s *Server) Fail(err error) {
	defer s.enter()()
	s.failure = err
}

// Topology has Failover, so that each Locks listens while it has holds, and checks them after Lose.
func (s *Server) Topology() (slock.Topology, error) {
	return slock.Topology{Name: "memory", Failover: true}, nil
}

// Call executes a command, and the one that follows it.
func (s *Server) Call(ctx context.Context, call slock.Call) (reply, then any, err error) {
	defer s.enter()()
	if err := errors.Join(ctx.Err(), s.failure); err != nil {
		return nil, nil, err
	}
	if reply = s.execute(call.Command); call.Key == "" {
		reply = []any{reply} // of the only primary
	}
	if len(call.Then) > 0 {
		then = s.execute(call.Then)
	}
	return reply, then, nil
}

// Listen subscribes to a channel.
func (s *Server) Listen(name string, heard func(payload string), changed func()) (stop func()) {
	defer s.enter()()
	s.channels[name] = channel{heard, changed}
	go changed()
	return func() {
		defer s.enter()()
		delete(s.channels, name)
	}
}

// Close does nothing: other Locks may use the server.
func (s *Server) Close() error { return nil }
