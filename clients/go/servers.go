package slock

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file brings a command to the server that has the key: the only one, the primary that Sentinel names, or the
// node of a cluster. It knows addresses, and nothing of locks.
//
// Commands go over connections of the library's own, made with the options of the program's client. So go-redis
// repeats none of them, a full pool of the program delays none, and the time of each can be limited.

// mostRedirections is how often a command follows MOVED and ASK.
const mostRedirections = 5

type servers struct {
	rdb     redis.UniversalClient
	single  *redis.Client        // what the client is; nil: a cluster
	cluster *redis.ClusterClient // nil: a single server
	report  *reporter

	mu     sync.Mutex
	closed bool
	nodes  map[string]*node // by address
}

func newServers(rdb redis.UniversalClient, report *reporter) *servers {
	s := &servers{rdb: rdb, report: report, nodes: map[string]*node{}}
	s.single, _ = rdb.(*redis.Client)
	s.cluster, _ = rdb.(*redis.ClusterClient)
	return s
}

// check says whether the kind of client can be used. A Ring cannot: it moves keys to another server when one is
// down, and so gives one lock twice.
func (s *servers) check() error {
	if s.single == nil && s.cluster == nil {
		return invalid("the client must be a *redis.Client or a *redis.ClusterClient, not %T", s.rdb)
	}
	return nil
}

// name is the address that the program gave.
func (s *servers) name() string {
	if s.single != nil {
		return s.single.Options().Addr
	}
	return strings.Join(s.cluster.Options().Addrs, ", ")
}

// find is the primary that has the key. It ends as send does.
func (s *servers) find(ctx context.Context, limit time.Time, key string) (*node, error) {
	if s.single != nil {
		return s.of(s.single), nil
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	// It may have to be asked first where the key is.
	return within(ctx, limit, func() (*node, error) {
		client, err := s.cluster.MasterForKey(context.Background(), key)
		if s.note(err); err != nil {
			return nil, err
		}
		return s.of(client), nil
	})
}

// primaries are the node that has the key, or without a key all.
func (s *servers) primaries(ctx context.Context, limit time.Time, key string) ([]*node, error) {
	if s.cluster == nil || key != "" {
		n, err := s.find(ctx, limit, key)
		return []*node{n}, err
	}
	return within(ctx, limit, func() (all []*node, err error) {
		var mu sync.Mutex
		err = s.cluster.ForEachMaster(context.Background(), func(_ context.Context, client *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, s.of(client))
			return nil
		})
		return all, err
	})
}

// within runs what go-redis does not stop when a context is over, and does not wait for it longer than that.
func within[T any](ctx context.Context, limit time.Time, run func() (T, error)) (result T, err error) {
	ran := make(chan func() (T, error), 1)
	go func() {
		result, err := run()
		ran <- func() (T, error) { return result, err }
	}()
	done, err := await(ctx, ran, limit, nil, nil)
	if err != nil {
		return result, err
	}
	return done()
}

// of is the node that a client of the program has. After Close it is used itself: a release may still be sent.
func (s *servers) of(client *redis.Client) *node { return s.at(client, client.Options().Addr) }

func (s *servers) at(client *redis.Client, address string) *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return newNode(s, client)
	}
	n := s.nodes[address]
	if n == nil {
		options := *client.Options()
		options.Addr = address
		n = newNode(s, ownClient(options))
		s.nodes[address] = n
	}
	return n
}

// send sends commands for the node of the key in one go, on one connection. It ends at the limit, and with errLeft when
// ctx is over; then what was sent stays under way. The error is one after which they may all be sent again; others stay
// with their commands.
func (s *servers) send(ctx context.Context, limit time.Time, key string, commands ...words) ([]*redis.Cmd, error) {
	n, err := s.find(ctx, limit, key)
	if err != nil {
		return nil, err
	}
	return n.ask(ctx, limit, commands...)
}

// redirect sends a call to where an answer says that the key is, or is about to be. It is false where none does.
func (s *servers) redirect(n *node, c *call) bool {
	for _, cmd := range c.commands {
		address, asking := redirection(cmd.Err())
		if address == "" || c.redirected == mostRedirections {
			continue
		}
		s.reload()
		for i, cmd := range c.commands {
			c.commands[i] = redis.NewCmd(context.Background(), cmd.Args()...)
		}
		c.redirected, c.asking = c.redirected+1, asking
		s.at(n.client, address).start(c, false)
		return true
	}
	return false
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
	if s.cluster != nil {
		s.cluster.ReloadState(context.Background())
	}
}

func (s *servers) close() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, n := range s.nodes {
		err = errors.Join(err, n.client.Close())
	}
	clear(s.nodes)
	return err
}

// primary makes connections by way of Sentinel: one to another address closes those to the address before, so that the
// old and the new primary are never both in use.
type primary struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

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
	if err != nil {
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
