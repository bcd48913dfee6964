package slock

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// command is one command of the module. go-redis must not repeat it: this package knows until when a command
// may be repeated, and it notes that an answer may have been lost.
type command struct{ *redis.Cmd }

// NoRetry keeps go-redis from repeating the command.
func (command) NoRetry() bool { return true }

func newCommand(ctx context.Context, keyPosition int8, args ...any) command {
	c := command{redis.NewCmd(ctx, args...)}
	c.SetFirstKeyPos(keyPosition)
	return c
}

// owner is a token and the keys it asks for or holds.
type owner struct {
	keys  []string
	token string
}

// args are the arguments of a command for one key or, with M before its name, for several; and the position
// of the first key.
func (o owner) args(single, several string, rest ...any) (int8, []any) {
	if len(o.keys) == 1 && single != "" {
		return 1, append([]any{"SLOCK." + single, o.keys[0], o.token}, rest...)
	}
	args := make([]any, 0, 3+len(o.keys)+len(rest))
	args = append(args, "SLOCK."+several, len(o.keys))
	for _, key := range o.keys {
		args = append(args, key)
	}
	return 2, append(append(args, o.token), rest...)
}

func (o owner) extend(ctx context.Context, ttl time.Duration) command {
	position, args := o.args("EXTEND", "MEXTEND", milliseconds(ttl))
	return newCommand(ctx, position, args...)
}

// release releases in the mode; without a mode, in whichever.
func (o owner) release(ctx context.Context, mode Mode) command {
	var name string
	switch mode {
	case Write:
		name = "UNLOCK"
	case Read:
		name = "RUNLOCK"
	}
	position, args := o.args(name, "MUNLOCK")
	return newCommand(ctx, position, args...)
}

func (o owner) cancel(ctx context.Context) command {
	return newCommand(ctx, 1, "SLOCK.CANCEL", o.keys[0], o.token)
}

// lock asks for the lock. The rest are further options, such as those of the wait.
func (o owner) lock(ctx context.Context, mode Mode, s *requestSettings, rest ...any) command {
	single, several := "LOCK", "MLOCK"
	if mode == Read {
		single, several = "RLOCK", "MRLOCK"
	}
	position, args := o.args(single, several, milliseconds(s.ttl))
	if s.metadata != "" {
		args = append(args, "META", s.metadata)
	}
	if s.hasLimit {
		args = append(args, "LIMIT", s.limit)
	}
	return newCommand(ctx, position, append(args, rest...)...)
}

// temporaryCodes are the errors after which the same command, with the same token, may succeed a little
// later.
var temporaryCodes = []string{
	"UNBLOCKED", "TRYAGAIN", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "GRACE", "NOREPLICAS", "MOVED", "ASK",
	"ERR max number of clients reached",
}

// isTemporary tells whether to ask again: the server said so, or the connection failed.
func isTemporary(err error) bool {
	if err == nil {
		return false
	}
	if isConnectionError(err) {
		return true
	}
	for _, code := range temporaryCodes {
		if hasCode(err, code) {
			return true
		}
	}
	return false
}

// isConnectionError tells whether no answer came, so that nobody knows whether the command was run.
func isConnectionError(err error) bool {
	if err == nil || errors.Is(err, redis.ErrClosed) || errors.Is(err, redis.Nil) {
		return false
	}
	var reply redis.Error
	var own Error
	return !errors.As(err, &reply) && !errors.As(err, &own)
}

// mayRunLater tells that a command was sent and got no answer, so that the server may run it at any time later.
func mayRunLater(err error) bool { return isConnectionError(err) && !isDialError(err) }

// isDialError tells that nothing was sent.
func isDialError(err error) bool {
	var failed *net.OpError
	return errors.As(err, &failed) && failed.Op == "dial"
}

func hasCode(err error, code string) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	text := reply.Error()
	return strings.HasPrefix(text, code) && (len(text) == len(code) || text[len(code)] == ' ')
}

// named gives an error of the server its kind. Others stay as they are.
func named(err error) error {
	switch {
	case err == nil:
		return nil
	case hasCode(err, "WRONGMODE"):
		return &failure{kind: ErrWrongMode, cause: err}
	case hasCode(err, "NOTHELD"):
		return &failure{kind: ErrNotHeld, cause: err}
	case hasCode(err, "DEADLOCK"):
		return &failure{kind: ErrDeadlock, cause: err}
	case hasCode(err, "QUEUEFULL"):
		return &failure{kind: ErrQueueFull, cause: err}
	case hasCode(err, "ERR") && strings.Contains(strings.ToLower(err.Error()), "unknown command"):
		return &failure{kind: ErrModuleNotLoaded, cause: err}
	}
	return err
}

// serverError is an error that came as a message, without its sentence.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}
