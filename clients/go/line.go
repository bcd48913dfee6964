package slock

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file sends the commands of many goroutines to one node together. While some are under way, further ones queue,
// and then go in one pipeline: so a busy program needs a few system calls for many commands.

const (
	// lanes is how many commands or pipelines are under way at once.
	lanes = 4
	// patience is how long a command stays in the queue: then it goes over a connection of its own, because what is
	// under way has no answer.
	patience = 50 * time.Millisecond
)

type line struct {
	client *redis.Client

	mu    sync.Mutex
	busy  int
	queue []*job
}

type job struct {
	cmd   *redis.Cmd
	limit time.Time
	done  chan struct{}
}

// process sends a command and gives its answer, at the end of ctx at the latest.
func (l *line) process(ctx context.Context, w words) (int64, error) {
	l.mu.Lock()
	if l.busy < lanes {
		l.busy++
		l.mu.Unlock()
		reply, err := l.alone(ctx, w)
		l.next()
		return reply, err
	}
	limit, _ := ctx.Deadline()
	j := &job{cmd: redis.NewCmd(ctx, w...), limit: limit, done: make(chan struct{})}
	l.queue = append(l.queue, j)
	l.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case <-j.done:
			return j.cmd.Int64()
		case <-ctx.Done():
			l.remove(j)
			return 0, ctx.Err()
		case <-timer.C:
			if l.remove(j) {
				return l.alone(ctx, w)
			}
		}
	}
}

func (l *line) alone(ctx context.Context, w words) (int64, error) {
	cmd := redis.NewCmd(ctx, w...)
	_ = l.client.Process(ctx, cmd)
	return cmd.Int64()
}

// remove takes a command out of the queue, and is false when it is under way.
func (l *line) remove(j *job) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, other := range l.queue {
		if other == j {
			l.queue = append(l.queue[:i], l.queue[i+1:]...)
			return true
		}
	}
	return false
}

// next sends what has queued, when something under way has ended.
func (l *line) next() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		l.busy--
		return
	}
	jobs := l.queue
	l.queue = nil
	go l.together(jobs)
}

func (l *line) together(jobs []*job) {
	limit := jobs[0].limit
	for _, j := range jobs {
		if j.limit.After(limit) {
			limit = j.limit
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), limit)
	defer cancel()
	pipeline := l.client.Pipeline()
	for _, j := range jobs {
		_ = pipeline.Process(ctx, j.cmd)
	}
	_, err := pipeline.Exec(ctx)
	for _, j := range jobs {
		if err != nil && j.cmd.Err() == nil && j.cmd.Val() == nil {
			j.cmd.SetErr(err) // there was no connection
		}
		close(j.done)
	}
	l.next()
}
