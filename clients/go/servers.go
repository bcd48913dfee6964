package slock

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file brings a command to the server that has the key: the only one, the primary that Sentinel names, or the
// node of a cluster. It knows addresses and connections, and nothing of locks.
//
// Commands go over connections of the library's own, made with the options of the program's client. So go-redis
// repeats none of them, a full pool of the program delays none, and the time of each can be limited.

const (
	// poolTimeout is how long a command waits for a connection before it looks at its time again.
	poolTimeout = 500 * time.Millisecond
	// renewalConnections is how many connections to a node renewals use at most.
	renewalConnections = 8
	// mostBlocked is how many requests may wait on a connection of their own at one server.
	mostBlocked = 10_000
	// mostRedirections is how often a command follows MOVED and ASK.
	mostRedirections = 5
)

type servers struct {
	rdb    redis.UniversalClient
	report *reporter

	mu     sync.Mutex
	closed bool
	nodes  map[string]*node // by address
}

func newServers(rdb redis.UniversalClient, report *reporter) *servers {
	return &servers{rdb: rdb, report: report, nodes: map[string]*node{}}
}

// node is one server with the connections to it.
type node struct {
	address  string
	options  redis.Options
	commands *pipeline
	renewals *pipeline
	waits    *pipeline // no reply on these is too late
}

// check says whether the kind of client can be used. A Ring cannot: it moves keys to another server when one is
// down, and so gives one lock twice.
func (s *servers) check() error {
	switch s.rdb.(type) {
	case *redis.Client, *redis.ClusterClient:
		return nil
	}
	return invalid("the client must be a *redis.Client or a *redis.ClusterClient, not %T", s.rdb)
}

func (s *servers) isCluster() bool {
	_, ok := s.rdb.(*redis.ClusterClient)
	return ok
}

// find is the primary that has the key. It ends as send does.
func (s *servers) find(ctx context.Context, limit time.Time, key string) (*node, error) {
	switch rdb := s.rdb.(type) {
	case *redis.Client:
		return s.at(rdb.Options())
	case *redis.ClusterClient:
		// It may have to be asked first where the key is, and go-redis does not stop that when a context is over.
		found := make(chan func() (*node, error), 1)
		go func() {
			client, err := rdb.MasterForKey(context.Background(), key)
			s.note(err)
			found <- func() (*node, error) {
				if err != nil {
					return nil, err
				}
				return s.at(client.Options())
			}
		}()
		node, err := await(ctx, found, limit, nil, nil)
		if err != nil {
			return nil, err
		}
		return node()
	}
	return nil, s.check()
}

// at is the node of the options' address.
func (s *servers) at(options *redis.Options) (*node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	n := s.nodes[options.Addr]
	if n == nil {
		n = newNode(*options)
		s.nodes[n.address] = n
	}
	return n, nil
}

func newNode(o redis.Options) *node {
	primary := &primary{dial: o.Dialer, follows: o.Addr == "FailoverClient", end: func() {}}
	o.Dialer = primary.connect
	o.MaxRetries = -1
	o.ContextTimeoutEnabled = true
	o.MinIdleConns, o.MaxActiveConns = 0, 0
	o.PoolTimeout = poolTimeout
	if o.ReadTimeout == 0 {
		o.ReadTimeout = -1 // as the program has it: none
	}
	if o.WriteTimeout <= 0 {
		o.WriteTimeout = 3 * time.Second
	}
	newPipeline := func(connections int, readTimeout time.Duration) *pipeline {
		options := o
		options.PoolSize, options.ReadTimeout = connections, readTimeout
		options.MaxIdleConns = min(connections, max(o.PoolSize, 10))
		return &pipeline{client: redis.NewClient(&options), busy: make(chan struct{}, lanes)}
	}
	n := &node{
		address: o.Addr, options: o, commands: newPipeline(o.PoolSize, o.ReadTimeout),
		renewals: newPipeline(renewalConnections, o.ReadTimeout), waits: newPipeline(mostBlocked, -1),
	}
	n.waits.alone = true
	return n
}

