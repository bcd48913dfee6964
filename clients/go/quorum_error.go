package slock

import (
	"fmt"
	"strings"
)

// QuorumError says what each node answered. Of these two one is true: errors.Is(err, ErrTimedOut) when a
// majority of nodes refused until the wait was over, because others have the lock, and errors.Is(err,
// ErrQuorumMissed) when that is not so: too few nodes answered to know.
// errors.Is and errors.As find the errors of the nodes too, and errors.Is finds context.DeadlineExceeded when a
// context's deadline ended the wait.
type QuorumError struct {
	// Needed is how many nodes are a majority.
	Needed int
	// Answers has one answer for each node, in the order of the clients.
	Answers []NodeAnswer

	heldKeys []string // the keys that others had until the wait was over; nil: no majority refused
	ended    error    // what ended the wait, if it was the context
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
	granted := 0
	for i, a := range e.Answers {
		texts[i] = a.String()
		if a.Granted {
			granted++
		}
	}
	problem := ErrQuorumMissed.Error()
	if e.heldKeys != nil {
		problem = timedOutText(e.heldKeys)
	}
	return fmt.Sprintf("%s: %d of %d granted it, %d are needed (%s)",
		withCause(problem, e.ended), granted, len(e.Answers), e.Needed, strings.Join(texts, "; "))
}

// SlockError marks it as an Error.
func (*QuorumError) SlockError() {}

// Is makes errors.Is true for ErrTimedOut or for ErrQuorumMissed.
func (e *QuorumError) Is(target error) bool {
	if e.heldKeys != nil {
		return target == ErrTimedOut
	}
	return target == ErrQuorumMissed
}

// Unwrap gives what ended the wait, and the errors of the nodes.
func (e *QuorumError) Unwrap() []error {
	var errs []error
	if e.ended != nil {
		errs = append(errs, e.ended)
	}
	for _, a := range e.Answers {
		if a.Err != nil {
			errs = append(errs, a.Err)
		}
	}
	return errs
}

// mayHelp tells whether another attempt may end otherwise: not where a majority of nodes gives errors that
// last.
func (e *QuorumError) mayHelp() bool {
	lasting := 0
	for _, a := range e.Answers {
		if a.Err != nil && !isTemporary(a.Err) {
			lasting++
		}
	}
	return lasting < e.Needed
}

// isRefusal tells whether others have the lock at so many nodes that there can be no majority, whatever the
// other nodes say.
func (e *QuorumError) isRefusal() bool {
	refused := 0
	for _, a := range e.Answers {
		if a.Err == nil && !a.Granted {
			refused++
		}
	}
	return refused > len(e.Answers)-e.Needed
}
