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

// test tests the server while a call waits, until that is over or an answer fails to come. The request hears of each. The
// first is soon enough that its answer is there before the time of the request is over.
func (a *attempts) test(wait context.Context, n *node, c *call, end time.Time) {
	limit := end.Add(lateAnswer)
	for pause := min(testAfter, time.Until(end)/3); sleep(wait, a.by.ending, pause); pause = testEvery {
		_, err := n.ask(wait, earlier(limit, time.Now().Add(testEvery)), words{"PING"})
		if errors.Is(err, errLeft) {
			return
		}
		a.tell(heard{to: c, isTest: true, err: err})
		if isConnectionError(err) {
			return
		}
		limit = time.Time{}
	}
}
