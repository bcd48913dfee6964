package slock

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestValidityIsCounted(t *testing.T) {
	single, quorum := &NewWith(nothing{}).settings, &NewQuorumWith(nil).settings
	one, many := single.counted(10*time.Second), quorum.counted(10*time.Second)
	if one != 9989*time.Millisecond || many != 9898*time.Millisecond {
		t.Error(one, many)
	}
	l := lease{ttl: time.Minute, settings: single}
	l.grant(Write, answer{number: 1, sent: 1000})
	until := l.until
	l.lengthen(1000, time.Second) // an extension to less
	if l.until != until || l.ttl != time.Minute {
		t.Error("it was shortened")
	}
	if pause, _ := ExponentialPause(10*time.Second, time.Minute, -1)(100); pause < time.Minute/2 || pause > time.Minute {
		t.Error(pause)
	}
}

// nothing is a Transport that reaches nobody.
type nothing struct{ Transport }

func (nothing) Topology() (Topology, error) { return Topology{}, nil }

// extended replies to each extension as it is told, after the lease has changed.
type extended struct {
	keeper
	number int64
	before func()
}

func (k extended) extend(context.Context, time.Time, owner, time.Duration, int64, *requestSettings) (answer, error) {
	k.before()
	return answer{number: k.number, sent: now()}, nil
}

func (k extended) end(context.Context, owner, int64, time.Duration) (bool, error) { return true, nil }

// A reply to an extension counts for the fence that it named: a change of mode gives another one meanwhile.
func TestAnswersCountForTheirFence(t *testing.T) {
	l := NewWith(nothing{}, NoRenewal())
	r := l.Read("job")
	h := l.hold(t.Context(), &r, taken{owner: newOwner(r.keys, "", ""), grant: answer{number: 7, sent: now()}})
	h.keeper = extended{number: 0, before: func() { h.lease.grant(Write, answer{number: 8, sent: now()}) }}
	if err := h.Extend(t.Context(), time.Minute); err != nil || h.Mode() != Write {
		t.Error(err, h.Mode())
	}
	var second error // waits for the first one until its context is over
	h.keeper = extended{number: 0, before: func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		second = h.Extend(ctx, time.Minute)
	}}
	if err := h.Extend(t.Context(), time.Minute); !errors.Is(err, ErrLost) || !errors.Is(second, context.DeadlineExceeded) {
		t.Error(err, second)
	}
}
