package redislock_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go/internal/testserver"
	"slock.example/go/redislock"
)

func TestServer_withoutTheModule(t *testing.T) {
	rdb := testserver.NewPlain(t).Client(t)
	_, err := redislock.Obtain(t.Context(), rdb, newKey(), time.Hour, nil)
	var reply redis.Error
	if !errors.As(err, &reply) || !strings.Contains(err.Error(), "--loadmodule") {
		t.Fatalf("the error is %v", err)
	}
}

// A server that has just started answers errors for a while, and the retry strategy asks again.
func TestServer_thatHasJustStarted(t *testing.T) {
	rdb := testserver.New(t, "slock.restart-grace-ms", "3600000").Client(t)
	key := newKey()

	_, err := redislock.Obtain(t.Context(), rdb, key, time.Hour, nil)
	if !redis.HasErrorPrefix(err, "GRACE") {
		t.Fatalf("the error is %v", err)
	}
	_, err = redislock.Obtain(t.Context(), rdb, key, time.Hour, &redislock.Options{
		RetryStrategy: &spy{pause: time.Millisecond, before: func(retry int) {
			if retry == 3 {
				if err := rdb.ConfigSet(t.Context(), "slock.restart-grace-ms", "0").Err(); err != nil {
					t.Error(err)
				}
			}
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestServer_ofACluster(t *testing.T) {
	bus, err := testserver.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	_, busPort, _ := net.SplitHostPort(bus)
	node := testserver.New(t, "--cluster-enabled", "yes", "--cluster-port", busPort).Client(t)
	if err := node.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(node.ClusterInfo(t.Context()).Val(), "cluster_state:ok") {
		time.Sleep(5 * time.Millisecond)
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{node.Options().Addr}})
	defer rdb.Close()

	lock := obtainMulti(t, rdb, []string{"{job}:1", "{job}:2"}, nil)
	wantTTL(t, lock, time.Hour)
	if err := lock.Refresh(t.Context(), time.Minute, nil); err != nil {
		t.Fatal(err)
	}
	wantTTL(t, lock, time.Minute)
	release(t, lock)

	_, err = redislock.ObtainMulti(t.Context(), rdb, []string{"{a}", "{b}"}, time.Hour, nil)
	if !redis.HasErrorPrefix(err, "CROSSSLOT") {
		t.Fatalf("the error is %v", err)
	}
}

func TestClient_ring(t *testing.T) {
	testserver.Need(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": testserver.Shared.Addr}})
	defer ring.Close()
	lock := obtain(t, ring, newKey(), time.Hour, nil)
	wantTTL(t, lock, time.Hour)
	release(t, lock)
}

func TestClient_oneConnection(t *testing.T) {
	conn := connect(t).Conn()
	defer conn.Close()
	lock := obtain(t, conn, newKey(), time.Hour, nil)
	wantTTL(t, lock, time.Hour)
	release(t, lock)
}

// SCRIPT FLUSH, and a failover to a server that does not know the scripts, are not noticed.
func TestClient_scriptsForgotten(t *testing.T) {
	rdb := testserver.New(t).Client(t)
	lock := obtain(t, rdb, newKey(), time.Hour, nil)
	if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	wantTTL(t, lock, time.Hour)
	release(t, lock)
}
