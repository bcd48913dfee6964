package slock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Adopt makes a hold of the request's keys and mode from a token that another process took, and renews it
// from now on. It fails with ErrNotHeld when the token does not hold all keys, and with ErrWrongMode when it
// holds them in the other mode. The other process should stop renewing, and not release.
func (r Request) Adopt(ctx context.Context, token string) (*Hold, error) {
	if err := r.With(Token(token)).check(); err != nil {
		return nil, err
	}
	if token == "" {
		return nil, invalid("the token must not be empty")
	}
	if r.locks.ending.Err() != nil {
		return nil, ErrClosed
	}
	r.settings.token = token
	if !r.locks.tokenTasks.wait(ctx, r.locks.ending, retryEnd(r.locks.settings.retryFor), token) {
		return nil, ended(ctx, r.locks.ending, r.keys, errStillRuns)
	}
	o := r.owner()
	var sent time.Time
	held, lost, err := r.locks.repeat(ctx, retryEnd(r.locks.settings.retryFor), func(ctx context.Context) command {
		sent = time.Now()
		return o.extend(ctx, r.settings.ttl)
	})
	if err != nil {
		return nil, err
	}
	if held == 0 {
		return nil, ErrNotHeld
	}
	// The fence is looked up, because a command that gives it would take the lock if the token had lost it by
	// now.
	mode, fence, err := r.locks.lookUp(ctx, o)
	if err != nil {
		return nil, err
	}
	if mode != r.mode {
		return nil, &failure{kind: ErrWrongMode, text: fmt.Sprintf("it is held for %s", mode)}
	}
	u := &unanswered{}
	u.note(r.settings.ttl, lost)
	return r.locks.newHold(ctx, r, o, u, grant{fence: fence, until: sent.Add(counted(r.settings.ttl))}), nil
}

// lookUp gives the mode and the fence of what the token holds.
func (l *Locks) lookUp(ctx context.Context, o owner) (Mode, int64, error) {
	node, err := l.server.node(ctx, o.keys[0]) // a replica may be behind
	if err != nil {
		return "", 0, err
	}
	reply, err := node.Do(ctx, "SLOCK.INFO", o.keys[0], "FULL", "COUNT", 0).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", 0, named(err)
	}
	info := fields(reply)
	holders, _ := info["holders"].([]any)
	for _, holder := range holders {
		if h := fields(holder); h["token"] == o.token {
			mode, _ := info["mode"].(string)
			fence, _ := h["fence"].(int64)
			return Mode(mode), fence, nil
		}
	}
	return "", 0, ErrNotHeld
}

// fields makes a map of a map, which RESP2 gives as a flat array.
func fields(reply any) map[any]any {
	switch reply := reply.(type) {
	case map[any]any:
		return reply
	case []any:
		m := make(map[any]any, len(reply)/2)
		for i := 0; i+1 < len(reply); i += 2 {
			m[reply[i]] = reply[i+1]
		}
		return m
	}
	return nil
}
