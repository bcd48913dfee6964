// SPDX-License-Identifier: MIT OR Apache-2.0

// Package slocktest has a server in memory for the tests of programs that use locks. It replies as a server with the
// module does, so a test runs the same library code as the program.
//
//	server := slocktest.New()
//	locks := slock.NewWith(server)  // of the program
//	others := slock.NewWith(server) // of another process: what it holds is busy, and it sees who holds what
//	server.Lose("report")           // the hold is gone
//	server.Fail(errors.New("…"))    // no reply comes
package slocktest

import (
	"context"
	"errors"
	"sync"
	"time"

	"slock.example/go"
)

// Server is a server in memory: a slock.Transport. Several Locks may share one.
type Server struct {
	mu       sync.Mutex
	holds    []*request               // in the order of their grants
	queue    []*request               // in order of arrival; changes of mode come first
	refused  map[string]time.Duration // until when, by owner token
	channels map[string]func(message string, ok bool)
	fence    int64 // the last that was given
	failure  error
	timer    *time.Timer // of the next deadline
}

// New makes a server without locks, for slock.NewWith.
func New() *Server {
	s := &Server{refused: map[string]time.Duration{}, channels: map[string]func(string, bool){}}
	s.timer = time.AfterFunc(time.Hour, func() { s.enter()() })
	return s
}

// enter has the caller use the server alone until it leaves. Before and after that, what is due happens.
func (s *Server) enter() (leave func()) {
	s.mu.Lock()
	s.advance()
	return func() {
		s.advance()
		s.mu.Unlock()
	}
}

// Lose ends all holds of the keys, as if they had been deleted. Their owners notice that at once. The keys have the
// prefix of the Locks.
func (s *Server) Lose(keys ...string) {
	defer s.enter()()
	s.lose(&request{keys: keys})
}

// Fail has all later calls fail with the error, as if no connection could be made. Fail(nil) ends that. A call of the
// program then ends with ErrNoAnswer after slock.RetryFor.
func (s *Server) Fail(err error) {
	defer s.enter()()
	s.failure = err
}

// Topology has Failover, so that each Locks listens while it has holds, and checks them after Lose.
func (s *Server) Topology() (slock.Topology, error) {
	return slock.Topology{Name: "memory", Failover: true, Prompt: true, RepeatsAfter: longest}, nil
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
func (s *Server) Listen(name string, heard func(message string, ok bool)) (stop func()) {
	defer s.enter()()
	s.channels[name] = heard
	go heard("", false)
	return func() {
		defer s.enter()()
		delete(s.channels, name)
	}
}

// Close does nothing: other Locks may use the server.
func (s *Server) Close() {}
