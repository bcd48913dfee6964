package slock

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// server is where the keys are: one server, a primary found by Sentinel, or a cluster.
type server struct {
	redis.UniversalClient
}

// check says whether the kind of client can be used. A Ring cannot: it moves keys to another server when one
// is down.
func (s server) check() error {
	switch s.UniversalClient.(type) {
	case *redis.Client, *redis.ClusterClient:
		return nil
	}
	return invalid("the client must be a *redis.Client or a *redis.ClusterClient, not %T", s.UniversalClient)
}

func (s server) isCluster() bool {
	_, ok := s.UniversalClient.(*redis.ClusterClient)
	return ok
}

// node is the client of the primary that has the key.
func (s server) node(ctx context.Context, key string) (*redis.Client, error) {
	switch rdb := s.UniversalClient.(type) {
	case *redis.Client:
		return rdb, nil
	case *redis.ClusterClient:
		return rdb.MasterForKey(ctx, key)
	}
	return nil, s.check()
}

// send runs one command. A cluster whose node does not answer is looked at again: a failover may be over, and
// the lost node would never say that the slot has moved.
func (s server) send(ctx context.Context, cmd redis.Cmder) error {
	err := s.Process(ctx, cmd)
	s.noticeError(err)
	return err
}

func (s server) noticeError(err error) {
	rdb, ok := s.UniversalClient.(*redis.ClusterClient)
	if ok && err != nil && isTemporary(err) {
		rdb.ReloadState(context.Background())
	}
}

// withoutTimeouts gives the options of the node for a client apart: without repeats, and without an end of
// waiting for replies.
func withoutTimeouts(node *redis.Client) *redis.Options {
	options := *node.Options()
	options.MaxRetries = -1
	options.ReadTimeout = -1
	options.DialerRetries = 1
	options.MinIdleConns = 0
	options.MaxActiveConns = 0
	options.ContextTimeoutEnabled = false
	options.PipelinePoolSize = -1
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if options.WriteTimeout <= 0 {
		options.WriteTimeout = 3 * time.Second
	}
	return &options
}
