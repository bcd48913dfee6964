// SPDX-License-Identifier: MIT OR Apache-2.0

package slock

import (
	"crypto/rand"
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
	given bool  // by the program: other acquisitions may use it too
	words []any // the keys and the token
}

// newOwner is the owner with this token, or with one that is drawn if it is empty.
func newOwner(names []string, prefix, token string) owner {
	o := owner{names: names, keys: names, token: token, given: token != ""}
	if !o.given {
		o.token = rand.Text()
	}
	if prefix != "" {
		o.keys = make([]string, len(names))
		for i, name := range names {
			o.keys[i] = prefix + name
		}
	}
	o.words = make([]any, 0, len(o.keys)+1)
	for _, key := range o.keys {
		o.words = append(o.words, key)
	}
	o.words = append(o.words, o.token)
	return o
}

// command is a command for one key or for several, by its two names.
func (o owner) command(single, several string, arguments ...any) Call {
	words := make([]any, 0, 6+len(o.words)+len(arguments))
	call := Call{Key: o.keys[0], KeyAt: 1, Command: append(words, single)}
	if len(o.keys) > 1 || single == "" {
		call.KeyAt, call.Command = 2, append(words, several, len(o.keys))
	}
	return call.add(o.words...).add(arguments...)
}

// add adds arguments to the command, which nobody else has yet.
func (c Call) add(arguments ...any) Call {
	c.Command = append(c.Command, arguments...)
	return c
}

// lock asks for the lock.
func (o owner) lock(mode Mode, s *requestSettings) Call {
	single, several := "SLOCK.LOCK", "SLOCK.MLOCK"
	if mode == Read {
		single, several = "SLOCK.RLOCK", "SLOCK.MRLOCK"
	}
	c := o.command(single, several, milliseconds(s.ttl))
	if s.metadata != "" {
		c = c.add("META", s.metadata)
	}
	if s.limit != noLimit {
		c = c.add("LIMIT", s.limit)
	}
	return c
}

// adopt gives the fence of what the token holds in the mode, and never takes a lock. Unless it is empty, the metadata
// replaces that of the hold.
func (o owner) adopt(mode Mode, ttl time.Duration, metadata string) Call {
	return o.lock(mode, &requestSettings{ttl: ttl, limit: noLimit, metadata: metadata}).add("XX")
}

// extend has the hold with the fence, or whatever the token holds if it is 0, end a ttl from now. If it only lengthens,
// it does no harm when it arrives late.
func (o owner) extend(ttl time.Duration, fence int64, lengthens bool) Call {
	c := o.command("SLOCK.EXTEND", "SLOCK.MEXTEND", milliseconds(ttl))
	if c.Reserved = lengthens; lengthens {
		c = c.add("GT")
	}
	return c.fenced(fence)
}

// change makes the hold of a single key one of this mode.
func (o owner) change(to Mode, ttl time.Duration, fence int64) Call {
	name := "SLOCK.UPGRADE"
	if to == Read {
		name = "SLOCK.DOWNGRADE"
	}
	return o.command(name, "", milliseconds(ttl)).fenced(fence)
}

// withdraw ends what waits, also for several keys: the server finds it by each of them.
func (o owner) withdraw() Call {
	return Call{Key: o.keys[0], KeyAt: 1, Command: []any{"SLOCK.CANCEL", o.keys[0], o.token}}
}

// ending ends the acquisition: the server withdraws what waits, releases what is held, and refuses what arrives later. A
// token of the program's may be in use for another hold: it is not refused, and of it the hold with the fence ends, if
// that is known. After a time means that the hold stands so long and is not renewed. The command is of use for a while.
func (o owner) ending(fence int64, after time.Duration) (call Call, within time.Duration) {
	if after > 0 {
		return o.extend(after, fence, false), after
	}
	call = o.command("", "SLOCK.MUNLOCK")
	if !o.given {
		return call.add("REFUSE", refuseFor.Milliseconds()), refuseFor
	}
	return call.fenced(fence), refuseFor
}

// givingUp ends an acquisition that has no hold. The end of a token of the program's withdraws nothing by itself.
func (o owner) givingUp() (call Call, within time.Duration) {
	call, within = o.ending(0, 0)
	if o.given {
		end := call.Command
		call = o.withdraw()
		call.Then = end
	}
	return call, within
}

func (c Call) fenced(fence int64) Call {
	if fence > 0 {
		return c.add("FENCE", fence)
	}
	return c
}

// waiting is the command with a place in the queue, whose end is told on a channel.
func (c Call) waiting(wait time.Duration, channel, tag string) Call {
	c.Command = append(slices.Clip(c.Command), "WAIT", milliseconds(wait), "NOTIFY", channel, tag)
	return c
}

// milliseconds rounds up: a wait of 0 ms would be one without end, and a ttl of 0 an error.
func milliseconds(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// code is the first word of an error reply of the server, and else empty.
func code(err error) string {
	reply, ok := err.(*ReplyError)
	if !ok {
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
	switch reply := err.(type) {
	case *Error:
		return false
	case *ReplyError:
		return slices.Contains(passing, code(reply)) || strings.Contains(reply.Error(), "max number of clients reached")
	}
	return err != nil && err != errTimedOut
}

// kinds are the errors that the server names by their code.
var kinds = map[string]error{
	"WRONGMODE": ErrWrongMode, "NOTHELD": ErrNotHeld, "DEADLOCK": ErrDeadlock, "QUEUEFULL": ErrQueueFull,
	"REFUSED": ErrRefused,
}

// explain gives an error reply about names its kind. Others become those of the Redis client library.
func explain(err error, names []string) error {
	reply, ok := err.(*ReplyError)
	switch kind := kinds[code(err)]; {
	case !ok:
		return err
	case kind != nil:
		return failure(kind, names, reply.Error(), reply.Err)
	case strings.Contains(strings.ToLower(reply.Error()), "unknown command"):
		return failure(ErrModuleNotLoaded, nil, "the server has not loaded the SLOCK module: start it with"+
			" --loadmodule /path/to/libslock.so, or run MODULE LOAD /path/to/libslock.so", reply.Err)
	}
	return reply.Err
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
