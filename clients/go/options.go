// SPDX-License-Identifier: MIT OR Apache-2.0

package slock

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"
)

// This file has the options of requests and of Locks, their defaults, and the checks before anything is sent.

// Mode is how a lock is held: by one writer, or by readers.
type Mode string

const (
	// Write is the mode of one holder that excludes all others.
	Write Mode = "write"
	// Read is the mode of holders that exclude only writers.
	Read Mode = "read"
)

// Option is an option of New or NewQuorum. Each RequestOption is one too: it sets the default of all requests.
type Option interface {
	apply(*settings)
}

// RequestOption is an option of a request. See Request.With.
type RequestOption func(*requestSettings)

func (o RequestOption) apply(s *settings) { o(&s.request) }

type locksOption func(*settings)

func (o locksOption) apply(s *settings) { o(s) }

type requestSettings struct {
	ttl            time.Duration
	wait           time.Duration
	limit          int // noLimit: none
	metadata       string
	noRenewal      bool
	maxHold        time.Duration
	atLeast        time.Duration
	token          string
	hasToken       bool
	minReplicas    int
	replicaTimeout time.Duration
	label          string
}

// noLimit is the limit of a request without one.
const noLimit = math.MinInt

type settings struct {
	request                requestSettings
	prefix                 string
	retryFor, retryWaitFor time.Duration
	hooks                  Hooks
	log                    *slog.Logger

	// The part of a ttl that does not count for the validity.
	driftFactor float64
	driftMargin time.Duration

	// of a Quorum
	strategy    Strategy
	nodeTimeout time.Duration
	failFast    bool
}

func newSettings(options []Option) settings {
	s := settings{
		request: requestSettings{
			ttl: 10 * time.Second, wait: forever, limit: noLimit, replicaTimeout: time.Second, metadata: processName(),
		},
		retryFor:     3 * time.Second,
		retryWaitFor: time.Minute,
		log:          slog.Default(),
		driftFactor:  0.01,
		strategy:     ExponentialPause(20*time.Millisecond, 250*time.Millisecond, -1),
	}
	for _, option := range options {
		option.apply(&s)
	}
	return s
}

// counted is the part of a ttl that counts for the validity.
func (s *settings) counted(ttl time.Duration) time.Duration {
	return ttl - time.Duration(float64(ttl)*s.driftFactor) - s.driftMargin
}

// processName is the metadata of requests that have none: it tells an operator where to look for the owner.
func processName() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("host=%s pid=%d", cmp.Or(host, "unknown"), os.Getpid())
}

// leastOutage is how long a reply to a request that waits may take, at least.
const leastOutage = 2 * silentAfter

// leastTTL is the shortest ttl. A hold counts as valid for a little more than 1 ms less.
const leastTTL = 2 * time.Millisecond

// TTL sets how long a hold lives without a renewal: 2 ms or more. The server counts in milliseconds; a fraction counts
// as a whole one. The default is 10 seconds.
func TTL(ttl time.Duration) RequestOption {
	return func(s *requestSettings) { s.ttl = min(ttl, forever) }
}

// Wait sets how long Lock waits at most. A deadline of the context ends the wait too, whichever comes first. Without
// either, Lock waits until the lock is granted. With a wait below a millisecond, Lock sends the request once.
func Wait(wait time.Duration) RequestOption {
	return func(s *requestSettings) { s.wait = min(wait, forever) }
}

// Limit lets at most n readers hold the lock at once: a semaphore of n permits, 1 or more. It is for reading only. Give
// all requests for a key the same limit.
func Limit(n int) RequestOption { return func(s *requestSettings) { s.limit = n } }

// Metadata sets a text of at most 1024 bytes that SLOCK.INFO key FULL shows with the hold and while it waits. The
// default names the host and the process.
func Metadata(text string) RequestOption { return func(s *requestSettings) { s.metadata = text } }

// NoRenewal turns the watchdog off: the hold ends a ttl after the grant, unless Extend is called.
func NoRenewal() RequestOption { return func(s *requestSettings) { s.noRenewal = true } }

// MaxHold sets the maximum hold time: the hold is lost so long after the grant, and renewals cannot exceed it. So a
// program that is stuck does not hold the lock for ever. Zero, the default, means none.
func MaxHold(most time.Duration) RequestOption {
	return func(s *requestSettings) { s.maxHold = min(most, forever) }
}

// AtLeast keeps the lock for so long after the grant, even if the hold is released earlier: the release then only ends
// the renewal. It is for jobs that start on several machines whose clocks differ, and must run once. The time is at most the
// server's slock.max-ttl-ms: if it is longer than the ttl, that is checked before the lock is asked for.
func AtLeast(least time.Duration) RequestOption {
	return func(s *requestSettings) { s.atLeast = min(least, forever) }
}

// Token sets the owner token, of 1 to 255 bytes. Without it each acquisition draws 128 random bits. Give all locks of
// one task the same token, and the server refuses a wait that would be a deadlock of tasks. Two acquisitions of one key
// by one token are one hold for the server. If a command without a reply arrives late, it may take the lock again for
// its ttl: with a drawn token, the server refuses it.
func Token(token string) RequestOption {
	return func(s *requestSettings) { s.token, s.hasToken = token, true }
}

// MinReplicas lets a hold count only if n replicas acknowledge it within the timeout, at the grant and at each renewal.
// At the grant the lock is otherwise released, and the error is ErrTooFewReplicas. A Quorum ignores it.
func MinReplicas(n int, timeout time.Duration) RequestOption {
	return func(s *requestSettings) { s.minReplicas, s.replicaTimeout = n, min(timeout, forever) }
}

