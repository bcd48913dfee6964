package redislock

import (
	"context"
	"embed"

	"github.com/redis/go-redis/v9"
)

//go:embed script
var files embed.FS

// Scripts, because a redis.Scripter can send nothing else, and because the metadata has to be compared in the
// same step.
var (
	obtainScript  = script("obtain")
	refreshScript = script("refresh")
	ttlScript     = script("ttl")
	releaseScript = script("release")
	abandonScript = script("abandon")
)

func script(name string) *redis.Script {
	text := ""
	for _, part := range []string{"mine", name} {
		lua, err := files.ReadFile("script/" + part + ".lua")
		if err != nil {
			panic(err) // they are in the binary
		}
		text += string(lua)
	}
	return redis.NewScript(text)
}

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
