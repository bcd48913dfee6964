package slock

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// This file says what each answer of the server means. It does no input or output.

var (
	// errTaken is the answer 0 to a command that asks for a lock: others hold it, or wait for it.
	errTaken error = &kind{"refused", "the lock is not free"}
	// errLeft means that the client ended the wait for the answer: its context is over, or the Locks is closed.
	errLeft error = &kind{"left", "left"}
	// errAskAgain means that the request has to be asked again: the subscription or the hold was lost.
	errAskAgain error = &kind{"ask again", "ask again"}
	// errNoAnswer is the cause of a timeout at a server that is silent.
	errNoAnswer = errors.New("the server did not answer")
)

// temporaryCodes are the errors after which the same command, with the same token, may succeed a little later.
var temporaryCodes = []string{
	"UNBLOCKED", "TRYAGAIN", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "GRACE", "NOREPLICAS", "MOVED", "ASK",
	"NOSUBSCRIBER",
}

// isTemporary tells whether to ask again: the server said so, or the connection failed.
func isTemporary(err error) bool {
	word := code(err)
	isFull := word == "ERR" && strings.Contains(err.Error(), "max number of clients reached")
	return !errors.Is(err, ErrLost) &&
		(errors.Is(err, errAskAgain) || isConnectionError(err) || isFull || slices.Contains(temporaryCodes, word))
}

// isConnectionError tells whether no answer came, so that nobody knows whether the command was run.
func isConnectionError(err error) bool {
	if err == nil || err == redis.Nil || errors.Is(err, redis.ErrClosed) {
		return false
	}
	var reply redis.Error
	var own Error
	return !errors.As(err, &reply) && !errors.As(err, &own)
}

// mayRunLater tells that a command was sent and got no answer, so that the server may run it at any time later.
func mayRunLater(err error) bool {
	return errors.Is(err, errLeft) || isConnectionError(err) && !errors.Is(err, redis.ErrPoolTimeout) && !isDial(err)
}

// isSilence tells that an error only says that nothing came in time.
func isSilence(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, errNoAnswer) || errors.Is(err, redis.ErrPoolTimeout)
}

// asSilence makes errNoAnswer of the end of the time of a command: it is none of the program's contexts.
func asSilence(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) && !isDial(err) {
		return errNoAnswer
	}
	return err
}

// isDial tells that no connection could be made, so that nothing was sent.
func isDial(err error) bool {
	var failed *net.OpError
	return errors.As(err, &failed) && failed.Op == "dial"
}

// code is the first word of an error of the server, and else empty.
func code(err error) string {
	if err == nil || err == redis.Nil || errors.Is(err, ErrQuorumMissed) {
		return "" // what one node of a quorum says, says nothing of the others
	}
	var reply redis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	word, _, _ := strings.Cut(reply.Error(), " ")
	return word
}

func hasCode(err error, word string) bool { return code(err) == word }

// named gives an error of the server its kind. Others stay as they are.
func named(err error) error {
	if kind, ok := kinds[code(err)]; ok {
		return &failure{kind: kind, cause: err}
	}
	if hasCode(err, "ERR") && strings.Contains(strings.ToLower(err.Error()), "unknown command") {
		return &failure{kind: ErrModuleNotLoaded, cause: err}
	}
	return err
}

// serverError is an error that came as a message, without its sentence.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

// readMessage reads the first word of a message: a fence, 0, or the code of an error after a minus.
func readMessage(answer string) (int64, error) {
	if code, ok := strings.CutPrefix(answer, "-"); ok {
		return 0, serverError(code)
	}
	fence, err := strconv.ParseInt(answer, 10, 64)
	if err != nil {
		return 0, invalid("the message %q of the server is not understood", answer)
	}
	return fence, nil
}

// redirection is the address that MOVED or ASK names.
func redirection(err error) (address string, ask bool) {
	ask = hasCode(err, "ASK")
	if !ask && !hasCode(err, "MOVED") {
		return "", false
	}
	fields := strings.Fields(err.Error())
	return fields[len(fields)-1], ask
}

// outcome is the name of the end of an acquisition, for hooks.
func outcome(err error) string {
	if err == nil {
		return "granted"
	}
	var k *kind
	switch {
	case errors.As(err, &k):
		return k.name
	case errors.Is(err, context.Canceled):
		return "cancelled"
	}
	return "Other"
}
