// SPDX-License-Identifier: MIT OR Apache-2.0

package redislock

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisClient is what a [Client] needs of a client of go-redis: *redis.Client, *redis.ClusterClient,
// *redis.Ring and *redis.Conn have it, and so has whatever wraps one of them.
type RedisClient interface {
	redis.Scripter
}

// Client obtains locks. Several goroutines may use one.
type Client struct {
	client RedisClient
}

// New creates a client for locks on the server of a client of go-redis.
func New(client RedisClient) *Client { return &Client{client: client} }

// Obtain is a short form of New(client).Obtain.
func Obtain(ctx context.Context, client RedisClient, key string, ttl time.Duration, opt *Options) (*Lock, error) {
	return New(client).Obtain(ctx, key, ttl, opt)
}

// ObtainMulti is a short form of New(client).ObtainMulti.
func ObtainMulti(
	ctx context.Context, client RedisClient, keys []string, ttl time.Duration, opt *Options,
) (*Lock, error) {
	return New(client).ObtainMulti(ctx, keys, ttl, opt)
}

// Obtain tries to obtain the lock of a key. It lasts for ttl, cut to whole milliseconds, unless it is
// refreshed or released before. What is said of [Client.ObtainMulti] holds for one key too.
func (c *Client) Obtain(ctx context.Context, key string, ttl time.Duration, opt *Options) (*Lock, error) {
	return c.ObtainMulti(ctx, []string{key}, ttl, opt)
}

// ObtainMulti tries to obtain the locks of all keys, or of none, under one token. In a cluster the keys must
// be in one hash slot.
//
// When one of the locks is held by another token, the retry strategy of the options decides whether and when
// it tries again. Without a deadline in ctx the attempts end after ttl.
//
// It returns [ErrNotObtained] when no attempt is left, and an error that is both [ErrNotObtained] and that of
// ctx when ctx ends first; use [errors.Is]. Any other error ends the attempts at once, but for the one of a
// server that has just started and gives no new locks yet.
//
// After an error of the connection the server may have granted the lock all the same. A lock with a random
// token is then released in the background, as far as the server can be reached. One with a token of the
// caller stays until its ttl is over, because somebody may hold it on purpose: obtain it again, or let it
// expire.
func (c *Client) ObtainMulti(ctx context.Context, keys []string, ttl time.Duration, opt *Options) (*Lock, error) {
	if opt == nil {
		opt = &Options{}
	}
	lock := &Lock{Client: c, keys: slices.Clone(keys), token: opt.Token, metadata: opt.Metadata}
	lock.distinct = slices.Compact(slices.Sorted(slices.Values(keys))) // the server refuses a key that is named twice
	isRandom := lock.token == ""
	if isRandom {
		lock.token = randomToken()
	}
	err := attempts(ctx, ttl, opt.retryStrategy(), func(ctx context.Context) (bool, error) {
		canSend := ctx.Err() == nil
		fence, err := lock.run(ctx, "obtain", milliseconds(ttl))
		if err == nil && fence == 0 {
			return true, ErrNotObtained
		}
		if isRandom && canSend && mayHaveRun(err) {
			go lock.abandon(ctx, ttl)
		}
		return redis.HasErrorPrefix(err, "GRACE"), err // the server gives no new hold yet
	})
	if err != nil {
		return nil, err
	}
	return lock, nil
}

// abandon releases a lock that the server may have granted although the reply did not arrive, and has the server refuse
// what arrives later. It repeats that until it is answered; after ttl there is nothing left to release.
func (l *Lock) abandon(ctx context.Context, ttl time.Duration) {
	retry := ExponentialBackoff(10*time.Millisecond, time.Second)
	_ = attempts(context.WithoutCancel(ctx), ttl, retry, func(ctx context.Context) (bool, error) {
		_, err := l.run(ctx, "abandon")
		return mayHaveRun(err), err
	})
}

// randomToken returns 128 random bits as text of 22 characters.
func randomToken() string {
	bits := make([]byte, 16)
	_, _ = rand.Read(bits) // never fails
	return base64.RawURLEncoding.EncodeToString(bits)
}

func milliseconds(ttl time.Duration) int64 { return int64(ttl / time.Millisecond) }
