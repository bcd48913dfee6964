package redislock_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"slock.example/go/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// connect returns a client of the shared server, and closes it after the test.
func connect(t *testing.T) *redis.Client {
	t.Helper()
	testserver.Need(t)
	return testserver.Shared.Client(t)
}

func connectWith(t *testing.T, options *redis.Options) *redis.Client {
	t.Helper()
	client := redis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	return client
}

var lastKey atomic.Int64

// newKey returns a name that no other test uses.
func newKey() string { return fmt.Sprintf("lock:%d", lastKey.Add(1)) }
