package slocktest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"slock.example/go"
	"slock.example/go/slocktest"
)

// report is what the program does: it writes a report, unless somebody else writes it now.
func report(ctx context.Context, locks *slock.Locks, write func(ctx context.Context, fence int64) error) error {
	hold, err := locks.Write("report").TryLock(ctx)
	if err != nil {
		return err
	}
	defer hold.Unlock(context.WithoutCancel(ctx))
	return write(hold.Context(), hold.Fence())
}

func Example() {
	ctx := context.Background()
	server := slocktest.New()
	locks := slock.NewWith(server, slock.RetryFor(100*time.Millisecond))
	others := slock.NewWith(server) // of another process

	// Somebody else writes the report.
	busy, _ := others.Write("report").Lock(ctx)
	err := report(ctx, locks, nil)
	fmt.Println("busy:", errors.Is(err, slock.ErrNotAcquired))
	_ = busy.Unlock(ctx)

	// The lock is lost during the work. Others see who holds it.
	err = report(ctx, locks, func(ctx context.Context, fence int64) error {
		info, _ := others.Info(ctx, "report")
		fmt.Println("holders:", len(info.Holders), info.Holders[0].Fence == fence)
		server.Lose("report")
		<-ctx.Done()
		return context.Cause(ctx)
	})
	fmt.Println("lost:", errors.Is(err, slock.ErrLost))

	// No server can be reached.
	server.Fail(net.ErrClosed)
	err = report(ctx, locks, nil)
	fmt.Println("no answer:", errors.Is(err, slock.ErrNoAnswer), errors.Is(err, net.ErrClosed))
	// Output:
	// busy: true
	// holders: 1 true
	// lost: true
	// no answer: true true
}
