package slock_test

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// newCluster is a cluster of two primaries, each with half of the slots, and a client of it.
func newCluster(t *testing.T) (*redis.ClusterClient, [2]*world) {
	t.Helper()
	var nodes [2]*world
	for i, slots := range [][2]int{{0, 8191}, {8192, 16383}} {
		bus, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		s := newServer(t, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus))
		nodes[i] = &world{server: s, t: t, rdb: s.client(t)}
		nodes[i].do("CLUSTER", "ADDSLOTSRANGE", slots[0], slots[1])
		if i > 0 {
			host, port, _ := net.SplitHostPort(s.addr)
			nodes[0].do("CLUSTER", "MEET", host, port, bus)
		}
	}
	for _, node := range nodes {
		eventually(t, func() bool {
			info := node.do("CLUSTER", "INFO").(string)
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:2")
		})
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].addr, nodes[1].addr}})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb, nodes
}

// Holds that are due at once are renewed together, but a node that does not answer keeps only its own.
func TestSilentNodeOfAClusterKeepsOnlyItsOwnHolds(t *testing.T) {
	rdb, nodes := newCluster(t)
	locks := slock.New(rdb, slock.TTL(1500*time.Millisecond), slock.RetryFor(0))
	defer locks.Close()
	var mu sync.Mutex
	var holds [2][]*slock.Hold
	var all sync.WaitGroup
	for n := range 400 {
		beside(&all, func() {
			hold, err := locks.Write(fmt.Sprint(n)).Lock(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			slot := must(rdb.ClusterKeySlot(t.Context(), fmt.Sprint(n)).Result())
			mu.Lock()
			defer mu.Unlock()
			holds[slot/8192] = append(holds[slot/8192], hold)
		})
	}
	all.Wait()
	nodes[1].pause()
	defer nodes[1].resume()
	for _, hold := range holds[1] {
		<-hold.Context().Done()
	}
	for _, hold := range holds[0] {
		if err := hold.Check(); err != nil {
			t.Fatal(err)
		}
	}
}
