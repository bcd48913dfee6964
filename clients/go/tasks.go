package slock

import (
	"sync"
	"time"
)

// tasks counts what goes on: acquisitions, and what is sent in the background, such as giving up.
type tasks struct {
	mu    sync.Mutex
	count int
	idle  chan struct{} // closed when the count is 0; nil while nobody waits for that
}

func (t *tasks) run(task func()) {
	t.enter()
	go func() {
		defer t.leave()
		task()
	}()
}

func (t *tasks) enter() {
	t.mu.Lock()
	t.count++
	t.mu.Unlock()
}

func (t *tasks) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count--
	if t.count == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// wait waits until nothing goes on, for at most the time.
func (t *tasks) wait(most time.Duration) {
	t.mu.Lock()
	if t.count == 0 {
		t.mu.Unlock()
		return
	}
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	idle := t.idle
	t.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
}
