package slock

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file sends the commands of many goroutines to one node together: what is ready at once goes in one pipeline,
// and what comes while some are under way queues for the next. So a busy program needs few system calls.

const (
	// lanes is how many pipelines are under way at once.
	lanes = 4
	// patience is how long commands queue: then they go over one more connection, because what is under way has no
	// answer.
	patience = 50 * time.Millisecond
	// mostCalls is how many go in one pipeline.
	mostCalls = 1000
)

type pipeline struct {
	client *redis.Client
	alone  bool          // each call has a connection of its own, because it may be long before it is answered
	busy   chan struct{} // has one for each lane in use

	mu    sync.Mutex
	queue []*call // the first has somebody who is about to send them
}

// call is commands that go one right after the other, on one connection.
type call struct {
	commands []*redis.Cmd
	limit    time.Time // zero: none
	answered func()
	late     func(reply int64, err error) // instead of answered, when nobody waits any more; may be nil
	over     atomic.Bool
}

func newCall(limit time.Time, commands ...words) *call {
	c := &call{commands: make([]*redis.Cmd, len(commands)), limit: limit}
	for i, w := range commands {
		c.commands[i] = redis.NewCmd(context.Background(), w...)
	}
	return c
}

// again is the last command of a call once more: where the key is about to move to, after ASKING.
func (c *call) again(ask bool) *call {
	commands := []words{c.last().Args()}
	if ask {
		commands = []words{{"ASKING"}, c.last().Args()}
	}
	more := newCall(c.limit, commands...)
	more.late = c.late
	return more
}

// last is the answer to the last command.
func (c *call) last() *redis.Cmd { return c.commands[len(c.commands)-1] }

// start sends a call, and does not wait for the answer.
func (p *pipeline) start(c *call) {
	if p.alone {
		go p.send([]*call{c})
		return
	}
	if p.add(c) {
		go p.flush()
	}
}

// add queues a call, and tells whether it is the first, so that the caller has to flush.
func (p *pipeline) add(c *call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, c)
	return len(p.queue) == 1
}

// do sends a call. It ends with the answers, or at its limit, or with errLeft when ctx is over. What has left the queue
// by then stays under way.
func (p *pipeline) do(ctx context.Context, c *call) error {
	if ctx.Err() != nil {
		return errLeft
	}
	done := make(chan struct{})
	c.answered = func() { close(done) }
	if ctx.Done() == nil && !p.alone {
		if p.add(c) {
			p.flush()
		}
		<-done
		return nil
	}
	p.start(c)
	_, err := await(ctx, done, c.limit, nil, nil)
	if err != nil && c.over.CompareAndSwap(false, true) {
		return err
	}
	<-done
	return nil
}

// flush sends what has queued, as soon as a lane is free.
func (p *pipeline) flush() {
	select {
	case p.busy <- struct{}{}:
		defer func() { <-p.busy }()
	default:
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case p.busy <- struct{}{}:
			defer func() { <-p.busy }()
		case <-timer.C:
		}
	}
	if len(p.busy) > 1 {
		runtime.Gosched() // others may be about to send too
	}
	p.mu.Lock()
	calls := p.queue
	if p.queue = nil; len(calls) > mostCalls {
		calls, p.queue = calls[:mostCalls:mostCalls], calls[mostCalls:]
		go p.flush()
	}
	p.mu.Unlock()
	p.send(calls)
}

// deadline is a context that only has one: connections look at it, and it needs no timer.
type deadline struct {
	context.Context
	at time.Time
}

func (d deadline) Deadline() (time.Time, bool) { return d.at, true }

// send sends calls on one connection, but for those that were left, and hands out the answers.
func (p *pipeline) send(calls []*call) {
	calls = slices.DeleteFunc(calls, func(c *call) bool { return c.over.Load() })
	var commands []*redis.Cmd
	ctx, limit := context.Background(), time.Time{}
	for _, c := range calls {
		commands = append(commands, c.commands...)
		if limit.IsZero() || c.limit.Before(limit) { // those whose time is not over are asked again
			limit = c.limit
		}
	}
	if !limit.IsZero() {
		ctx = deadline{ctx, limit}
	}
	var err error
	if len(commands) == 1 {
		err = p.client.Process(ctx, commands[0])
	} else {
		pipeline := p.client.Pipeline()
		for _, cmd := range commands {
			_ = pipeline.Process(ctx, cmd)
		}
		_, err = pipeline.Exec(ctx)
	}
	for _, cmd := range commands {
		if err != nil && cmd.Err() == nil && cmd.Val() == nil {
			cmd.SetErr(err) // there was no connection
		}
		cmd.SetErr(asSilence(cmd.Err()))
	}
	for _, c := range calls {
		if c.over.CompareAndSwap(false, true) {
			c.answered()
		} else if c.late != nil {
			c.late(c.last().Int64())
		}
	}
}
