package slock

// This file has the errors that a program can tell apart.

import (
	"fmt"
	"slices"
	"strings"
)

// Error is what all errors of this package have in common. Use it with errors.As:
//
//	var problem slock.Error
//	if errors.As(err, &problem) { … }
//
// Errors of the network and of the server that this package gives no name of its own are those of go-redis.
type Error interface {
	error
	// SlockError does nothing. It tells these errors from others.
	SlockError()
}

// The kinds of errors. Use them with errors.Is.
var (
	// ErrTimedOut means that the wait was over before the lock was granted. When a context's deadline ended
	// the wait, errors.Is(err, context.DeadlineExceeded) is true too. When the server could not be reached or
	// answered errors, errors.Is and errors.As find the last error.
	ErrTimedOut error = &kind{"timed out", "the wait is over"}
	// ErrLost means that the hold ended and nobody released it through this package. A *LostError has the
	// reason.
	ErrLost error = &kind{"Lost", "the hold is lost"}
	// ErrNotHeld means that the token holds none of the keys, or not all of them.
	ErrNotHeld error = &kind{"NotHeld", "the token does not hold the lock"}
	// ErrWrongMode means that the token holds the lock in the other mode.
	ErrWrongMode error = &kind{"WrongMode", "the token holds the lock in the other mode"}
	// ErrDeadlock means that the wait would have closed a cycle of owners that wait for each other.
	ErrDeadlock error = &kind{"Deadlock", "the wait would be a deadlock"}
	// ErrQueueFull means that the server lets no more requests wait.
	ErrQueueFull error = &kind{"QueueFull", "too many requests wait on the server"}
	// ErrQuorumMissed means that too few nodes of a Quorum granted, and too few refused. A *QuorumError has
	// their answers. When a majority refused because others have the lock, it is ErrTimedOut instead.
	ErrQuorumMissed error = &kind{"QuorumMissed", "no majority of the nodes granted or refused"}
	// ErrTooFewReplicas means that the lock was granted, but too few replicas confirmed it. It has been
	// released.
	ErrTooFewReplicas error = &kind{"TooFewReplicas", "too few replicas have the lock"}
	// ErrModuleNotLoaded means that the server does not know the commands of the module.
	ErrModuleNotLoaded error = &kind{"ModuleNotLoaded", "the server has not loaded the SLOCK module: start it with" +
		" --loadmodule /path/to/libslock.so, or run MODULE LOAD /path/to/libslock.so"}
	// ErrRefused means that the server refuses the token, because somebody gave its acquisition up (SLOCK.CANCEL
	// with REFUSE). It is final. An upgrade gives it for two minutes after another upgrade of the hold was given up.
	ErrRefused error = &kind{"Refused", "the server refuses the token"}
	// ErrClosed means that the Locks or the Quorum has been closed.
	ErrClosed error = &kind{"Closed", "closed"}
	// ErrInvalid means that an option or an argument is wrong. Nothing was sent.
	ErrInvalid error = &kind{"Invalid", "invalid argument"}
)

// kinds are those that the server names, by the first word of its error.
var kinds = map[string]error{
	"WRONGMODE": ErrWrongMode, "NOTHELD": ErrNotHeld, "DEADLOCK": ErrDeadlock, "QUEUEFULL": ErrQueueFull,
	"REFUSED": ErrRefused,
}

// kind is one of the errors above: a name for hooks, and a sentence.
type kind struct{ name, text string }

func (k *kind) Error() string { return "slock: " + k.text }
func (*kind) SlockError()     {}

// failure is an error of a kind with what is known about it.
type failure struct {
	kind  error
	text  string
	cause error
}

func (f *failure) Error() string {
	text := f.kind.Error()
	if f.text != "" {
		text += ": " + f.text
	}
	return withCause(text, f.cause)
}

func (*failure) SlockError() {}

func (f *failure) Unwrap() []error {
	return slices.DeleteFunc([]error{f.kind, f.cause}, func(err error) bool { return err == nil })
}

// about is an error with what was waited for, and what ended the wait, if it is known.
func about(kind error, what string, keys []string, cause error) error {
	return &failure{kind: kind, text: what + " of " + strings.Join(keys, ", "), cause: cause}
}

func withCause(text string, cause error) string {
	if cause == nil {
		return text
	}
	return text + ": " + strings.ReplaceAll(cause.Error(), "\n", "; ") // of joined errors
}

func invalid(format string, args ...any) error {
	return &failure{kind: ErrInvalid, text: fmt.Sprintf(format, args...)}
}

// Reason says why a hold was lost.
type Reason string

const (
	// Gone means that the server said that the token does not hold the key any more.
	Gone Reason = "gone"
	// Expired means that the hold was not renewed in time.
	Expired Reason = "expired"
	// LeaseEnded means that the longest lease ended.
	LeaseEnded Reason = "lease ended"
)

// LostError is the error of a hold that is lost. errors.Is(err, ErrLost) is true for it.
type LostError struct {
	// Keys are the keys of the hold.
	Keys []string
	// Reason says why it was lost.
	Reason Reason
	// Cause is the error of the last renewal of a hold that expired. It is nil when that one succeeded, or when
	// there was none.
	Cause error
}

func (e *LostError) Error() string {
	text := fmt.Sprintf("slock: the hold of %s is lost: %s", strings.Join(e.Keys, ", "), e.Reason)
	return withCause(text, e.Cause)
}

// Unwrap gives the Cause.
func (e *LostError) Unwrap() error { return e.Cause }

// SlockError marks it as an Error.
func (*LostError) SlockError() {}

// Is makes errors.Is(err, ErrLost) true.
func (*LostError) Is(target error) bool { return target == ErrLost }

// QuorumError says what each node answered. errors.As finds it in an ErrQuorumMissed, and in an ErrTimedOut of a Quorum.
// errors.Is and errors.As find the errors of the nodes too.
type QuorumError struct {
	// Needed is how many nodes are a majority.
	Needed int
	// Answers has one answer for each node, in the order of the clients.
	Answers []NodeAnswer
}

// NodeAnswer is what one node answered.
type NodeAnswer struct {
	// Node is the address of the node.
	Node string
	// Granted is whether it granted or extended the hold. If not, and without an Err, others have the lock
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

// Unwrap gives the errors of the nodes.
func (e *QuorumError) Unwrap() (errs []error) {
	for _, a := range e.Answers {
		if a.Err != nil {
			errs = append(errs, a.Err)
		}
	}
	return errs
}
