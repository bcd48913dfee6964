package slock

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file has the words of the commands, and what the replies mean. It sends nothing.

const (
	// refuseFor is for how long the server refuses an owner token after the end of its acquisition: what is still on
	// its way by then is not expected any more.
	refuseFor = 120 * time.Second
	// serverWait is how long a request waits on the server at most unless it is sent again. A request whose program has
	// died leaves the queue after that.
	serverWait = 15 * time.Second
)

// owner is an owner token and the keys that it wants or holds.
type owner struct {
	names []string // of the keys for the program
	keys  []string // for the server, with the prefix
	token string
	given bool // by the program: other acquisitions may use it too
}

// draw is 128 random bits in 22 characters, as secret as an owner token and a tag have to be.
func draw() string {
	var bits [16]byte
	_, _ = rand.Read(bits[:]) // never fails
	return base64.RawStdEncoding.EncodeToString(bits[:])
}

// command is a command for one key or for several, by its two names.
func (o owner) command(single, several string, rest ...any) Call {
	c := Call{Key: o.keys[0], KeyAt: 1}
	words := make([]any, 0, 3+len(o.keys)+len(rest)+9) // room for META, LIMIT, WAIT and NOTIFY
	if len(o.keys) == 1 && single != "" {
		words = append(words, single, o.keys[0])
	} else {
		c.KeyAt = 2
		words = append(words, several, len(o.keys))
		for _, key := range o.keys {
			words = append(words, key)
		}
	}
	c.Commands = [][]any{append(append(words, o.token), rest...)}
	return c
}

// with is the call with further arguments of its last command.
func (c Call) with(arguments ...any) Call {
	commands := slices.Clone(c.Commands)
	last := &commands[len(commands)-1]
	*last = append(slices.Clip(*last), arguments...)
	c.Commands = commands
	return c
}

// then is the call with a further command.
func (c Call) then(words ...any) Call {
	c.Commands = append(slices.Clip(c.Commands), words)
	return c
}

// lock asks for the lock.
func (o owner) lock(mode Mode, s *requestSettings) Call {
	single, several := "SLOCK.LOCK", "SLOCK.MLOCK"
	if mode == Read {
		single, several = "SLOCK.RLOCK", "SLOCK.MRLOCK"
	}
	c := o.command(single, several, milliseconds(s.ttl))
	words := &c.Commands[0]
	if s.metadata != "" {
		*words = append(*words, "META", s.metadata)
	}
	if s.hasLimit {
		*words = append(*words, "LIMIT", s.limit)
	}
	return c
}

// adopt gives the fence of what the token holds in the mode, and never takes a lock.
func (o owner) adopt(mode Mode, ttl time.Duration) Call {
	return o.lock(mode, &requestSettings{ttl: ttl}).with("XX")
}

// extend prolongs the hold with the fence, or whatever the token holds if it is 0. It never shortens, so it does no harm
// when it arrives late.
func (o owner) extend(ttl time.Duration, fence int64) Call {
	return fenced(o.command("SLOCK.EXTEND", "SLOCK.MEXTEND", milliseconds(ttl), "GT"), fence)
}

// keep has the hold end after a time, be it sooner or later than without.
func (o owner) keep(ttl time.Duration, fence int64) Call {
	return fenced(o.command("SLOCK.EXTEND", "SLOCK.MEXTEND", milliseconds(ttl)), fence)
}

// change makes the hold of a single key one of this mode.
func (o owner) change(to Mode, ttl time.Duration, fence int64) Call {
	name := "SLOCK.UPGRADE"
	if to == Read {
		name = "SLOCK.DOWNGRADE"
	}
	return fenced(o.command(name, "", milliseconds(ttl)), fence)
}

// withdraw ends a waiting upgrade.
func (o owner) withdraw() Call { return o.command("SLOCK.CANCEL", "") }

// end ends the acquisition: the server withdraws what waits, releases what is held, and refuses what arrives later. A
// token of the program's may be in use for another hold: it is not refused, and of it the hold with the fence ends, if
// that is known.
func (o owner) end(fence int64) Call {
	c := o.command("", "SLOCK.MUNLOCK")
	if !o.given {
		return c.with("REFUSE", refuseFor.Milliseconds())
	}
	return fenced(c, fence)
}

func fenced(c Call, fence int64) Call {
	if fence > 0 {
		return c.with("FENCE", fence)
	}
	return c
}

// milliseconds rounds up: a wait of 0 ms would be one without end, and a ttl of 0 an error.
func milliseconds(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// code is the first word of an error reply of the server, and else empty.
func code(err error) string {
	var reply *ReplyError
	if !errors.As(err, &reply) {
		return ""
	}
	word, _, _ := strings.Cut(reply.Error(), " ")
	return word
}

// passing are the codes after which the same command, with the same token, may succeed a little later.
var passing = []string{
	"UNBLOCKED", "TRYAGAIN", "READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "GRACE", "NOREPLICAS", "MISCONF",
	"MOVED", "ASK", "NOSUBSCRIBER",
}

// passes tells whether a command may succeed if it is sent again: the server said so, or there was no reply.
func passes(err error) bool {
	var own Error
	var unusable *UnusableError
	switch word := code(err); {
	case err == nil || errors.As(err, &own) || errors.As(err, &unusable) || errors.Is(err, errLeft):
		return false
	case word == "ERR":
		return strings.Contains(err.Error(), "max number of clients reached")
	default:
		return word == "" || slices.Contains(passing, word)
	}
}

// kinds are the errors that the server names by their code.
var kinds = map[string]error{
	"WRONGMODE": ErrWrongMode, "NOTHELD": ErrNotHeld, "DEADLOCK": ErrDeadlock, "QUEUEFULL": ErrQueueFull,
	"REFUSED": ErrRefused,
}

// explain gives an error reply its kind. Others are those of the Redis client library.
func explain(err error) error {
	var reply *ReplyError
	var unusable *UnusableError
	switch err = kinded(err); {
	case errors.As(err, new(Error)):
	case errors.As(err, &reply):
		return reply.Err
	case errors.As(err, &unusable):
		return unusable.Err
	}
	return err
}

// kinded gives an error reply its kind, if it has one.
func kinded(err error) error {
	var reply *ReplyError
	if !errors.As(err, &reply) {
		return err
	}
	if kind := kinds[code(reply)]; kind != nil {
		return because(kind, "", reply.Err)
	}
	if strings.Contains(strings.ToLower(reply.Error()), "unknown command") {
		return because(ErrModuleNotLoaded, "", reply.Err)
	}
	return err
}

// readMessage reads "<n> <tag>": n is a fence, 0, or the code of an error after a minus.
func readMessage(payload string) (tag string, number int64, err error) {
	first, tag, _ := strings.Cut(payload, " ")
	if word, isError := strings.CutPrefix(first, "-"); isError {
		return tag, 0, &ReplyError{fmt.Errorf("%s the server ended the wait", word)}
	}
	number, err = strconv.ParseInt(first, 10, 64)
	return tag, number, err
}
