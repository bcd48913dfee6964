package slock

import (
	"math"
	"time"
)

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
	request  requestSettings
	waiting  waiting
	strategy Strategy
	retryFor time.Duration
	observer Observer
	quorum   quorumSettings
}

type waiting int

const (
	byNotify waiting = iota
	byBlocking
	byPolling
)

func newSettings(options []Option) settings {
	s := settings{
		request:  requestSettings{ttl: 10 * time.Second, replicaTimeout: time.Second},
		retryFor: 3 * time.Second,
		observer: noObserver{},
		quorum:   quorumSettings{driftFactor: 0.01},
	}
	for _, option := range options {
		option.apply(&s)
	}
	if s.observer == nil {
		s.observer = noObserver{}
	}
	return s
}

// leastTTL is the shortest ttl. A hold counts as valid for 1 ms less.
const leastTTL = 2 * time.Millisecond

// TTL sets how long a hold lives without a renewal: 2 ms or more. The server counts in milliseconds; a
// fraction counts as a whole one. The default is 10 seconds.
func TTL(ttl time.Duration) RequestOption {
	return func(s *requestSettings) { s.ttl = ttl }
}

// Wait sets how long Lock waits at most. A deadline of the context ends the wait too, whichever comes first.
// Without either, Lock waits until the lock is granted. A wait of zero asks once.
func Wait(wait time.Duration) RequestOption {
	return func(s *requestSettings) { s.wait, s.hasWait = wait, true }
}

// Limit lets at most n readers hold the lock at once: a semaphore of n permits, 1 or more. It is for reading
// only. Give all requests for a key the same limit.
func Limit(n int) RequestOption {
	return func(s *requestSettings) { s.limit, s.hasLimit = n, true }
}

// Metadata sets a text of at most 1024 bytes that SLOCK.INFO key FULL shows with the hold and while it waits.
func Metadata(text string) RequestOption {
	return func(s *requestSettings) { s.metadata = text }
}

// NoRenewal turns the watchdog off: the hold ends a ttl after the grant, unless Extend is called.
func NoRenewal() RequestOption {
	return func(s *requestSettings) { s.noRenewal = true }
}

// LongestLease lets the watchdog renew no longer than this after the grant. Then the hold is lost, so that a
// program that is stuck does not hold for ever.
func LongestLease(lease time.Duration) RequestOption {
	return func(s *requestSettings) { s.longestLease = lease }
}

// Token sets the owner's identity, of 1 to 255 bytes. Without it each use of a request takes 128 random bits.
// The same token that asks again gets the same hold, so use it only where one owner asks at a time. What a
// lost hold with such a token may have left on the server stays until its ttl.
//
// A request waits until earlier releases with its token have ended, within its own wait, or for at most 2 s if
// it asks once. A command that got no answer may still be carried out on a later hold of the token.
func Token(token string) RequestOption {
	return func(s *requestSettings) { s.token = token }
}

// MinReplicas lets a hold count only when n replicas have confirmed it within the timeout. Otherwise it is
// released, and the error is ErrTooFewReplicas. A Quorum ignores it.
func MinReplicas(n int, timeout time.Duration) RequestOption {
	return func(s *requestSettings) { s.minReplicas, s.replicaTimeout = n, timeout }
}

// Label sets the name under which the observer hears of the request. The default is the first key.
func Label(label string) RequestOption {
	return func(s *requestSettings) { s.label = label }
}

// WaitByNotify lets all waits share one connection (in a cluster: one for each node), which SSUBSCRIBEs to a
// channel. This is the default. Where the user may not subscribe, waits block instead.
func WaitByNotify() Option {
	return locksOption(func(s *settings) { s.waiting = byNotify })
}

// WaitByBlocking gives each wait a connection of its own, apart from the pool of the client.
func WaitByBlocking() Option {
	return locksOption(func(s *settings) { s.waiting = byBlocking })
}

// WaitByPolling asks again and again. Nobody is served in order then.
func WaitByPolling(strategy Strategy) Option {
	return locksOption(func(s *settings) { s.waiting, s.strategy = byPolling, strategy })
}

// RetryFor sets how long a command is sent again after connection errors, where neither a wait nor the
// validity of a hold sets the end: for TryLock, Adopt and Locks.Release. A Lock is asked again as long as it
// waits. The default is 3 seconds.
func RetryFor(duration time.Duration) Option {
	return locksOption(func(s *settings) { s.retryFor = duration })
}

// WithObserver sets what hears of waits, holds and losses.
func WithObserver(observer Observer) Option {
	return locksOption(func(s *settings) { s.observer = observer })
}

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

func (s *requestSettings) labelOr(key string) string {
	if s.label != "" {
		return s.label
	}
	return key
}

// milliseconds rounds up: a wait of 0 ms would be one without end, and a ttl of 0 an error.
func milliseconds(d time.Duration) int64 {
	ms := d / time.Millisecond
	if d > ms*time.Millisecond {
		ms++
	}
	return int64(ms)
}
