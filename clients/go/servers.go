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
	limits map[int64]context.Context
}

// node is one server with the connections to it.
type node struct {
	address  string
	options  redis.Options
	commands *redis.Client
	line     line // of commands
	renewals *redis.Client
	waits    *redis.Client // no reply on these is too late
}

func newServers(rdb redis.UniversalClient, report *reporter) *servers {
	return &servers{rdb: rdb, report: report, nodes: map[string]*node{}, limits: map[int64]context.Context{}}
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

// node is the primary that has the key.
func (s *servers) node(ctx context.Context, key string) (*node, error) {
	switch rdb := s.rdb.(type) {
	case *redis.Client:
		return s.at(rdb.Options().Addr, rdb.Options())
	case *redis.ClusterClient:
		client, err := rdb.MasterForKey(ctx, key)
		if err != nil {
			return nil, err
		}
		return s.at(client.Options().Addr, client.Options())
	}
	return nil, s.check()
}

// at is the node of the address.
func (s *servers) at(address string, options *redis.Options) (*node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	n := s.nodes[address]
	if n == nil {
		n = newNode(address, *options)
		s.nodes[address] = n
	}
	return n, nil
}

func newNode(address string, o redis.Options) *node {
	primary := &primary{dial: o.Dialer, follows: o.Addr == "FailoverClient", open: map[*connection]struct{}{}}
	o.Addr = address
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
	n := &node{address: address, options: o}
	client := func(size int, readTimeout time.Duration) *redis.Client {
		options := o
		options.PoolSize, options.ReadTimeout = size, readTimeout
		options.MaxIdleConns = min(size, max(o.PoolSize, 10))
		return redis.NewClient(&options)
	}
	n.commands = client(o.PoolSize, o.ReadTimeout)
	n.line.client = n.commands
	n.renewals = client(renewalConnections, o.ReadTimeout)
	n.waits = client(mostBlocked, -1)
	return n
}

func (n *node) close() error {
	return errors.Join(n.commands.Close(), n.renewals.Close(), n.waits.Close())
}

// primary makes the connections to one node. For Sentinel it follows the primary: a connection to another address
// closes those to the one before, so that the old and the new primary are never both in use.
type primary struct {
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	follows bool

	mu      sync.Mutex
	address string
	open    map[*connection]struct{}
}

// connection is one that primary closes.
type connection struct {
	net.Conn
	primary *primary
}

func (p *primary) connect(ctx context.Context, network, address string) (net.Conn, error) {
	made, err := p.dial(ctx, network, address)
	if err != nil || !p.follows {
		return made, err
	}
	c := &connection{Conn: made, primary: p}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := made.RemoteAddr().String(); now != p.address {
		p.address = now
		for old := range p.open {
			_ = old.Conn.Close()
		}
		clear(p.open)
	}
	p.open[c] = struct{}{}
	return c, nil
}

func (c *connection) Close() error {
	c.primary.mu.Lock()
	delete(c.primary.open, c)
	c.primary.mu.Unlock()
	return c.Conn.Close()
}

// send sends a command, and gives its answer: a number, redis.Nil, or an error. It ends at the limit, and with
// errLeft when ctx is over; then what was sent stays under way. The answer that comes all the same goes to late,
// which may be nil.
func (s *servers) send(
	ctx context.Context, limit time.Time, key string, w words, late func(reply int64),
) (int64, error) {
	if ctx.Done() == nil && !s.isCluster() {
		return s.exchange(ctx, limit, key, w)
	}
	if ctx.Err() != nil {
		return 0, errLeft
	}
	type answer struct {
		reply int64
		err   error
	}
	answers := make(chan answer, 1)
	left := make(chan struct{})
	go func() {
		reply, err := s.exchange(ctx, limit, key, w)
		answers <- answer{reply, err}
		select {
		case <-left:
			if late != nil && err == nil {
				late(reply)
			}
		default:
		}
	}()
	var over <-chan time.Time
	if s.isCluster() { // it may have to be asked first where the key is
		timer := time.NewTimer(time.Until(limit))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case a := <-answers:
		return a.reply, a.err
	case <-ctx.Done():
		close(left)
		return 0, errLeft
	case <-over:
		close(left)
		return 0, errNoAnswer
	}
}

// limited is a context with a deadline. It is over at most limitStep later, together with others.
type limited struct {
	context.Context
	limit time.Time
}

func (l limited) Deadline() (time.Time, bool) { return l.limit, true }

// limitStep is how far apart the ends of contexts are. Each command has one, and a timer for each would cost as much as
// all else that this library does for it.
const limitStep = 500 * time.Millisecond

// until is a context that is over at the limit.
func (s *servers) until(limit time.Time) context.Context {
	step := int64(limit.Sub(start)/limitStep) + 1
	s.mu.Lock()
	defer s.mu.Unlock()
	shared := s.limits[step]
	if shared == nil {
		var cancel context.CancelFunc
		shared, cancel = context.WithDeadline(context.Background(), start.Add(time.Duration(step)*limitStep))
		s.limits[step] = shared
		context.AfterFunc(shared, func() {
			cancel()
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.limits, step)
		})
	}
	return limited{shared, limit}
}

