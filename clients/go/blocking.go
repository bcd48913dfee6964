package slock

import "time"

// This file has the tests of the server while a request waits on a connection of its own. No reply there is too late,
// and nobody would tell a connection that has nothing to send that its server was restarted. So other commands tell
// whether the server is in reach, and after an outage the request is asked again.

const (
	// testAfter is how long after the beginning of a wait the server is tested first, if there is so much time.
	testAfter = time.Second
	// testEvery is how often a server is tested while somebody waits there, and how long the answer may take.
	testEvery = 5 * time.Second
)

// test has the tests of one wait.
type test struct {
	at     time.Time // of the next, or by when the one under way has to be answered
	ping   *call     // the one under way; nil: none
	passed bool      // the server has answered one
}

// firstTest is soon enough that an answer is there before the time of the request is over.
func (a *attempts) firstTest() time.Time {
	return time.Now().Add(min(testAfter, time.Until(a.end())/3))
}

func (t *test) begin(a *attempts, n *node) {
	t.at = time.Now().Add(testEvery)
	if !t.passed {
		t.at = earlier(t.at, a.answerBy())
	}
	ping := newCall(t.at, words{"PING"})
	ping.answered = func() { a.hear(ping) }
	t.ping = ping
	n.start(ping, false)
}

// answer is the error if the server is out of reach.
func (t *test) answer(a *attempts, err error) error {
	if isConnectionError(err) {
		return err
	}
	t.at, t.ping, t.passed, a.contact = time.Now().Add(testEvery), nil, true, time.Now()
	return nil
}
