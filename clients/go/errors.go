package slock

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// This file has the errors that a program can tell apart.

// Error is what all errors of this package have in common. Use it with errors.As:
//
//	var problem slock.Error
//	if errors.As(err, &problem) { … }
//
// Errors of the network and of the server that this package gives no name of its own are those of the Redis client
// library.
type Error interface {
	error
	// SlockError does nothing. It tells these errors from others.
	SlockError()
}

// The kinds of errors. Use them with errors.Is.
var (
	// ErrNotAcquired means that TryLock found the lock held, or found others waiting for it.
	ErrNotAcquired error = &kind{"NotAcquired", "the lock is held"}
	// ErrTimedOut means that the server replied, and that others held the lock until the wait was over. A
	// *TimedOutError says who. If a deadline of the context ended the wait, errors.Is(err, context.DeadlineExceeded) is
	// true too.
	ErrTimedOut error = &kind{"TimedOut", "timed out"}
	// ErrNoAnswer means that no reply came from the server within the limit. errors.Is and errors.As find the last
	// error of the Redis client library.
	ErrNoAnswer error = &kind{"NoAnswer", "no reply from the server"}
	// ErrLost means that the hold ended and nobody released it through this package. A *LostError has the reason.
	ErrLost error = &kind{"Lost", "the lock was lost"}
	// ErrNotHeld means that the owner token does not hold all the keys, for example because the hold was released.
	ErrNotHeld error = &kind{"NotHeld", "the owner token does not hold the lock"}
	// ErrWrongMode means that the owner token holds the lock in the other mode.
	ErrWrongMode error = &kind{"WrongMode", "the owner token holds the lock in the other mode"}
	// ErrDeadlock means that the wait would have closed a cycle of owners that wait for each other.
	ErrDeadlock error = &kind{"Deadlock", "the wait would be a deadlock"}
	// ErrQueueFull means that the server lets no more requests wait.
	ErrQueueFull error = &kind{"QueueFull", "too many requests wait on the server"}
	// ErrRefused means that the server refuses the owner token, because its acquisition has been ended.
	ErrRefused error = &kind{"Refused", "the server refuses the owner token"}
	// ErrQuorumMissed means that neither a majority of the nodes of a Quorum granted the lock, nor a majority refused
	// it. A *QuorumError has their replies.
	ErrQuorumMissed error = &kind{"QuorumMissed", "no majority of the nodes granted or refused the lock"}
	// ErrTooFewReplicas means that the lock was granted, but too few replicas acknowledged it. It has been released.
	ErrTooFewReplicas error = &kind{"TooFewReplicas", "too few replicas acknowledged the lock"}
	// ErrModuleNotLoaded means that the server does not know the commands of the module.
	ErrModuleNotLoaded error = &kind{"ModuleNotLoaded", "the server has not loaded the SLOCK module: start it with" +
		" --loadmodule /path/to/libslock.so, or run MODULE LOAD /path/to/libslock.so"}
	// ErrClosed means that the Locks or the Quorum has been closed.
	ErrClosed error = &kind{"Closed", "the Locks has been closed"}
	// ErrInvalid means that an option or an argument is wrong. Nothing was sent.
	ErrInvalid error = &kind{"Invalid", "invalid argument"}
)

// kind is one of the errors above: a name for hooks, and a sentence.
type kind struct{ name, text string }

func (k *kind) Error() string { return "slock: " + k.text }
func (*kind) SlockError()     {}

// failure is an error of a kind, with a text of its own and causes.
type failure struct {
	kind   error
	text   string
	causes []error
}

// because makes an error of a kind. The causes that are nil are left out.
func because(kind error, text string, causes ...error) error {
	return &failure{kind: kind, text: text, causes: slices.DeleteFunc(causes, func(err error) bool { return err == nil })}
}

func (f *failure) Error() string {
	text := "slock: " + f.text
	if f.text == "" {
		text = f.kind.Error()
	}
	return withCauses(text, f.causes...)
}

func (*failure) SlockError() {}

// Unwrap makes errors.Is and errors.As find the kind and the causes.
func (f *failure) Unwrap() []error { return append([]error{f.kind}, f.causes...) }

func withCauses(text string, causes ...error) string {
	for _, cause := range causes {
		if cause != nil && cause.Error() != "" {
			text += ": " + strings.ReplaceAll(cause.Error(), "\n", "; ") // joined errors have a line each
		}
	}
	return text
}

func invalid(format string, args ...any) error {
	return because(ErrInvalid, fmt.Sprintf(format, args...))
}

// named is "lock a, b", as texts of errors name what they are about.
func named(keys []string) string { return "lock " + strings.Join(keys, ", ") }

// noAnswer is the error of a call that had no reply in time, or only replies after which it was sent again. Of the
// causes, the first is the last of these errors.
func noAnswer(keys []string, within time.Duration, causes ...error) error {
	what := "no reply"
	if code(causes[0]) != "" {
		what = "no lock"
	}
	text := fmt.Sprintf("%s from the server within %s (%s)", what, within.Round(time.Millisecond), named(keys))
	causes[0] = explain(causes[0])
	return because(ErrNoAnswer, text, causes...)
}

