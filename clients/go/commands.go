package slock

import (
	"crypto/rand"
	"encoding/base64"
	"time"
)

// This file has the words of the commands. It sends nothing.

// refuseFor is for how long the server refuses a token after its acquisition was given up, in milliseconds: what is
// still under way by then is not expected any more.
const refuseFor = 120_000

// noFence is a fence that no hold has.
const noFence = 1

// words are a command and its arguments. The key that tells the node is that of the owner.
type words []any

// owner is a token and the keys that it asks for or holds.
type owner struct {
	keys  []string
	token string
	given bool // by the program: other acquisitions may use it too
}

// newToken is 128 random bits in 22 characters, which the server keeps without memory of their own.
func newToken() string {
	var bits [16]byte
	_, _ = rand.Read(bits[:]) // never fails
	return base64.RawStdEncoding.EncodeToString(bits[:])
}

// command is a command for one key or for several, by its two names.
func (o owner) command(single, several string, rest ...any) words {
	w := make(words, 0, 3+len(o.keys)+len(rest)+5)
	if len(o.keys) == 1 && single != "" {
		w = append(w, single, o.keys[0])
	} else {
		w = append(w, several, len(o.keys))
		for _, key := range o.keys {
			w = append(w, key)
		}
	}
	return append(append(w, o.token), rest...)
}

// lock asks for the lock. The rest are further options, such as those of the wait.
func (o owner) lock(mode Mode, s *requestSettings) words {
	single, several := "SLOCK.LOCK", "SLOCK.MLOCK"
	if mode == Read {
		single, several = "SLOCK.RLOCK", "SLOCK.MRLOCK"
	}
	w := o.command(single, several, milliseconds(s.ttl))
	if s.metadata != "" {
		w = append(w, "META", s.metadata)
	}
	if s.hasLimit {
		w = append(w, "LIMIT", s.limit)
	}
	return w
}

// refresh gives the fence of what the token holds in the mode, and never takes a lock.
func (o owner) refresh(mode Mode, ttl time.Duration) words {
	return append(o.lock(mode, &requestSettings{ttl: ttl}), "XX")
}

// extend never shortens, so it does no harm when it arrives late.
func (o owner) extend(ttl time.Duration, fence int64) words {
	return o.command("SLOCK.EXTEND", "SLOCK.MEXTEND", milliseconds(ttl), "GT", "FENCE", fence)
}

// change makes the hold of a single key one of this mode.
func (o owner) change(to Mode, ttl time.Duration, fence int64) words {
	name := "SLOCK.UPGRADE"
	if to == Read {
		name = "SLOCK.DOWNGRADE"
	}
	return o.command(name, "", milliseconds(ttl), "FENCE", fence)
}

// release releases the hold with the fence and no other.
func (o owner) release(mode Mode, fence int64) words {
	single := "SLOCK.UNLOCK"
	if mode == Read {
		single = "SLOCK.RUNLOCK"
	}
	return o.command(single, "SLOCK.MUNLOCK", "FENCE", fence)
}

// releaseInAnyMode releases whatever the token holds. The rest may name a fence.
func (o owner) releaseInAnyMode(rest ...any) words { return o.command("", "SLOCK.MUNLOCK", rest...) }

// cancel withdraws what waits. With a token of its own, it also has the server refuse what arrives later: the server
// keeps that by the name of each key.
func (o owner) cancel() []words {
	var all []words
	for _, key := range o.keys {
		w := words{"SLOCK.CANCEL", key, o.token}
		if !o.given {
			w = append(w, "REFUSE", refuseFor)
		}
		all = append(all, w)
	}
	return all
}

// lookAtModes asks for the fence of what the token holds to write, and to read.
func (o owner) lookAtModes(ttl time.Duration) []words {
	return []words{o.refresh(Write, ttl), o.refresh(Read, ttl)}
}

// end is the end of an acquisition in doubt: nothing waits, and nothing is held, whatever was carried out so far. With a
// token of the program's only the hold with the fence is released; the answers to the two commands before the last one
// tell which fence the token has.
func (o owner) end(fence int64) []words {
	if o.given {
		commands := append(o.cancel(), o.lookAtModes(time.Millisecond)...)
		return append(commands, o.releaseInAnyMode("FENCE", fence))
	}
	return append(o.cancel(), o.releaseInAnyMode())
}

// milliseconds rounds up: a wait of 0 ms would be one without end, and a ttl of 0 an error.
func milliseconds(d time.Duration) int64 {
	ms := d / time.Millisecond
	if d > ms*time.Millisecond {
		ms++
	}
	return int64(ms)
}
