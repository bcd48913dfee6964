// Command fenced shows why a write carries the fence of its lock: an owner that lost the lock without
// noticing writes late, and the storage refuses it.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// write keeps the greatest fence with the data, and refuses lesser ones.
var write = redis.NewScript(`
local seen = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
if tonumber(ARGV[1]) < seen then
  return redis.error_reply('STALE a later owner has written')
end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
return redis.status_reply('OK')
`)

func main() {
	address := flag.String("address", "localhost:6379", "the server, with the module")
	flag.Parse()
	if err := run(context.Background(), *address); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address string) error {
	rdb := redis.NewClient(&redis.Options{Addr: address})
	defer rdb.Close()
	locks := slock.New(rdb)
	defer locks.Close()

	// The first owner does not renew, as if its process were stopped.
	request := locks.Write("example:document")
	first, err := request.With(slock.TTL(50*time.Millisecond), slock.NoRenewal()).Lock(ctx)
	if err != nil {
		return err
	}
	second, err := request.Lock(ctx) // granted when the first has expired
	if err != nil {
		return err
	}
	defer second.Unlock(ctx)
	if err := write.Run(ctx, rdb, []string{"example:data"}, second.Fence(), "new").Err(); err != nil {
		return err
	}
	fmt.Println("the second owner has written")
	err = write.Run(ctx, rdb, []string{"example:data"}, first.Fence(), "old").Err()
	if err == nil || !strings.HasPrefix(err.Error(), "STALE") {
		return fmt.Errorf("the late write ended with %v", err)
	}
	fmt.Println("the late write of the first owner was refused:", err)
	return nil
}
