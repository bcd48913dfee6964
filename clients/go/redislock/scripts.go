package redislock

import (
	"context"
	_ "embed"

	"github.com/redis/go-redis/v9"
)

// A script, because a redis.Scripter can send nothing else, and because the metadata has to be compared in the same
// step.
//
//go:embed lock.lua
var text string

var script = redis.NewScript(text)

// run does what the action says, and returns the script's number.
func (l *Lock) run(ctx context.Context, action string, ttl ...any) (int64, error) {
	arguments := append([]any{action, l.token, l.metadata}, ttl...)
	number, err := script.Run(ctx, l.client, l.distinct, arguments...).Int64()
	return number, explain(err)
}
