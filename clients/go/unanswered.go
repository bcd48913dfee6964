package slock

import (
	"sync"
	"time"
)

// unanswered remembers the commands of one hold that set its deadline and got no answer. The server may carry
// them out later, after commands that were sent after them.
type unanswered struct {
	mu    sync.Mutex
	least time.Duration // the least ttl of those commands; 0: there are none
}

// note remembers a command with this ttl, if the error says that it got no answer.
func (u *unanswered) note(ttl time.Duration, err error) {
	if mayRunLater(err) {
		u.remember(ttl)
	}
}

func (u *unanswered) remember(ttl time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.least == 0 || ttl < u.least {
		u.least = ttl
	}
}

// certain is how much of a ttl that the server confirmed is certain: a command that is carried out later may
// set another ttl.
func (u *unanswered) certain(ttl time.Duration) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.least == 0 {
		return ttl
	}
	return min(ttl, u.least)
}
