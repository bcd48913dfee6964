package slock

import (
	"context"
	"time"
)

// Occupy has a command under way that gets no answer.
func (l *Locks) Occupy() error {
	n, err := l.servers.find(context.Background(), time.Now().Add(time.Minute), "")
	if err != nil {
		return err
	}
	c := newCall(time.Now().Add(time.Minute), words{"BLPOP", "nothing", 0})
	c.answered = func() {}
	n.start(c, false)
	return nil
}
