package slock

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"
)

// This file has the ends of acquisitions that nobody waits for. Each is one command that may be repeated, and is sent
// until the server answers it, for the time in which the server would refuse the token.

// mostEnding is how many ends are on their way at once. During an outage the others cost their memory.
const mostEnding = 8

// ends are the ends that have no answer yet, the newest first, and behind them those that were tried for a while.
type ends struct {
	mu      sync.Mutex
	queue   list.List // of end
	working int
}

type end struct {
	ctx   context.Context // for its values, such as the span of the program
	call  Call
	until time.Time
}

// deliver sends a command in the background until it is answered, for a time.
func (s *server) deliver(ctx context.Context, call Call, within time.Duration) {
	call.Reserved = true
	s.ends.mu.Lock()
	defer s.ends.mu.Unlock()
	s.ends.queue.PushFront(end{context.WithoutCancel(ctx), call, time.Now().Add(within)})
	if s.ends.working < mostEnding {
		s.ends.working++
		go s.deliverAll()
	}
}

// deliverAll sends what is in the queue, and returns when that is empty.
func (s *server) deliverAll() {
	s.ends.mu.Lock()
	defer s.ends.mu.Unlock()
	for first := s.ends.queue.Front(); first != nil; first = s.ends.queue.Front() {
		e := s.ends.queue.Remove(first).(end)
		s.ends.mu.Unlock()
		_, err := s.ask(e.ctx, nil, min(s.settings.retryFor, time.Until(e.until)), e.call)
		s.ends.mu.Lock()
		if errors.Is(err, ErrNoAnswer) && time.Now().Before(e.until) && s.closing.Err() == nil {
			s.ends.queue.PushBack(e)
		}
	}
	s.ends.working--
}

// isIdle tells whether all ends have been answered.
func (e *ends) isIdle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.working == 0
}
