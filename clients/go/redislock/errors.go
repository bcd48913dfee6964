// SPDX-License-Identifier: MIT OR Apache-2.0

package redislock

import (
	"errors"
	"net"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrNotObtained is returned when a lock cannot be obtained, and by [Lock.Refresh] when the lock is lost.
	ErrNotObtained = errors.New("redislock: not obtained")

	// ErrLockNotHeld is returned when a lock that is not held, or no longer held, is released.
	ErrLockNotHeld = errors.New("redislock: lock not held")
)

// mayHaveRun tells whether the server may have executed a command that ended with err.
func mayHaveRun(err error) bool {
	var reply redis.Error
	if err == nil || errors.As(err, &reply) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrClosed) {
		return false
	}
	var network *net.OpError
	return !errors.As(err, &network) || network.Op != "dial"
}
