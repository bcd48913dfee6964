package slock_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"slock.example/go"
)

// What is under way gets no answer, and more has queued than goes in one pipeline.
func TestQueueIsSentWhenWhatIsUnderWayHasNoAnswer(t *testing.T) {
	w := newPatientWorld(t, slock.RetryFor(20*time.Second))
	request := func(key string) slock.Request {
		return w.locks.Write(key).With(slock.TTL(time.Minute), slock.NoRenewal())
	}
	must(request("first").Lock(t.Context())) // asks what the user may do
	for n := range 2 {
		if err := w.locks.Occupy(); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool {
			return w.rdb.InfoMap(t.Context(), "clients").Item("Clients", "blocked_clients") == fmt.Sprint(n+1)
		})
	}
	var all sync.WaitGroup
	for n := range 2500 {
		all.Add(1)
		go func() {
			defer all.Done()
			if _, ok, err := request(fmt.Sprint("own:", n)).TryLock(t.Context()); !ok || err != nil {
				t.Error(n, ok, err)
			}
		}()
	}
	all.Wait()
}