// exchange sends a command to the node of the key, and follows redirections as long as ctx is not over: after the
// end of an acquisition no earlier command of it is sent again.
func (s *servers) exchange(ctx context.Context, limit time.Time, key string, w words) (int64, error) {
	limited := s.until(limit)
	n, err := s.node(limited, key)
	for ask, tries := false, 0; err == nil; tries++ {
		var reply int64
		if ask {
			reply, err = n.afterAsking(limited, w)
		} else {
			reply, err = n.line.process(limited, w)
		}
		address := ""
		switch {
		case err == nil:
		case errors.Is(err, redis.ErrPoolTimeout) && ctx.Err() == nil && limited.Err() == nil:
			err = nil // it was not sent
			continue
		case tries < mostRedirections && ctx.Err() == nil:
			address, ask = redirection(err)
		}
		if address == "" {
			err = asSilence(err)
			s.note(err)
			return reply, err
		}
		s.reload()
		n, err = s.at(address, &n.options)
	}
	if errors.Is(err, ErrClosed) {
		return s.sendAfterClose(limited, w)
	}
	s.note(err)
	return 0, asSilence(err)
}

// afterAsking sends a command to the node that takes over a slot.
func (n *node) afterAsking(ctx context.Context, w words) (int64, error) {
	pipeline := n.commands.Pipeline()
	pipeline.Do(ctx, "ASKING")
	cmd := pipeline.Do(ctx, w...)
	if _, err := pipeline.Exec(ctx); err != nil && cmd.Val() == nil {
		return 0, err
	}
	return cmd.Int64()
}

// sendAfterClose sends over the program's own client: a release may still be sent.
func (s *servers) sendAfterClose(ctx context.Context, w words) (int64, error) {
	cmd := redis.NewCmd(ctx, w...)
	cmd.SetFirstKeyPos(1)
	if _, ok := w[1].(int); ok {
		cmd.SetFirstKeyPos(2)
	}
	_ = s.rdb.Process(ctx, cmd)
	return cmd.Int64()
}

// use is what connections are for.
type use func(*node) *redis.Client

func forCommands(n *node) *redis.Client { return n.commands }
func forRenewals(n *node) *redis.Client { return n.renewals }
func forWaits(n *node) *redis.Client    { return n.waits }

// pipeline sends commands for the node of the key in one go, on one connection. The error is one after which they
// may all be sent again; others stay with their commands.
func (s *servers) pipeline(key string, client use, limit time.Time, commands []words) ([]*redis.Cmd, error) {
	ctx := s.until(limit)
	n, err := s.node(ctx, key)
	if err != nil {
		s.note(err)
		return nil, err
	}
	pipeline := client(n).Pipeline()
	answers := make([]*redis.Cmd, len(commands))
	for i, w := range commands {
		answers[i] = pipeline.Do(ctx, w...)
	}
	_, whole := pipeline.Exec(ctx)
	for _, answer := range answers {
		if err := asSilence(answer.Err()); isTemporary(err) {
			s.note(err)
			return answers, err
		}
	}
	whole = asSilence(whole)
	if s.note(whole); isTemporary(whole) {
		return nil, whole // there was no connection
	}
	return answers, nil
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
