package slock

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Quorum takes locks on several independent servers: a hold counts while a majority of them has it, so that
// it outlives the loss of a minority. It polls, because no server knows of the others. All methods may be
// called by several goroutines at once. Close it when the program ends.
type Quorum struct {
	nodes    []node
	settings settings
	watchdog *watchdog

	ending     context.Context // done after Close
	end        context.CancelFunc
	background tasks
	tokenTasks tokenTasks
}

// node is one of the independent servers.
type node struct {
	server
	name string
}

type quorumSettings struct {
	driftFactor float64
	nodeTimeout time.Duration
	failFast    bool
}

// NodeTimeout sets how long a Quorum waits for one node. The default is a twentieth of the ttl, at least 50
// ms, and always less than the ttl.
func NodeTimeout(timeout time.Duration) Option {
	return locksOption(func(s *settings) { s.quorum.nodeTimeout = timeout })
}

// DriftFactor sets which part of the ttl does not count, because clocks run at different speeds. The default
// is 0.01.
func DriftFactor(factor float64) Option {
	return locksOption(func(s *settings) { s.quorum.driftFactor = factor })
}

// FailFast ends an attempt as soon as the majority cannot be reached any more, without the answers of the
// other nodes.
func FailFast() Option {
	return locksOption(func(s *settings) { s.quorum.failFast = true })
}

// NewQuorum makes a Quorum from clients of independent servers: not from replicas or nodes of one another.
// Their number should be odd. It sends nothing. The clients stay the caller's. They need a ReadTimeout, as
// they have by default.
//
// Options are the defaults of all requests (such as TTL), WaitByPolling, WithObserver, NodeTimeout,
// DriftFactor and FailFast. Without WaitByPolling the pauses between attempts are random, of 10 to 250 ms.
func NewQuorum(clients []redis.UniversalClient, options ...Option) *Quorum {
	q := &Quorum{settings: newSettings(options)}
	if q.settings.waiting != byPolling {
		q.settings.strategy = ExponentialPause(20*time.Millisecond, 250*time.Millisecond)
	}
	for _, client := range clients {
		q.nodes = append(q.nodes, node{server: server{client}, name: nodeName(client)})
	}
	q.ending, q.end = context.WithCancel(context.Background())
	q.watchdog = newWatchdog(q.renew)
	return q
}

func nodeName(client redis.UniversalClient) string {
	switch client := client.(type) {
	case *redis.Client:
		return client.Options().Addr
	case *redis.ClusterClient:
		if addresses := client.Options().Addrs; len(addresses) > 0 {
			return addresses[0]
		}
	}
	return "unknown"
}

// Write is a request for the lock of all keys, or of none, as the one writer. It sends nothing.
func (q *Quorum) Write(keys ...string) QuorumRequest {
	return QuorumRequest{quorum: q, keys: slices.Clone(keys), mode: Write, settings: q.settings.request}
}

// Read is a request for the lock of all keys, or of none, as a reader. It sends nothing.
func (q *Quorum) Read(keys ...string) QuorumRequest {
	return QuorumRequest{quorum: q, keys: slices.Clone(keys), mode: Read, settings: q.settings.request}
}

// Close stops the watchdog. It lets requests that were given up, and releases that were begun, get to the
// servers first, for at most the time of RetryFor. It releases nothing: holds that are still there are no
// longer renewed.
func (q *Quorum) Close() error {
	q.end()
	q.background.wait(q.settings.retryFor)
	q.watchdog.close()
	return nil
}

func (q *Quorum) majority() int { return len(q.nodes)/2 + 1 }

// nodeTimeout is how long to wait for one node.
func (q *Quorum) nodeTimeout(ttl time.Duration) time.Duration {
	timeout := q.settings.quorum.nodeTimeout
	if timeout <= 0 {
		timeout = max(ttl/20, 50*time.Millisecond)
	}
	return min(timeout, ttl*9/10)
}

// counts is how much of a ttl counts: clocks run at different speeds, and the servers count in milliseconds.
func (q *Quorum) counts(ttl time.Duration) time.Duration {
	return ttl - time.Duration(float64(ttl)*q.settings.quorum.driftFactor) - 2*time.Millisecond
}

func (q *Quorum) check() error {
	if len(q.nodes) == 0 {
		return invalid("a quorum needs servers")
	}
	for _, n := range q.nodes {
		if err := n.server.check(); err != nil {
			return err
		}
	}
	if f := q.settings.quorum.driftFactor; f < 0 || f >= 1 {
		return invalid("the drift factor must be 0 or more and less than 1, not %g", f)
	}
	return nil
}

// checkTTL refuses a ttl of which nothing counts: no attempt would ever succeed.
func (q *Quorum) checkTTL(ttl time.Duration) error {
	if q.counts(ttl) <= 0 {
		return invalid("the ttl must be more than 2 ms and the drift, not %s", ttl)
	}
	return nil
}
