// SPDX-License-Identifier: MIT OR Apache-2.0

package slock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// This file has the errors that a program can tell apart.

// The kinds of errors. Use them with errors.Is. errors.As finds an *Error, which has what else is known. All other errors
// are those of the Redis client library, and those of a context.
var (
	// ErrNotAcquired means that TryLock found the lock held, or found others waiting for it.
	ErrNotAcquired = errors.New("NotAcquired")
	// ErrTimedOut means that the server replied, and that others held the lock until the wait was over. Error.Holders
	// says who. If a deadline of the context ended the wait, errors.Is(err, context.DeadlineExceeded) is true too.
	ErrTimedOut = errors.New("TimedOut")
	// ErrNoAnswer means that no reply came from the server within the limit, or none that decides. errors.Is and errors.As
	// find the last error of the Redis client library.
	ErrNoAnswer = errors.New("NoAnswer")
	// ErrLost means that the hold ended and nobody released it through this package. Error.Reason says why. Of a hold that
	// expired, errors.Is and errors.As find the error of the last renewal.
	ErrLost = errors.New("Lost")
	// ErrNotHeld means that the owner token does not hold all the keys, for example because the hold was released.
	ErrNotHeld = errors.New("NotHeld")
	// ErrWrongMode means that the owner token holds the lock in the other mode.
	ErrWrongMode = errors.New("WrongMode")
	// ErrDeadlock means that the wait would have closed a cycle of owners that wait for each other.
	ErrDeadlock = errors.New("Deadlock")
	// ErrQueueFull means that the server lets no more requests wait.
	ErrQueueFull = errors.New("QueueFull")
	// ErrRefused means that the server refuses the owner token, because its acquisition has been ended.
	ErrRefused = errors.New("Refused")
	// ErrQuorumMissed means that neither a majority of the nodes of a quorum granted the lock, nor a majority refused it.
	// Error.Nodes has their replies.
	ErrQuorumMissed = errors.New("QuorumMissed")
	// ErrTooFewReplicas means that the lock was granted, but too few replicas acknowledged it. It has been released.
	ErrTooFewReplicas = errors.New("TooFewReplicas")
	// ErrModuleNotLoaded means that the server does not know the commands of the module.
	ErrModuleNotLoaded = errors.New("ModuleNotLoaded")
	// ErrClosed means that the Locks has been closed.
	ErrClosed = errors.New("Closed")
	// ErrInvalid means that an option or an argument is wrong. Nothing was sent.
	ErrInvalid = errors.New("Invalid")
)

// Error is an error of this package.
type Error struct {
	// Kind is one of the errors above. errors.Is knows it.
	Kind error
	// Keys are the keys of the request, without the prefix.
	Keys []string
	// Reason is why a hold was lost.
	Reason Reason
	// Holders are holders of a key, at most 10, when a wait was over. There are none if nobody held it by then, or if the
	// user may not run SLOCK.INFO.
	Holders []Holder
	// Nodes are the replies of the nodes of a quorum, in the order of the clients.
	Nodes []NodeReply

	text   string // without keys and causes
	causes []error
}

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

// failure makes an error with a text about keys. Causes that are nil are left out.
func failure(kind error, keys []string, text string, causes ...error) *Error {
	isNil := func(err error) bool { return err == nil }
	return &Error{Kind: kind, Keys: keys, text: text, causes: slices.DeleteFunc(causes, isNil)}
}

func (e *Error) Error() string {
	text := "slock: " + e.text
	if len(e.Keys) > 0 {
		text += " (lock " + strings.Join(e.Keys, ", ") + ")"
	}
	for i, holder := range e.Holders {
		text += []string{", held by ", " and "}[min(i, 1)] + strings.TrimSpace(holder.Metadata+" "+holder.Token)
	}
	for _, cause := range e.causes {
		if strings.Contains(text, cause.Error()) {
			continue // it is the text
		}
		text += ": " + strings.ReplaceAll(cause.Error(), "\n", "; ") // joined errors have a line each
	}
	for _, node := range e.Nodes {
		text += "; " + node.String()
	}
	return text
}

// Unwrap has the kind and the causes, and the errors of the nodes of a quorum.
func (e *Error) Unwrap() []error {
	all := append([]error{e.Kind}, e.causes...)
	for _, node := range e.Nodes {
		if node.Err != nil {
			all = append(all, node.Err)
		}
	}
	return all
}

func invalid(format string, arguments ...any) error {
	return failure(ErrInvalid, nil, fmt.Sprintf(format, arguments...))
}

func notHeld(keys []string) *Error {
	return failure(ErrNotHeld, keys, "the owner token does not hold the lock in this mode")
}

// outcome is the name of how an acquisition ended, for hooks and metrics.
func outcome(err error) string {
	if err == nil {
		return "granted"
	}
	var known *Error
	switch {
	case errors.Is(err, ErrNotAcquired):
		return "refused"
	case errors.Is(err, ErrTimedOut):
		return "timed out"
	case errors.As(err, &known):
		return known.Kind.Error()
	case errors.Is(err, context.Canceled):
		return "cancelled"
	}
	return "Other"
}
