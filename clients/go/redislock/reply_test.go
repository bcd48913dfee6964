package redislock_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go/internal/testserver"
	"slock.example/go/redislock"
)

// cutter makes connections that can be told to lose a reply: the server executes the command, and then the
// connection ends.
type cutter struct {
	replies atomic.Int32
}

func (c *cutter) loseNext(replies int32) {
	c.replies.Store(replies)
}

func (c *cutter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, addr)
	return &cutConn{Conn: conn, cutter: c}, err
}

type cutConn struct {
	net.Conn
	cutter *cutter
}

func (c *cutConn) Read(buffer []byte) (int, error) {
	n, err := c.Conn.Read(buffer)
	if err == nil && c.cutter.replies.Add(-1) >= 0 {
		c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// connectCut returns a client that loses replies, and that sends a command again at most so many times. It
// has one connection, which is set up, and the server knows the scripts.
func connectCut(t *testing.T, retries int) (*redis.Client, *cutter) {
	t.Helper()
	testserver.Need(t)
	cutter := &cutter{}
	rdb := connectWith(t, &redis.Options{
		Addr: testserver.Shared.Addr, Dialer: cutter.dial, MaxRetries: retries, PoolSize: 1, Protocol: 2,
		DisableIdentity: true,
	})
	lock := obtain(t, rdb, newKey(), time.Hour, nil)
	wantTTL(t, lock, time.Hour)
	release(t, lock)
	return rdb, cutter
}

func TestObtain_replyLostAndSentAgain(t *testing.T) {
	rdb, cutter := connectCut(t, 3)
	cutter.loseNext(1)
	lock := obtain(t, rdb, newKey(), time.Hour, nil)
	wantTTL(t, lock, time.Hour)
	release(t, lock)
}

// Nobody knows the random token, so the lock that was granted is released.
func TestObtain_replyLost(t *testing.T) {
	rdb, cutter := connectCut(t, -1)
	key := newKey()
	cutter.loseNext(1)
	_, err := redislock.Obtain(t.Context(), rdb, key, time.Hour, nil)
	wantError(t, err, io.ErrUnexpectedEOF)
	for rdb.Exists(t.Context(), key).Val() != 0 {
		time.Sleep(time.Millisecond)
	}
}

// The lock of a token that the caller gave stays: here somebody holds it.
func TestObtain_replyLostWithToken(t *testing.T) {
	rdb, cutter := connectCut(t, -1)
	client, key, worker := &failing{Client: rdb}, newKey(), &redislock.Options{Token: "worker-1"}
	lock := obtain(t, client, key, time.Hour, worker)

	client.failNext(0)
	cutter.loseNext(1)
	_, err := redislock.Obtain(t.Context(), client, key, time.Hour, worker)
	wantError(t, err, io.ErrUnexpectedEOF)
	for range 20 {
		wantTTL(t, lock, time.Hour)
	}
	if client.count() != 21 {
		t.Fatalf("%d scripts were run, want 21", client.count())
	}
	release(t, lock)
}

// A command that was never sent needs no release.
func TestObtain_notSent(t *testing.T) {
	rdb := connect(t)
	for name, prepare := range map[string]func() (redislock.RedisClient, context.Context, *failing){
		"context over": func() (redislock.RedisClient, context.Context, *failing) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			client := &failing{Client: rdb}
			return client, ctx, client
		},
		"no server": func() (redislock.RedisClient, context.Context, *failing) {
			client := &failing{Client: connectWith(t, &redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})}
			return client, t.Context(), client
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, ctx, counter := prepare()
			_, err := redislock.Obtain(ctx, client, newKey(), time.Hour, nil)
			if err == nil || errors.Is(err, redislock.ErrNotObtained) {
				t.Fatalf("the error is %v", err)
			}
			for range 20 {
				rdb.Ping(t.Context())
			}
			if counter.count() != 1 {
				t.Fatalf("%d scripts were run, want 1", counter.count())
			}
		})
	}
}

func TestRefresh_replyLost(t *testing.T) {
	rdb, cutter := connectCut(t, -1)
	lock := obtain(t, rdb, newKey(), time.Hour, nil)
	cutter.loseNext(1)
	err := lock.Refresh(t.Context(), time.Minute, &redislock.Options{
		RetryStrategy: redislock.LimitRetry(redislock.LinearBackoff(time.Millisecond), 1),
	})
	if err != nil {
		t.Fatal(err)
	}
	wantTTL(t, lock, time.Minute)
}
