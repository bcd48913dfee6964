// SPDX-License-Identifier: MIT OR Apache-2.0

package redislock

import (
	"context"
	_ "embed"
	"time"

	"github.com/redis/go-redis/v9"
)

// A script, because a redis.Scripter can send nothing else, and because the metadata has to be compared in the same
// step.
//
//go:embed lock.lua
var text string

var script = redis.NewScript(text)

// Lock is a lock that was obtained: one key or several, under one token. Several goroutines may use one.
type Lock struct {
	*Client
	keys, distinct  []string // as the caller named them, and each once
	token, metadata string
}

// Key returns the key of the lock: the first, if it has several.
func (l *Lock) Key() string { return l.keys[0] }

// Keys returns the keys of the lock, as they were given. Do not change the slice.
func (l *Lock) Keys() []string { return l.keys }

// Token returns the token, which is the owner's identity.
func (l *Lock) Token() string { return l.token }

// Metadata returns the metadata that the lock was obtained with.
func (l *Lock) Metadata() string { return l.metadata }

// TTL returns how long the lock is still held, in whole milliseconds: with several keys, the least time of
// all. It is 0 when the lock, or one of its keys, is no longer held. A nil Lock is [ErrLockNotHeld].
func (l *Lock) TTL(ctx context.Context) (time.Duration, error) {
	if l == nil {
		return 0, ErrLockNotHeld
	}
	left, err := l.run(ctx, "ttl")
	return time.Duration(max(left, 0)) * time.Millisecond, err
}

// Refresh gives the lock a new ttl from now on, cut to whole milliseconds. The new ttl may be shorter.
//
// It returns [ErrNotObtained] when the lock, or one of its keys, is no longer held: then nothing has changed.
// It does not try to obtain the lock again. After any other error the retry strategy of the options decides
// whether and when it tries again; without a deadline in ctx that ends after ttl. When no attempt is left,
// the last error is returned, and joined with that of ctx when ctx ended first. A nil Lock is
// [ErrNotObtained].
func (l *Lock) Refresh(ctx context.Context, ttl time.Duration, opt *Options) error {
	if l == nil {
		return ErrNotObtained
	}
	return attempts(ctx, ttl, opt.retryStrategy(), func(ctx context.Context) (bool, error) {
		extended, err := l.run(ctx, "refresh", milliseconds(ttl))
		if err == nil && extended == 0 {
			return false, ErrNotObtained
		}
		return err != nil, err
	})
}

// Release releases the lock.
//
// It returns [ErrLockNotHeld] when the lock, or one of its keys, is no longer held, or when the Lock is nil.
// Keys that are still held are released all the same. A context that is over releases nothing: use one that
// is not when the work's own context may end.
func (l *Lock) Release(ctx context.Context) error {
	if l == nil {
		return ErrLockNotHeld
	}
	released, err := l.run(ctx, "release")
	if err == nil && released == 0 {
		return ErrLockNotHeld
	}
	return err
}

// run does what the action says, and returns the script's number.
func (l *Lock) run(ctx context.Context, action string, ttl ...any) (int64, error) {
	arguments := append([]any{action, l.token, l.metadata}, ttl...)
	return script.Run(ctx, l.client, l.distinct, arguments...).Int64()
}
