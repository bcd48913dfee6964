package slock_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// nodes are independent servers, and a quorum of them.
type nodes struct {
	worlds []*world
	quorum *slock.Quorum
}

func newNodes(t *testing.T, n int, options ...slock.Option) *nodes {
	t.Helper()
	q := &nodes{}
	var clients []redis.UniversalClient
	for range n {
		w := &world{server: newServer(t), t: t}
		w.rdb = w.client(t)
		q.worlds = append(q.worlds, w)
		clients = append(clients, w.client(t))
	}
	q.quorum = slock.NewQuorum(clients, options...)
	t.Cleanup(func() { _ = q.quorum.Close() })
	return q
}

func TestQuorumLocksWithAMinorityDown(t *testing.T) {
	q := newNodes(t, 5)
	q.worlds[0].kill()
	q.worlds[3].kill()
	hold := must(q.quorum.Write("job").Lock(t.Context()))
	if fences := hold.Fences(); fences[0] != 0 || fences[1] == 0 {
		t.Fatal(fences)
	}
	// 1 % of the ttl and 2 ms do not count.
	if left := time.Until(hold.ValidUntil()); left > 9898*time.Millisecond {
		t.Fatal(left)
	}
	if _, ok, err := q.quorum.Read("job").TryLock(t.Context()); ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := hold.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	q.worlds[1].nothingLeft("job")
}

func TestQuorumRefusesWithAMajorityDown(t *testing.T) {
	q := newNodes(t, 5, slock.WaitByPolling(slock.NoPolling()))
	for _, w := range q.worlds[:3] {
		w.kill()
	}
	_, err := q.quorum.Write("job").Lock(t.Context())
	var missed *slock.QuorumError
	if !errors.Is(err, slock.ErrQuorumMissed) || errors.Is(err, slock.ErrTimedOut) || !errors.As(err, &missed) {
		t.Fatal(err)
	}
	for i, answer := range missed.Answers {
		if answer.Node != q.worlds[i].addr || answer.Granted != (i >= 3) || (answer.Err != nil) != (i < 3) {
			t.Errorf("answer %d: %v", i, answer)
		}
	}
	q.worlds[3].nothingLeft("job")
	q.worlds[4].nothingLeft("job")
}

func TestQuorumThatOthersHoldTimesOut(t *testing.T) {
	q := newNodes(t, 3, slock.WaitByPolling(slock.NoPolling()))
	hold := must(q.quorum.Write("job").Lock(t.Context()))
	for _, request := range []slock.Request{
		q.quorum.Write("job"), q.quorum.Write("job").With(slock.Wait(0)),
	} {
		_, err := request.Lock(t.Context())
		var missed *slock.QuorumError
		if !isTimedOutQuorum(err) || !errors.As(err, &missed) || len(missed.Answers) != 3 {
			t.Fatal(err)
		}
	}
	if err := hold.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// One node grants, one refuses, one is down: nobody knows whether others have the lock.
func TestQuorumOfWhichNoMajorityRefusedIsMissed(t *testing.T) {
	q := newNodes(t, 3, slock.WaitByPolling(slock.NoPolling()))
	q.worlds[1].do("SLOCK.LOCK", "job", another, 60000)
	q.worlds[2].kill()
	if _, err := q.quorum.Write("job").Lock(t.Context()); !isMissed(err) {
		t.Fatal(err)
	}
	q.worlds[0].nothingLeft("job")
	if _, _, err := q.quorum.Write("job").TryLock(t.Context()); !isMissed(err) {
		t.Fatal(err)
	}
	q.worlds[0].nothingLeft("job")
	q.worlds[0].do("SLOCK.LOCK", "job", another, 60000) // a majority
	if _, err := q.quorum.Write("job").Lock(t.Context()); !isTimedOutQuorum(err) {
		t.Fatal(err)
	}
	if _, ok, err := q.quorum.Write("job").TryLock(t.Context()); ok || err != nil {
		t.Fatal(ok, err)
	}
}

func isMissed(err error) bool {
	return errors.Is(err, slock.ErrQuorumMissed) && !errors.Is(err, slock.ErrTimedOut)
}

// isTimedOutQuorum tells whether others had the lock until the wait was over.
func isTimedOutQuorum(err error) bool {
	return errors.Is(err, slock.ErrTimedOut) && !errors.Is(err, slock.ErrQuorumMissed) &&
		strings.Contains(err.Error(), "job")
}

func TestDeadlineOfAQuorumTellsWhetherOthersHaveTheLock(t *testing.T) {
	q := newNodes(t, 3)
	hold := must(q.quorum.Write("job").With(slock.TTL(time.Hour)).Lock(t.Context()))
	lock := func() (missed *slock.QuorumError, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = q.quorum.Write("job").Lock(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &missed) || len(missed.Answers) != 3 {
			t.Fatal(err)
		}
		return missed, err
	}
	if _, err := lock(); !isTimedOutQuorum(err) {
		t.Fatal(err)
	}
	must(hold.Release(t.Context()))
	q.worlds[0].pause()
	q.worlds[1].pause()
	_, err := lock()
	q.worlds[0].resume()
	q.worlds[1].resume()
	if errors.Is(err, slock.ErrTimedOut) || !errors.Is(err, slock.ErrQuorumMissed) {
		t.Fatal(err)
	}
}

func TestQuorumBringsNodesBack(t *testing.T) {
	q := newNodes(t, 3)
	hold := must(q.quorum.Write("job").With(slock.TTL(time.Minute)).Lock(t.Context()))
	eventually(t, func() bool { return !slices.Contains(hold.Fences(), 0) })
	q.worlds[1].do("DEL", "job")
	if err := hold.Extend(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return q.worlds[1].do("SLOCK.PTTL", "job", hold.Token()).(int64) > 0 })
	q.worlds[0].do("DEL", "job")
	q.worlds[2].do("DEL", "job")
	if err := hold.Extend(t.Context(), time.Minute); !errors.Is(err, slock.ErrLost) {
		t.Fatal(err)
	}
	must(hold.Release(t.Context()))
	q.worlds[1].nothingLeft("job")
}

