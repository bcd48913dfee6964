package slock

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// This file has the ends of acquisitions that nobody waits for. Each is one command that may be repeated, and is sent
// until the server answers it, with growing pauses, for the time in which the server would refuse the token.

// mostEnding is how many ends are on their way at once. During an outage the others cost their memory.
const mostEnding = 8

// ends are the ends that have no answer yet.
type ends struct {
	mu      sync.Mutex
	queue   list.List // of *end
	working int
}

type end struct {
	ctx      context.Context // for its values, such as the span of the program
	call     Call
	due      time.Time
	until    time.Time
	failures int
}

// deliver sends a command in the background until it is answered, for a time.
func (s *server) deliver(ctx context.Context, call Call, until time.Duration) {
	call.Reserved = true
	e := &end{ctx: context.WithoutCancel(ctx), call: call, until: time.Now().Add(until)}
	s.ends.mu.Lock()
	defer s.ends.mu.Unlock()
	s.ends.queue.PushFront(e)
	if s.ends.working < mostEnding {
		s.ends.working++
		go s.deliverAll()
	}
}

// deliverAll sends what is in the queue, and returns when that is empty.
func (s *server) deliverAll() {
	for e := s.ends.next(); e != nil; e = s.ends.next() {
		if time.Until(e.due) > 0 && !sleep(s.closed, s.closed, time.Until(e.due)) {
			continue // the program ends
		}
		_, err := s.number(e.ctx, earlier(e.until, time.Now().Add(s.settings.retryFor)), e.call)
		pause, _ := afterErrors(e.failures)
		e.due, e.failures = time.Now().Add(pause), e.failures+1
		if passes(err) && e.due.Before(e.until) && s.closed.Err() == nil {
			s.ends.mu.Lock()
			s.ends.queue.PushBack(e)
			s.ends.mu.Unlock()
		}
	}
}

// next takes the next end off the queue, or nil: then the goroutine that asks has to return.
func (e *ends) next() *end {
	e.mu.Lock()
	defer e.mu.Unlock()
	if first := e.queue.Front(); first != nil {
		return e.queue.Remove(first).(*end)
	}
	e.working--
	return nil
}

// isIdle tells whether all ends have been answered.
func (e *ends) isIdle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.working == 0
}
