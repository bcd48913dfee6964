package slock

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// mostBlocked is how many requests may wait on a connection of their own at one server.
const mostBlocked = 10_000

// blocking has the connections for commands that wait. They are apart from those of the ordinary client,
// which has to have one left for a renewal or a release, and no reply on them is ever too late.
type blocking struct {
	server server

	mu      sync.Mutex
	closed  bool
	clients map[string]*redis.Client // by the address of the node
}

func newBlocking(s server) *blocking {
	return &blocking{server: s, clients: map[string]*redis.Client{}}
}

// client is the client for waits at the node that has the key.
func (b *blocking) client(key string) (*redis.Client, error) {
	node, err := b.server.node(context.Background(), key)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, ErrClosed
	}
	address := node.Options().Addr
	client := b.clients[address]
	if client == nil {
		options := withoutTimeouts(node)
		options.PoolSize = mostBlocked
		options.MaxIdleConns = 10
		client = redis.NewClient(options)
		b.clients[address] = client
	}
	return client, nil
}

func (b *blocking) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	var err error
	for _, client := range b.clients {
		if e := client.Close(); e != nil {
			err = e
		}
	}
	b.clients = nil
	return err
}

// block asks, and waits for the reply on a connection of its own.
func (a *acquisition) block() (int64, error) {
	client, err := a.locks.blocking.client(a.owner.keys[0])
	if err != nil {
		a.locks.server.noticeError(err)
		return 0, err
	}
	args, err := a.waitArgs()
	if err != nil {
		return 0, err
	}
	// The wait ends with the Locks too.
	callers := a.ctx
	ctx, cancel := context.WithCancel(callers)
	a.ctx = ctx
	stop := context.AfterFunc(a.locks.ending, cancel)
	defer func() {
		stop()
		cancel()
		a.ctx = callers
	}()
	fence, err := a.send(a.ask, func(ctx context.Context, cmd redis.Cmder) error {
		err := client.Process(ctx, cmd)
		a.locks.server.noticeError(err)
		return err
	}, args...)
	a.blocked = a.pending != nil
	return fence, err
}
