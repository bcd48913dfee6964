//go:build go1.25

package slocktest_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"slock.example/go"
	"slock.example/go/slocktest"
)

func TestTheClockOfSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := slock.NewWith(slocktest.New())
		defer locks.Close()
		hold, err := locks.Write("renewed").Lock(t.Context())
		brief, failed := locks.Write("brief").With(slock.NoRenewal()).Lock(t.Context())
		time.Sleep(time.Hour)
		if err = errors.Join(err, failed, hold.Unlock(t.Context())); err != nil || !brief.Lost() {
			t.Error(err)
		}
	})
}
