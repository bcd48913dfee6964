package redislock

import (
	"context"
	_ "embed" // the scripts

	"github.com/redis/go-redis/v9"
)

//go:embed script/mine.lua
var minePart string

//go:embed script/obtain.lua
var obtainPart string

//go:embed script/refresh.lua
var refreshPart string

//go:embed script/ttl.lua
var ttlPart string

//go:embed script/abandon.lua
var abandonPart string

//go:embed script/release.lua
var releasePart string

// Scripts, because a redis.Scripter can send nothing else, and because the metadata has to be compared in the
// same step.
var (
	obtainScript  = redis.NewScript(minePart + obtainPart)
	refreshScript = redis.NewScript(minePart + refreshPart)
	ttlScript     = redis.NewScript(minePart + ttlPart)
	releaseScript = redis.NewScript(minePart + releasePart)
	abandonScript = redis.NewScript(minePart + abandonPart)
)

// owner is what a script needs to know of a lock.
type owner struct {
	keys     []string // each once
	token    string
	metadata string
}

// run runs a script and returns its number.
func (o owner) run(
	ctx context.Context, client RedisClient, script *redis.Script, arguments ...any,
) (int64, error) {
	arguments = append([]any{o.token, o.metadata}, arguments...)
	number, err := script.Run(ctx, client, o.keys, arguments...).Int64()
	return number, explain(err)
}
