package slock

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// mostInPipeline is how many renewals are sent in one go.
const mostInPipeline = 1000

// renew sends renewals, and notes their answers.
func (l *Locks) renew(renewals []renewal) {
	for _, group := range l.byNode(renewals) {
		for together := range slices.Chunk(group, mostInPipeline) {
			go l.renewTogether(together)
		}
	}
}

// byNode keeps apart what goes to different nodes: a pipeline ends with the last answer, so a node that is
// silent would keep the answers of the others away.
func (l *Locks) byNode(renewals []renewal) map[string][]renewal {
	if !l.server.isCluster() {
		return map[string][]renewal{"": renewals}
	}
	groups := map[string][]renewal{}
	for _, r := range renewals {
		var address string // of a node that is not known now
		if node, err := l.server.node(context.Background(), r.lease.owner.keys[0]); err == nil {
			address = node.Options().Addr
		}
		groups[address] = append(groups[address], r)
	}
	return groups
}

func (l *Locks) renewTogether(renewals []renewal) {
	ctx := context.Background()
	sent := time.Now()
	commands := make([]redis.Cmder, len(renewals))
	for i, r := range renewals {
		commands[i] = r.lease.owner.extend(ctx, r.ttl)
	}
	if len(commands) == 1 {
		_ = l.server.send(ctx, commands[0])
	} else {
		_ = l.server.sendAll(ctx, commands)
	}
	for i, r := range renewals {
		held, err := commands[i].(command).Int64()
		r.lease.finishRenewal(sent, r.ttl, held == 1, err)
	}
}
