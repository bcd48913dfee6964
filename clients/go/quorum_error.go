package slock

import (
	"fmt"
	"strings"
)

// QuorumError says what each node answered. errors.Is(err, ErrQuorumMissed) is true for it, and errors.Is and
// errors.As find the errors of the nodes too.
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
	granted := 0
	for i, a := range e.Answers {
		texts[i] = a.String()
		if a.Granted {
			granted++
		}
	}
	return fmt.Sprintf("%s: %d of %d granted it, %d are needed (%s)",
		ErrQuorumMissed, granted, len(e.Answers), e.Needed, strings.Join(texts, "; "))
}

// SlockError marks it as an Error.
func (*QuorumError) SlockError() {}

// Is makes errors.Is(err, ErrQuorumMissed) true.
func (*QuorumError) Is(target error) bool { return target == ErrQuorumMissed }

// Unwrap gives the errors of the nodes.
func (e *QuorumError) Unwrap() []error {
	var errs []error
	for _, a := range e.Answers {
		if a.Err != nil {
			errs = append(errs, a.Err)
		}
	}
	return errs
}