func (n *node) close() error {
	return errors.Join(n.commands.client.Close(), n.renewals.client.Close(), n.waits.client.Close())
}

// primary makes the connections to one node. For Sentinel it follows the primary: a connection to another address
// closes those to the one before, so that the old and the new primary are never both in use.
type primary struct {
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	follows bool

	mu      sync.Mutex
	address string
	current context.Context // done when the primary is another
	end     context.CancelFunc
}

// connection is one that primary closes.
type connection struct {
	net.Conn
	forget func() bool
}

func (c *connection) Close() error {
	c.forget()
	return c.Conn.Close()
}

func (p *primary) connect(ctx context.Context, network, address string) (net.Conn, error) {
	made, err := p.dial(ctx, network, address)
	if err != nil || !p.follows {
		return made, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := made.RemoteAddr().String(); now != p.address {
		p.end()
		p.address = now
		p.current, p.end = context.WithCancel(context.Background())
	}
	return &connection{made, context.AfterFunc(p.current, func() { _ = made.Close() })}, nil
}

// send sends a call of one command, and gives its answer: a number, redis.Nil, or an error. It ends at the limit, and
// with errLeft when ctx is over; then what was sent stays under way. It follows redirections.
func (s *servers) send(ctx context.Context, key string, c *call) (int64, error) {
	n, err := s.find(ctx, c.limit, key)
	for tries := 0; err == nil; tries++ {
		if err = n.commands.do(ctx, c); err != nil {
			break
		}
		address, ask := redirection(c.last().Err())
		if address == "" || tries == mostRedirections {
			s.note(c.last().Err())
			return c.last().Int64()
		}
		s.reload()
		options := n.options
		options.Addr = address
		n, err = s.at(&options)
		c = c.again(ask)
	}
	if errors.Is(err, ErrClosed) {
		return s.sendAfterClose(ctx, c)
	}
	s.note(err)
	return 0, err
}

// sendAfterClose sends over the program's own client: a release may still be sent.
func (s *servers) sendAfterClose(ctx context.Context, c *call) (int64, error) {
	limited, cancel := context.WithDeadline(ctx, c.limit)
	defer cancel()
	cmd := c.last()
	cmd.SetFirstKeyPos(1)
	if _, ok := cmd.Args()[1].(int); ok {
		cmd.SetFirstKeyPos(2)
	}
	_ = s.rdb.Process(limited, cmd)
	return cmd.Int64()
}

// use is what connections are for.
type use func(*node) *pipeline

func forCommands(n *node) *pipeline { return n.commands }
func forWaits(n *node) *pipeline    { return n.waits }

// pipeline sends commands for the node of the key in one go, on one connection. The error is one after which they
// may all be sent again; others stay with their commands.
func (s *servers) pipeline(
	ctx context.Context, limit time.Time, key string, via use, commands ...words,
) ([]*redis.Cmd, error) {
	n, err := s.find(ctx, limit, key)
	if err != nil {
		return nil, err
	}
	c := newCall(limit, commands...)
	if err = via(n).do(ctx, c); err == nil {
		for _, answer := range c.commands {
			if err == nil && isTemporary(answer.Err()) {
				err = answer.Err()
			}
		}
	}
	if s.note(err); err != nil {
		return nil, err
	}
	return c.commands, nil
}

// note has a cluster looked at again when a node does not answer: a failover may be over, and the lost node would
// never say that the slot has moved.
func (s *servers) note(err error) {
	s.report.reached(err)
	if isTemporary(err) {
		s.reload()
	}
}

func (s *servers) reload() {
	if rdb, ok := s.rdb.(*redis.ClusterClient); ok {
		rdb.ReloadState(context.Background())
	}
}

func (s *servers) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var err error
	for _, n := range s.nodes {
		err = errors.Join(err, n.close())
	}
	clear(s.nodes)
	return err
}
