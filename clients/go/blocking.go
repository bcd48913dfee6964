package slock

import (
	"context"
	"errors"
	"time"
)

// This file has the tests of the server while a request waits on a connection of its own. No reply there is too late,
// and nobody would tell a connection that has nothing to send that its server was restarted. So other commands tell
// whether the server is in reach, and after an outage the request is asked again.

const (
	// testAfter is how long after the beginning of a wait the server is tested first, if there is so much time.
	testAfter = time.Second
	// testEvery is how often a server is tested while somebody waits there, and how long the answer may take.
	testEvery = 5 * time.Second
)

// errInReach is what a test tells.
var errInReach = errors.New("the server is in reach")

// test ends a wait when the server is out of reach. The first answer is waited for until the limit.
func (a *attempts) test(n *node, waits context.Context, lose context.CancelCauseFunc, pause time.Duration, limit time.Time) {
	for ; sleep(waits, a.by.ending, pause); pause = testEvery {
		limit = earlier(limit, time.Now().Add(testEvery))
		ping := newCall(limit, words{"PING"})
		err := n.do(waits, ping)
		if err == nil {
			err = ping.commands[0].Err()
		}
		if errors.Is(err, errLeft) {
			return
		}
		if a.locks.servers.note(err); isConnectionError(err) {
			lose(err)
			return
		}
		a.tell(heard{err: errInReach})
		limit = time.Time{}
	}
}