// Label sets the name of the request for hooks. The default is the first key.
func Label(label string) RequestOption { return func(s *requestSettings) { s.label = label } }

// Prefix is put before each key that is sent, and taken off in Info and Queues.
func Prefix(prefix string) Option { return locksOption(func(s *settings) { s.prefix = prefix }) }

// RetryFor sets how long a call goes on while no reply comes at all. The default is 3 seconds: then it ends with
// ErrNoAnswer, whatever its wait.
func RetryFor(duration time.Duration) Option {
	return locksOption(func(s *settings) { s.retryFor = min(duration, forever) })
}

// RetryWaitFor sets how long a request that waits survives an outage after the server has replied to it once. The
// default is a minute. Even with less than a second, a reply may take a second.
func RetryWaitFor(duration time.Duration) Option {
	return locksOption(func(s *settings) { s.retryWaitFor = min(max(duration, leastOutage), forever) })
}

// WithHooks sets functions that are called when a lock is granted, released or lost.
func WithHooks(hooks Hooks) Option { return locksOption(func(s *settings) { s.hooks = hooks }) }

// WithLogger sets where to log, instead of slog.Default. See the README for what is logged.
func WithLogger(logger *slog.Logger) Option {
	return locksOption(func(s *settings) { s.log = cmp.Or(logger, slog.Default()) })
}

// Poll sets the pauses between the attempts of a Quorum. The default is random pauses of 10 to 250 ms.
func Poll(strategy Strategy) Option { return locksOption(func(s *settings) { s.strategy = strategy }) }

// NodeTimeout sets how long a Quorum waits for one node. The default is a twentieth of the ttl, at least 50 ms and at
// most RetryFor. It is always less than the ttl.
func NodeTimeout(timeout time.Duration) Option {
	return locksOption(func(s *settings) { s.nodeTimeout = min(timeout, forever) })
}

// DriftFactor sets which part of the ttl does not count for a Quorum, because clocks run at different speeds. The
// default is 0.01.
func DriftFactor(factor float64) Option {
	return locksOption(func(s *settings) { s.driftFactor = factor })
}

// FailFast ends an attempt of a Quorum as soon as the majority is out of reach, without the replies of the other nodes.
func FailFast() Option { return locksOption(func(s *settings) { s.failFast = true }) }

// Strategy says how a quorum tries again: it gives the pause before the further attempt n, counted from 0, or false if
// there is none.
type Strategy func(n int) (pause time.Duration, more bool)

// ConstantPause tries again after each pause, for at most so many further attempts; a negative number is no limit.
func ConstantPause(pause time.Duration, attempts int) Strategy {
	return func(n int) (time.Duration, bool) { return pause, attempts < 0 || n < attempts }
}

// ExponentialPause tries again after pauses that begin with first and double up to most, for at most so many further
// attempts; a negative number is no limit. Each pause is shortened by a random part of up to a half, so that contenders
// do not try in step.
func ExponentialPause(first, most time.Duration, attempts int) Strategy {
	first, most = max(0, min(first, forever)), max(0, min(max(first, most), forever))
	return func(n int) (time.Duration, bool) {
		pause := time.Duration(min(math.Ldexp(float64(first), min(n, 30)), float64(most)))
		return pause/2 + rand.N(pause/2+1), attempts < 0 || n < attempts
	}
}

var (
	// afterErrors has the pauses after errors that pass.
	afterErrors = ExponentialPause(10*time.Millisecond, time.Second, -1)
	// polling has the pauses of a request that cannot wait by a message.
	polling = ExponentialPause(20*time.Millisecond, time.Second, -1)
)

// check says what is wrong with the settings of a request, before anything is sent.
func (s *requestSettings) check(keys []string, mode Mode) error {
	switch {
	case len(keys) == 0 || len(keys) > 1024:
		return invalid("a request needs 1 to 1024 keys, not %d", len(keys))
	case slices.Contains(keys, ""):
		return invalid("a key must not be empty")
	case len(keys) > 1 && len(slices.Compact(slices.Sorted(slices.Values(keys)))) < len(keys):
		return invalid("a key is named twice: %s", strings.Join(keys, ", "))
	case s.wait < 0:
		return invalid("the wait must not be negative, not %s", s.wait)
	case s.limit != noLimit && (s.limit < 1 || s.limit > math.MaxInt32):
		return invalid("the limit must be 1 to %d, not %d", math.MaxInt32, s.limit)
	case s.limit != noLimit && mode != Read:
		return invalid("a limit is for reading only")
	case len(s.metadata) > 1024:
		return invalid("the metadata must have at most 1024 bytes, not %d", len(s.metadata))
	case s.hasToken && (s.token == "" || len(s.token) > 255):
		return invalid("the owner token must have 1 to 255 bytes, not %d", len(s.token))
	case s.maxHold < 0 || s.atLeast < 0:
		return invalid("the times of MaxHold and AtLeast must not be negative, not %s and %s", s.maxHold, s.atLeast)
	case s.minReplicas < 0:
		return invalid("the number of replicas must not be negative, not %d", s.minReplicas)
	case s.minReplicas > 0 && s.replicaTimeout <= 0:
		return invalid("the timeout for replicas must be positive, not %s", s.replicaTimeout)
	}
	return nil
}

func (s *settings) checkTTL(ttl time.Duration) error {
	if ttl < leastTTL || s.counted(ttl) <= 0 {
		return invalid("the ttl must be %s or more, and of a quorum more than its drift, not %s", leastTTL, ttl)
	}
	return nil
}