// notHeldError is an ErrNotHeld whose text is made when it is read: each release makes one.
type notHeldError struct {
	keys []string
	mode Mode
}

func (e *notHeldError) Error() string {
	return fmt.Sprintf("slock: the owner token does not hold %s for %s", named(e.keys), e.mode)
}

func (*notHeldError) Is(target error) bool { return target == ErrNotHeld }

func (*notHeldError) SlockError() {}

// TimedOutError says that others held the lock until the wait was over. errors.Is(err, ErrTimedOut) is true for it.
type TimedOutError struct {
	// Keys are the keys of the request.
	Keys []string
	// Waited is how long the call waited.
	Waited time.Duration
	// Holders are holders of the first key that somebody held when the wait was over. It is empty if nobody did by then,
	// or if the user may not run SLOCK.INFO.
	Holders []Holder

	cause error // context.DeadlineExceeded if a deadline of the context ended the wait
}

func (e *TimedOutError) Error() string {
	text := fmt.Sprintf("slock: timed out after %s waiting for %s", e.Waited.Round(time.Millisecond), named(e.Keys))
	for i, holder := range e.Holders {
		text += []string{"; held by ", ", "}[min(i, 1)] + holder.Token
		if holder.Metadata != "" {
			text += " (" + holder.Metadata + ")"
		}
	}
	return withCauses(text, e.cause)
}

// Unwrap makes errors.Is know ErrTimedOut, and context.DeadlineExceeded where that ended the wait.
func (e *TimedOutError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrTimedOut}
	}
	return []error{ErrTimedOut, e.cause}
}

// SlockError marks it as an Error.
func (*TimedOutError) SlockError() {}

// Reason says why a hold was lost.
type Reason string

const (
	// Gone means that the server said that the owner token does not hold the keys any more.
	Gone Reason = "gone"
	// Expired means that no renewal succeeded in time.
	Expired Reason = "expired"
	// MaxHoldOver means that the time of MaxHold has passed.
	MaxHoldOver Reason = "max hold"
	// LocksClosed means that the Locks was closed before, so that nothing renewed the hold.
	LocksClosed Reason = "closed"
)

// LostError is the error of a hold that was lost. errors.Is(err, ErrLost) is true for it.
type LostError struct {
	// Keys are the keys of the hold.
	Keys []string
	// Reason says why it was lost.
	Reason Reason
	// Cause is the error of the last renewal of a hold that expired. It is nil if that one succeeded, or if there was
	// none.
	Cause error
}

func (e *LostError) Error() string {
	return withCauses(fmt.Sprintf("slock: %s was lost: %s", named(e.Keys), e.Reason), e.Cause)
}

// orNil is the error as a plain one.
func (e *LostError) orNil() error {
	if e == nil {
		return nil
	}
	return e
}

// Unwrap makes errors.Is know ErrLost and the Cause.
func (e *LostError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrLost}
	}
	return []error{ErrLost, e.Cause}
}

// SlockError marks it as an Error.
func (*LostError) SlockError() {}

// QuorumError has the reply of each node. errors.As finds it in an ErrQuorumMissed and in an ErrTimedOut of a Quorum.
// errors.Is and errors.As find the errors of the nodes too.
type QuorumError struct {
	// Needed is how many nodes are a majority.
	Needed int
	// Answers has one reply for each node, in the order of the clients.
	Answers []NodeAnswer
}

// NodeAnswer is the reply of one node.
type NodeAnswer struct {
	// Node is the address of the node.
	Node string
	// Granted is whether the node granted or extended the hold. If not, and without an Err, others have the lock
	// there.
	Granted bool
	// Err is what went wrong, if anything.
	Err error
}

func (a NodeAnswer) String() string {
	switch {
	case a.Err != nil:
		return a.Node + ": " + a.Err.Error()
	case a.Granted:
		return a.Node + ": granted"
	}
	return a.Node + ": refused"
}

func (e *QuorumError) Error() string {
	texts := make([]string, len(e.Answers))
	for i, a := range e.Answers {
		texts[i] = a.String()
	}
	return fmt.Sprintf("%d of %d nodes granted it, %d are needed (%s)",
		e.count(NodeAnswer.isGrant), len(e.Answers), e.Needed, strings.Join(texts, "; "))
}

// SlockError marks it as an Error.
func (*QuorumError) SlockError() {}

// Unwrap has the errors of the nodes.
func (e *QuorumError) Unwrap() (errs []error) {
	for _, a := range e.Answers {
		if a.Err != nil {
			errs = append(errs, a.Err)
		}
	}
	return errs
}

// outcome is the name of how an acquisition ended, for hooks and metrics.
func outcome(err error) string {
	var k *kind
	switch {
	case err == nil:
		return "granted"
	case errors.Is(err, ErrNotAcquired):
		return "refused"
	case errors.Is(err, ErrTimedOut):
		return "timed out"
	case errors.Is(err, ErrNotHeld):
		return "NotHeld"
	case errors.As(err, &k):
		return k.name
	case isCancelled(err):
		return "cancelled"
	}
	return "Other"
}
