package slock

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// onReplicas makes sure that enough replicas have the hold. The server's WAIT counts those that have what its
// own connection wrote last, so the hold is extended on the same connection before. It counts from there.
func (a *acquisition) onReplicas(g grant, least int, timeout time.Duration) (grant, error) {
	node, err := a.locks.server.node(context.Background(), a.owner.keys[0])
	if err != nil {
		return grant{}, err
	}
	// The timeout for replicas begins with the grant, which may be at the end of the wait.
	ctx := a.callers
	if !a.deadline.IsZero() && !a.byCaller {
		limited, cancel := context.WithTimeout(ctx, timeout+onlyAnswer)
		defer cancel()
		ctx = limited
	}
	sent := time.Now()
	count := newCommand(context.WithoutCancel(ctx), 0, "WAIT", least, milliseconds(timeout))
	pending, answered := call(ctx, count, func(ctx context.Context, cmd redis.Cmder) error {
		connection := node.WithTimeout(timeout + 3*time.Second).Conn()
		defer connection.Close()
		extend := a.owner.extend(ctx, a.ttl)
		if err := connection.Process(ctx, extend); err != nil {
			a.locks.server.noticeError(err)
			cmd.SetErr(err)
			return err
		}
		if extend.Val() == int64(0) {
			cmd.SetErr(errAskAgain)
			return errAskAgain
		}
		return connection.Process(ctx, cmd)
	})
	if !answered {
		a.pending, a.left = pending, count
		return grant{}, errLeft
	}
	replicas, err := count.Int64()
	a.unanswered.note(a.ttl, err)
	switch {
	case err != nil:
		return grant{}, err
	case replicas < int64(least):
		return grant{}, &failure{kind: ErrTooFewReplicas, text: fmt.Sprintf("%d of %d", replicas, least)}
	case time.Since(sent) >= counted(a.ttl):
		return grant{}, errAskAgain
	}
	return grant{fence: g.fence, until: sent.Add(counted(a.ttl))}, nil
}
