package slock

import (
	"context"
	"errors"
	"sync"
	"time"
)

// tokenTasks counts, by token, what still runs in the background: releases, withdrawals, and changes of holds.
// The next acquisition with the token waits for their end: else they would take away what it is granted.
type tokenTasks struct {
	mu      sync.Mutex
	running map[string]*tokenTask
}

type tokenTask struct {
	count int
	ended chan struct{} // closed when the count is 0
}

var errStillRuns = errors.New("a release or another command with this token still runs")

// run runs a task with the token in the background.
func (t *tokenTasks) run(background *tasks, token string, task func()) {
	t.enter(token)
	background.run(func() {
		defer t.leave(token)
		task()
	})
}

func (t *tokenTasks) enter(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	task := t.running[token]
	if task == nil {
		task = &tokenTask{ended: make(chan struct{})}
		if t.running == nil {
			t.running = map[string]*tokenTask{}
		}
		t.running[token] = task
	}
	task.count++
}

func (t *tokenTasks) leave(token string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	task := t.running[token]
	if task.count--; task.count == 0 {
		close(task.ended)
		delete(t.running, token)
	}
}

// ended is nil when nothing runs, and else closed when all has ended.
func (t *tokenTasks) ended(token string) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if task := t.running[token]; task != nil {
		return task.ended
	}
	return nil
}

// wait waits until nothing runs. It is false when one of the contexts or the time, which may be zero for none,
// was over before.
func (t *tokenTasks) wait(ctx, ending context.Context, end time.Time, token string) bool {
	ended := t.ended(token)
	if ended == nil {
		return true
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ending, cancel)()
	if !end.IsZero() {
		defer time.AfterFunc(time.Until(end), cancel).Stop()
	}
	for ended != nil {
		select {
		case <-ended:
			ended = t.ended(token)
		case <-ctx.Done():
			return false
		}
	}
	return true
}
