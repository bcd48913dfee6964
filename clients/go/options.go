package slock

import (
	"cmp"
	"log/slog"
	"math"
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

// Option is an option of New or NewQuorum. Each RequestOption is one too: it sets the default of all
// requests.
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
	hasWait        bool
	limit          int
	hasLimit       bool
	metadata       string
	noRenewal      bool
	longestLease   time.Duration
	token          string
	minReplicas    int
	replicaTimeout time.Duration
	label          string
}

type settings struct {
	request                requestSettings
	waiting                waiting
	strategy               Strategy
	retryFor, retryWaitFor time.Duration
	hooks                  Hooks
	log                    *slog.Logger

	// of a Quorum
	driftFactor float64
	nodeTimeout time.Duration
	failFast    bool
}

type waiting int

const (
	byNotify waiting = iota
	byBlocking
	byPolling
)

func newSettings(options []Option) settings {
	s := settings{
		request:      requestSettings{ttl: 10 * time.Second, replicaTimeout: time.Second},
		retryFor:     3 * time.Second,
		retryWaitFor: time.Minute,
		log:          slog.Default(),
		driftFactor:  0.01,
	}
	for _, option := range options {
		option.apply(&s)
	}
	return s
}

// leastTTL is the shortest ttl. A hold counts as valid for a little more than 1 ms less.
const leastTTL = 2 * time.Millisecond

// TTL sets how long a hold lives without a renewal: 2 ms or more. The server counts in milliseconds; a
// fraction counts as a whole one. The default is 10 seconds.
func TTL(ttl time.Duration) RequestOption { return func(s *requestSettings) { s.ttl = ttl } }

// Wait sets how long Lock waits at most. A deadline of the context ends the wait too, whichever comes first.
// Without either, Lock waits until the lock is granted. A wait of zero asks once.
func Wait(wait time.Duration) RequestOption {
	return func(s *requestSettings) { s.wait, s.hasWait = wait, true }
}

// Limit lets at most n readers hold the lock at once: a semaphore of n permits, 1 or more. It is for reading
// only. Give all requests for a key the same limit.
func Limit(n int) RequestOption { return func(s *requestSettings) { s.limit, s.hasLimit = n, true } }

// Metadata sets a text of at most 1024 bytes that SLOCK.INFO key FULL shows with the hold and while it waits.
func Metadata(text string) RequestOption { return func(s *requestSettings) { s.metadata = text } }

// NoRenewal turns the watchdog off: the hold ends a ttl after the grant, unless Extend is called.
func NoRenewal() RequestOption { return func(s *requestSettings) { s.noRenewal = true } }

// LongestLease ends the hold so long after the grant, however often it is renewed or extended: it is lost then. So a
// program that is stuck does not hold for ever.
func LongestLease(lease time.Duration) RequestOption {
	return func(s *requestSettings) { s.longestLease = lease }
}

// Token sets the owner's identity, of 1 to 255 bytes, for handing a hold over (Hold.HandOver and Request.Adopt).
// Without it each use of a request takes 128 random bits. Two acquisitions of one key by one token are one hold for
// the server, and the program's own affair; different keys are safe.
func Token(token string) RequestOption { return func(s *requestSettings) { s.token = token } }

// MinReplicas lets a hold count only when n replicas have confirmed it within the timeout. Otherwise it is
// released, and the error is ErrTooFewReplicas. A Quorum ignores it.
func MinReplicas(n int, timeout time.Duration) RequestOption {
	return func(s *requestSettings) { s.minReplicas, s.replicaTimeout = n, timeout }
}

// Label sets the name under which hooks hear of the request. The default is the first key.
func Label(label string) RequestOption { return func(s *requestSettings) { s.label = label } }

// WaitByNotify lets all waits share one connection (in a cluster: one for each node), which SSUBSCRIBEs to a
// channel. This is the default. Where the user may not subscribe, waits block instead.
func WaitByNotify() Option { return locksOption(func(s *settings) { s.waiting = byNotify }) }

// WaitByBlocking gives each wait a connection of its own, apart from the pool of the client.
func WaitByBlocking() Option { return locksOption(func(s *settings) { s.waiting = byBlocking }) }

// WaitByPolling asks again and again. Nobody is served in order then.
func WaitByPolling(strategy Strategy) Option {
	return locksOption(func(s *settings) { s.waiting, s.strategy = byPolling, strategy })
}

// RetryFor sets how long a command is sent again while no answer to a call has come at all. The default is 3
// seconds: then Lock ends with the error, whatever its wait. TryLock, Adopt, Extend and Release end then too.
func RetryFor(duration time.Duration) Option {
	return locksOption(func(s *settings) { s.retryFor = duration })
}

// RetryWaitFor sets how long a request that waits survives an outage, without any contact to the server. The
// default is a minute.
func RetryWaitFor(duration time.Duration) Option {
	return locksOption(func(s *settings) { s.retryWaitFor = duration })
}

// WithHooks sets what hears of waits, holds and losses.
func WithHooks(hooks Hooks) Option { return locksOption(func(s *settings) { s.hooks = hooks }) }

// WithLogger sets where to log, instead of slog.Default. See the README for what is logged.
func WithLogger(logger *slog.Logger) Option {
	return locksOption(func(s *settings) { s.log = cmp.Or(logger, slog.Default()) })
}

// NodeTimeout sets how long a Quorum waits for one node. The default is a twentieth of the ttl, at least 50 ms and at
// most RetryFor. It is always less than the ttl.
func NodeTimeout(timeout time.Duration) Option {
	return locksOption(func(s *settings) { s.nodeTimeout = timeout })
}

// DriftFactor sets which part of the ttl does not count for a Quorum, because clocks run at different speeds. The
// default is 0.01.
func DriftFactor(factor float64) Option {
	return locksOption(func(s *settings) { s.driftFactor = factor })
}

// FailFast ends an attempt of a Quorum as soon as the majority cannot be reached any more, without the answers of
// the other nodes.
func FailFast() Option { return locksOption(func(s *settings) { s.failFast = true }) }

// check says what is wrong with the settings of a request, before anything is sent.
func (s *requestSettings) check(keys []string, mode Mode) error {
	switch {
	case len(keys) == 0 || len(keys) > 1024:
		return invalid("a request needs 1 to 1024 keys, not %d", len(keys))
	case s.ttl < leastTTL:
		return tooShort(s.ttl)
	case s.hasWait && s.wait < 0:
		return invalid("the wait must not be negative, not %s", s.wait)
	case s.hasLimit && (s.limit < 1 || s.limit > math.MaxInt32):
		return invalid("the limit must be 1 to %d, not %d", math.MaxInt32, s.limit)
	case s.hasLimit && mode != Read:
		return invalid("a limit is for reading only")
	case len(s.metadata) > 1024:
		return invalid("the metadata must have at most 1024 bytes, not %d", len(s.metadata))
	case len(s.token) > 255:
		return invalid("the token must have at most 255 bytes, not %d", len(s.token))
	case s.longestLease < 0:
		return invalid("the longest lease must be positive, not %s", s.longestLease)
	case s.minReplicas < 0:
		return invalid("the number of replicas must not be negative, not %d", s.minReplicas)
	case s.minReplicas > 0 && s.replicaTimeout <= 0:
		return invalid("the timeout for replicas must be positive, not %s", s.replicaTimeout)
	}
	return nil
}

func tooShort(ttl time.Duration) error {
	return invalid("the ttl must be %s or more, not %s", leastTTL, ttl)
}
