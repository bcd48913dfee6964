package slock

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file has the connections to one server, and sends the commands of many goroutines together: what is ready at
// once goes in one pipeline, and what comes while some are under way queues for the next. So a busy program needs few
// system calls.

const (
	// lanes is how many pipelines are under way at once.
	lanes = 2
	// patience is how long commands queue behind those under way: then they go over one more connection, because what
	// is under way has no answer.
	patience = 100 * time.Millisecond
	// mostConnections is how many there are to one server, which bounds the waits that have one of their own.
	mostConnections = 10_000
	// poolTimeout is how long a command waits for a connection before it looks at its time again.
	poolTimeout = 500 * time.Millisecond
)

// node is one server, and the connections to it.
type node struct {
	servers *servers
	client  *redis.Client

	underWay atomic.Int32 // pipelines
	mu       sync.Mutex
	queue    []*call
	overdue  *time.Timer // sends the queue
}

// call is commands that go one right after the other, on one connection.
type call struct {
	commands []*redis.Cmd // and their answers
	limit    time.Time    // zero: none; then it has a connection of its own
	answered func()
	isLeft   atomic.Bool // nobody waits for the answer, so it need not be sent

	redirected int  // how often
	asking     bool // the key is about to move to where it goes
}

func newCall(limit time.Time, commands ...words) *call {
	c := &call{limit: limit}
	for _, w := range commands {
		c.commands = append(c.commands, redis.NewCmd(context.Background(), w...))
	}
	return c
}

func newNode(s *servers, client *redis.Client) *node {
	n := &node{servers: s, client: client}
	n.overdue = time.AfterFunc(patience, func() {
		n.underWay.Add(1)
		n.flush()
	})
	return n
}

// ownClient is one for the same server whose commands can be limited, and are not repeated.
func ownClient(o redis.Options) *redis.Client {
	if o.Addr == "FailoverClient" {
		o.Dialer = (&primary{dial: o.Dialer, end: func() {}}).connect
	}
	o.MaxRetries, o.ContextTimeoutEnabled = -1, true
	o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = mostConnections, 0, max(o.PoolSize, 10), 0
	o.PoolTimeout = poolTimeout
	o.ReadTimeout = cmp.Or(o.ReadTimeout, -1) // 0 is none in the options of a client, and the default for a new one
	if o.WriteTimeout <= 0 {
		o.WriteTimeout = 3 * time.Second
	}
	return redis.NewClient(&o)
}

// start sends a call, or queues it where enough is under way. It calls answered when the answer or an error has come.
// Unless it is sent here, it does not wait for that.
func (n *node) start(c *call, here bool) {
	if c.limit.IsZero() {
		go n.send([]*call{c})
		return
	}
	n.mu.Lock()
	n.queue = append(n.queue, c)
	goes := n.underWay.Load() < lanes
	if goes {
		n.underWay.Add(1)
	} else if len(n.queue) == 1 {
		n.overdue.Reset(patience)
	}
	n.mu.Unlock()
	if goes && here {
		n.flush()
	} else if goes {
		go n.flush()
	}
}

// ask sends commands as servers.send does. What has left the queue when it ends stays under way.
func (n *node) ask(ctx context.Context, limit time.Time, commands ...words) ([]*redis.Cmd, error) {
	c, done, err := newCall(limit, commands...), make(chan struct{}), errLeft
	c.answered = func() { close(done) }
	if ctx.Err() == nil {
		n.start(c, ctx.Done() == nil && n.client.Options().ContextTimeoutEnabled)
		_, err = await(ctx, done, limit, nil, nil)
		c.isLeft.Store(true)
	}
	for i := 0; i < len(c.commands) && err == nil; i++ {
		if problem := c.commands[i].Err(); isTemporary(problem) {
			err = problem
		}
	}
	n.servers.note(err)
	return c.commands, err
}

// flush sends what has queued in one pipeline, and has what queues meanwhile go in the next.
func (n *node) flush() {
	if n.underWay.Load() > 1 {
		runtime.Gosched() // others may be about to send too
	}
	n.mu.Lock()
	calls := n.queue
	n.queue = nil
	n.mu.Unlock()
	n.send(calls)
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.queue) > 0 && n.underWay.Load() <= lanes {
		go n.flush()
	} else {
		n.underWay.Add(-1)
	}
}

// deadline is a context that only has one: connections look at it, and it needs no timer.
type deadline struct {
	context.Context
	at time.Time
}

func (d deadline) Deadline() (time.Time, bool) { return d.at, true }

// send sends calls on one connection, but for those that were left, and hands out the answers.
func (n *node) send(calls []*call) {
	calls = slices.DeleteFunc(calls, func(c *call) bool { return c.isLeft.Load() })
	if len(calls) == 0 {
		return
	}
	ctx, limit := context.Background(), calls[0].limit
	commands := make([]redis.Cmder, 0, 8) // of a fixed size, so that it takes no memory of the heap
	for _, c := range calls {
		limit = earlier(limit, c.limit) // those whose time is not over are asked again
		for _, cmd := range c.commands {
			if c.asking {
				commands = append(commands, redis.NewCmd(ctx, "ASKING"))
			}
			commands = append(commands, cmd)
		}
	}
	client := n.client
	if limit.IsZero() {
		client = client.WithTimeout(0) // no answer is too late
	} else {
		ctx = deadline{ctx, limit}
	}
	var err error
	if len(commands) == 1 { // that costs less
		err = client.Process(ctx, commands[0])
	} else {
		pipeline := client.Pipeline()
		for _, cmd := range commands {
			_ = pipeline.Process(ctx, cmd)
		}
		_, err = pipeline.Exec(ctx)
	}
	for _, c := range calls {
		for _, cmd := range c.commands {
			if err != nil && cmd.Err() == nil && cmd.Val() == nil {
				cmd.SetErr(err) // there was no connection
			}
			cmd.SetErr(asSilence(cmd.Err()))
		}
		if !n.servers.redirect(n, c) {
			c.answered()
		}
	}
}