func TestQuorumWatchdog(t *testing.T) {
	q := newNodes(t, 3)
	hold := must(q.quorum.Write("job").With(slock.TTL(300 * time.Millisecond)).Lock(t.Context()))
	eventually(t, func() bool { return q.worlds[2].calls("slock.extend") >= 10 })
	if err := hold.Check(); err != nil {
		t.Fatal(err)
	}
	for _, w := range q.worlds[:2] {
		w.kill()
	}
	<-hold.Context().Done()
	if !errors.Is(context.Cause(hold.Context()), slock.ErrLost) {
		t.Fatal(context.Cause(hold.Context()))
	}
}

func TestQuorumContendersDoNotOverlap(t *testing.T) {
	q := newNodes(t, 3, slock.WaitByPolling(slock.ExponentialPause(2*time.Millisecond, 50*time.Millisecond)))
	var inside, entered atomic.Int32
	var all sync.WaitGroup
	for range 10 {
		beside(&all, func() {
			err := q.quorum.Write("job").Do(t.Context(), func(context.Context) error {
				if inside.Add(1) > 1 {
					t.Error("two at once")
				}
				entered.Add(1)
				inside.Add(-1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if entered.Load() != 10 {
		t.Fatal(entered.Load())
	}
}

func TestQuorumCancelledLeavesNothing(t *testing.T) {
	q := newNodes(t, 3)
	var all sync.WaitGroup
	for n := range 60 {
		beside(&all, func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n)*200*time.Microsecond)
			defer cancel()
			if hold, err := q.quorum.Write("job").Lock(ctx); err == nil {
				_ = hold.Unlock(t.Context())
			}
		})
	}
	all.Wait()
	for _, w := range q.worlds {
		w.nothingLeft("job")
	}
}

// The majority may be complete only with the last answer.
func TestLastAnswerOfAQuorumCounts(t *testing.T) {
	q := newNodes(t, 1)
	request := q.quorum.Write("job").With(slock.TTL(time.Second), slock.NoRenewal())
	hold := must(request.Lock(t.Context()))
	before := time.Now()
	if err := hold.Extend(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if until := hold.ValidUntil(); until.Before(before.Add(50 * time.Minute)) {
		t.Fatalf("valid for %s after the extension", until.Sub(before))
	}
}

// An extension asks a node to grant anew while the hold is released.
func TestWhatIsGrantedAnewIsReleased(t *testing.T) {
	q := newNodes(t, 5, slock.NodeTimeout(time.Second))
	hold := must(q.quorum.Write("job").With(slock.TTL(time.Minute)).Lock(t.Context()))
	for _, w := range q.worlds {
		eventually(t, func() bool { return w.info("job", "mode") == "write" })
	}
	lost, silent := q.worlds[1], q.worlds[4]
	lost.do("DEL", "job")
	silent.pause()
	extended := make(chan error, 1)
	go func() { extended <- hold.Extend(t.Context(), time.Minute) }()
	for _, w := range q.worlds[:4] {
		eventually(t, func() bool { return w.calls("slock.extend") == 1 })
	}
	if released, err := hold.Release(t.Context()); !released || err != nil {
		t.Fatal(released, err)
	}
	<-extended
	silent.resume()
	for _, w := range q.worlds {
		w.nothingLeft("job")
	}
}

func TestQuorumForgetsTheContextOfACaller(t *testing.T) {
	q := newNodes(t, 1)
	type key struct{}
	value := new([64]byte)
	kept := weak.Make(value)
	ctx := context.WithValue(context.Background(), key{}, value)
	must(must(q.quorum.Write("job").Lock(ctx)).Release(ctx))
	ctx, value = nil, nil
	eventually(t, func() bool {
		runtime.GC()
		return kept.Value() == nil
	})
}

// A node that does not answer must not gather one more request with each renewal.
func TestSilentNodeIsAskedByOneRequestAtATime(t *testing.T) {
	q := newNodes(t, 3)
	q.worlds[0].pause()
	defer q.worlds[0].resume()
	hold := must(q.quorum.Write("job").With(slock.TTL(300 * time.Millisecond)).Lock(t.Context()))
	defer hold.Unlock(context.WithoutCancel(t.Context()))
	before := runtime.NumGoroutine()
	time.Sleep(3 * time.Second) // some thirty renewals
	if more := runtime.NumGoroutine() - before; more > 20 {
		t.Fatalf("%d goroutines more than before", more)
	}
	if err := hold.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestExtensionsGatherNothingForADeadNode(t *testing.T) {
	q := newNodes(t, 3)
	q.worlds[0].kill()
	request := q.quorum.Write("job").With(slock.TTL(time.Hour), slock.NoRenewal())
	hold := must(request.Lock(t.Context()))
	before := runtime.NumGoroutine()
	for range 50 {
		if err := hold.Extend(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() bool { return runtime.NumGoroutine() < before+20 })
	must(hold.Release(t.Context()))
}

// A node that was silent for longer than the ttl has the hold again soon after.
func TestSilentNodeComesBackToTheHold(t *testing.T) {
	q := newNodes(t, 3)
	hold := must(q.quorum.Write("job").With(slock.TTL(500 * time.Millisecond)).Lock(t.Context()))
	defer hold.Unlock(context.WithoutCancel(t.Context()))
	eventually(t, func() bool { return !slices.Contains(hold.Fences(), 0) })
	before := runtime.NumGoroutine()
	q.worlds[0].pause()
	time.Sleep(3 * time.Second) // its hold is over, and many renewals had no answer
	more := runtime.NumGoroutine() - before
	q.worlds[0].resume()
	if more > 20 {
		t.Fatalf("%d goroutines more than before", more)
	}
	time.Sleep(500 * time.Millisecond) // what was under way has been answered
	eventually(t, func() bool {
		return q.worlds[0].do("SLOCK.PTTL", "job", hold.Token()).(int64) > 0
	})
	if err := hold.Check(); err != nil {
		t.Fatal(err)
	}
}

// newProxiedNodes are three nodes, the first of which is reached through the proxy.
func newProxiedNodes(t *testing.T, options ...slock.Option) (*nodes, *proxy) {
	q := newNodes(t, 3)
	p := newProxy(t, q.worlds[0].addr)
	rdb := redis.NewClient(&redis.Options{Addr: p.addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	q.quorum = slock.NewQuorum([]redis.UniversalClient{rdb, q.worlds[1].client(t), q.worlds[2].client(t)}, options...)
	t.Cleanup(func() { _ = q.quorum.Close() })
	must(must(q.quorum.Write("warm").Lock(t.Context())).Release(t.Context()))
	return q, p
}

// What was in doubt at a node is not given up while the hold is wanted: the node would refuse the token.
func TestNodeThatRefusedAfterALostAnswerGetsTheHoldLater(t *testing.T) {
	q, p := newProxiedNodes(t)
	others := q.worlds[0]
	others.do("SLOCK.LOCK", "job", "other", 60_000)
	p.loseReply("SLOCK.LOCK")
	before := others.calls("slock.lock")
	hold := must(q.quorum.Write("job").With(slock.TTL(600 * time.Millisecond)).Lock(t.Context()))
	eventually(t, func() bool { return others.calls("slock.lock") > before+1 })
	others.do("SLOCK.UNLOCK", "job", "other")
	eventually(t, func() bool { return others.left("job", hold.Token()) > 0 })
	if err := hold.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	others.nothingLeft("job")
}

func TestNodeIsNotAskedForAHoldThatIsLost(t *testing.T) {
	q, p := newProxiedNodes(t)
	p.refuse("SLOCK.LOCK")
	request := q.quorum.Write("job").With(slock.TTL(300*time.Millisecond), slock.NoRenewal())
	hold := must(request.Lock(t.Context()))
	eventually(t, func() bool { return errors.Is(hold.Check(), slock.ErrLost) })
	time.Sleep(time.Second)
	p.refuse("nothing")
	for range 20 {
		if left := q.worlds[0].left("job", hold.Token()); left > 0 {
			t.Fatal(left)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func TestQuorumWithASilentNodeClosesAtOnce(t *testing.T) {
	q := newNodes(t, 3)
	q.worlds[0].pause()
	must(q.quorum.Write("job").Lock(t.Context()))
	began := time.Now()
	if err := q.quorum.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > time.Second {
		t.Fatal(took)
	}
	q.worlds[0].resume()
}
