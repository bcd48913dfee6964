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

// owner is what the script needs to know of a lock.
type owner struct {
	keys     []string // each once
	token    string
	metadata string
}

// run does what the action says, and returns the script's number.
func (o owner) run(ctx context.Context, client RedisClient, action string, ttl ...any) (int64, error) {
	arguments := append([]any{action, o.token, o.metadata}, ttl...)
	number, err := script.Run(ctx, client, o.keys, arguments...).Int64()
	return number, explain(err)
}
