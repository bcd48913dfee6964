package slock_test

import (
	"errors"
	"testing"
	"time"

	"slock.example/go"
)

func TestQuorumAdopts(t *testing.T) {
	q := newNodes(t, 3)
	for _, w := range q.worlds {
		w.do("SLOCK.LOCK", "job", another, 60000)
	}
	q.worlds[1].do("DEL", "job")
	before := time.Now()
	hold := must(q.quorum.Write("job").With(slock.TTL(2*time.Second)).Adopt(t.Context(), another))
	if hold.Token() != another || hold.Mode() != slock.Write {
		t.Fatal(hold.Token(), hold.Mode())
	}
	if until := hold.ValidUntil(); until.Before(before.Add(1900*time.Millisecond)) ||
		until.After(time.Now().Add(2*time.Second)) {
		t.Fatal(until.Sub(before))
	}
	for i, fence := range hold.Fences() {
		if (fence == 0) != (i == 1) {
			t.Fatal(i, fence)
		}
	}
	// It is renewed, and the node that has lost it gets it again.
	eventually(t, func() bool { return q.worlds[0].calls("slock.extend") >= 3 })
	eventually(t, func() bool { return q.worlds[1].do("SLOCK.PTTL", "job", another).(int64) > 0 })
	if err := hold.Check(); err != nil {
		t.Fatal(err)
	}
	if err := hold.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, w := range q.worlds {
		w.nothingLeft("job")
	}
}

func TestQuorumAdoptsOnlyWhatAMajorityHas(t *testing.T) {
	q := newNodes(t, 3)
	q.worlds[0].do("SLOCK.LOCK", "job", another, 3600000)
	request := q.quorum.Write("job").With(slock.NoRenewal())
	if _, err := request.Adopt(t.Context(), another); !errors.Is(err, slock.ErrNotHeld) {
		t.Fatal(err)
	}
	if _, err := request.Adopt(t.Context(), ""); !errors.Is(err, slock.ErrInvalid) {
		t.Fatal(err)
	}
	q.worlds[1].kill()
	q.worlds[2].kill()
	_, err := request.Adopt(t.Context(), another)
	var missed *slock.QuorumError
	if !errors.Is(err, slock.ErrQuorumMissed) || !errors.As(err, &missed) || !missed.Answers[0].Granted {
		t.Fatal(err)
	}
	if q.worlds[0].info("job", "mode") != "write" {
		t.Fatal("the hold of the other process was released")
	}
	if err := q.quorum.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := request.Adopt(t.Context(), another); !errors.Is(err, slock.ErrClosed) {
		t.Fatal(err)
	}
}

func TestQuorumReleasesByToken(t *testing.T) {
	q := newNodes(t, 5, slock.NodeTimeout(2*time.Second), slock.RetryFor(50*time.Millisecond))
	q.worlds[0].do("SLOCK.LOCK", "job", another, 3600000)
	q.worlds[1].do("SLOCK.RLOCK", "job", another, 3600000)
	q.worlds[2].do("SLOCK.MLOCK", 2, "job", "other", another, 3600000)
	q.worlds[3].do("SLOCK.LOCK", "job", "a third", 3600000)
	if n, err := q.quorum.Release(t.Context(), another, "job", "other"); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	for _, w := range q.worlds[:3] {
		w.nothingLeft("job")
		w.nothingLeft("other")
	}
	if q.worlds[3].info("job", "mode") != "write" {
		t.Fatal("the hold of another token was released")
	}
	if n, err := q.quorum.Release(t.Context(), another, "job"); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	q.worlds[4].kill()
	if n, err := q.quorum.Release(t.Context(), "a third", "job"); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := q.quorum.Release(t.Context(), "", "job"); !errors.Is(err, slock.ErrInvalid) {
		t.Fatal(err)
	}
}
