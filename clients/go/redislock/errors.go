package redislock

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrNotObtained is returned when a lock cannot be obtained, and by [Lock.Refresh] when the lock is lost.
	ErrNotObtained = errors.New("redislock: not obtained")

	// ErrLockNotHeld is returned when a lock that is not held, or no longer held, is released.
	ErrLockNotHeld = errors.New("redislock: lock not held")
)

// explain adds to the error of a server without the module how to load it.
func explain(err error) error {
	if err == nil {
		return nil
	}
	text := strings.ToLower(err.Error())
	if strings.Contains(text, "unknown") && strings.Contains(text, "command called from script") {
		return fmt.Errorf("redislock: the server has not loaded the SLOCK module, "+
			"start it with --loadmodule and the module's file: %w", err)
	}
	return err
}

// mayHaveRun tells whether the server may have executed a command that ended with err.
func mayHaveRun(err error) bool {
	var reply redis.Error
	if err == nil || errors.As(err, &reply) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrClosed) {
		return false
	}
	var network *net.OpError
	return !errors.As(err, &network) || network.Op != "dial"
}
