// Command agent plays the operations of clients/conformance that take and release a lock with bsm/redislock, for
// bench/failovers.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

type request struct {
	ID      int64    `json:"id"`
	Op      string   `json:"op"`
	Hold    string   `json:"hold"`
	Nodes   []string `json:"nodes"`
	Service string   `json:"service"`
	Keys    []string `json:"keys"`
	TTLMS   int64    `json:"ttl_ms"`
}

// hold is a lock as its owner sees it: valid for a ttl after it was asked for.
type hold struct {
	lock  *redislock.Lock
	until time.Time
}

type agent struct {
	mu    sync.Mutex
	out   *json.Encoder
	locks *redislock.Client
	holds map[string]hold
}

func main() {
	a := &agent{out: json.NewEncoder(os.Stdout), holds: map[string]hold{}}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			panic(err)
		}
		go func() {
			ok, err := a.perform(r)
			a.mu.Lock()
			defer a.mu.Unlock()
			if err != nil {
				_ = a.out.Encode(map[string]any{"id": r.ID, "error": "Other", "text": err.Error()})
			} else {
				_ = a.out.Encode(map[string]any{"id": r.ID, "ok": ok})
			}
		}()
	}
}

func (a *agent) perform(r request) (map[string]any, error) {
	ctx := context.Background()
	a.mu.Lock()
	h, locks := a.holds[r.Hold], a.locks
	a.mu.Unlock()
	switch r.Op {
	case "open":
		rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: r.Service, SentinelAddrs: r.Nodes})
		a.mu.Lock()
		defer a.mu.Unlock()
		a.locks = redislock.New(rdb)
	case "acquire":
		ctx, end := context.WithTimeout(ctx, 15*time.Second)
		defer end()
		ttl := time.Duration(r.TTLMS) * time.Millisecond
		for {
			sent := time.Now()
			lock, err := locks.Obtain(ctx, r.Keys[0], ttl, nil)
			if err == nil {
				a.mu.Lock()
				defer a.mu.Unlock()
				a.holds[r.Hold] = hold{lock, sent.Add(ttl)}
				return map[string]any{"token": lock.Token()}, nil
			}
			if ctx.Err() != nil {
				return nil, err
			}
			time.Sleep(5 * time.Millisecond) // held by others, or the primary is being replaced
		}
	case "state":
		return map[string]any{"lost": !time.Now().Before(h.until)}, nil
	case "release":
		return map[string]any{}, h.lock.Release(ctx)
	}
	return map[string]any{}, nil
}
