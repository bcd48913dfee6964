package slock

import (
	"errors"
	"testing"
	"time"
)

// A lease reads no clock, so these tests set the time.
const began = instant(time.Hour)

func newTestLease() lease {
	l := lease{mode: Write, fence: 7, drift: oneServer, ttl: 10 * time.Second, renews: true}
	l.lengthen(began, l.ttl)
	return l
}

// The clock goes on while the machine sleeps, and the hold is over when it wakes.
func TestLeaseIsOverAfterASleep(t *testing.T) {
	l := newTestLease()
	counted := 10*time.Second - 10*time.Millisecond - time.Millisecond
	if l.look(began.add(counted - 1)); l.state != live {
		t.Fatal("it is over early")
	}
	if _, due := l.begin(began.add(time.Hour)); due || l.state != lost || l.reason != Expired {
		t.Fatal(due, l.state, l.reason)
	}
}

func TestAnswersCountForTheFenceThatTheyName(t *testing.T) {
	at := began.add(4 * time.Second)
	for name, c := range map[string]struct {
		change func(l *lease)
		fence  int64
		held   bool
		err    error
		lost   bool
	}{
		"the present fence":       {func(*lease) {}, 7, false, nil, true},
		"an earlier fence":        {func(l *lease) { l.fence = 8 }, 7, false, nil, false},
		"a change of mode":        {func(l *lease) { l.changing = true }, 7, false, nil, false},
		"an error":                {func(*lease) {}, 7, false, errors.New("no"), false},
		"it is held":              {func(*lease) {}, 7, true, nil, false},
		"it has been lost before": {func(l *lease) { l.lose(Gone) }, 7, true, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newTestLease()
			c.change(&l)
			before := l.until
			l.renewed(at, renewal{fence: c.fence, ttl: l.ttl, sent: at}, c.held, c.err)
			if (l.state == lost) != c.lost {
				t.Fatal(l.state, l.reason)
			}
			if moved := l.until > before; moved != (c.held && !c.lost) {
				t.Fatal(l.until.sub(before))
			}
		})
	}
}

func TestAnswerThatComesTooLateDoesNotRevive(t *testing.T) {
	l := newTestLease()
	l.renewed(began.add(time.Minute), renewal{fence: 7, ttl: l.ttl, sent: began.add(5 * time.Second)}, true, nil)
	if l.state != lost || l.reason != Expired {
		t.Fatal(l.state, l.reason)
	}
}

func TestRenewalIsDueAfterAThirdOfTheTTL(t *testing.T) {
	l := newTestLease()
	if _, due := l.begin(began.add(3 * time.Second)); due {
		t.Fatal("due after 3 s")
	}
	r, due := l.begin(began.add(3400 * time.Millisecond))
	if !due || r.fence != 7 || r.ttl != l.ttl {
		t.Fatal(r, due)
	}
	if _, again := l.begin(began.add(3500 * time.Millisecond)); again {
		t.Fatal("due again before there was time for an answer")
	}
}
