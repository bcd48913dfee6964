// Package agent plays the operations of the conformance scenarios with this library. It reads one JSON object a line and
// writes one a line.
package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"slock.example/go"
	"slock.example/go/slocktest"
)

// Client is the program's client of a Redis client library.
type Client struct {
	Transport slock.Transport
	// FillPool has each connection of its pool wait for a key for a time.
	FillPool func(key string, duration time.Duration)
}

// Main plays what it reads, over the clients that are opened. If open is nil they are those of go-redis.
func Main(open func(r Request) (Client, error)) {
	a := &agent{
		openClient: open,
		out:        json.NewEncoder(os.Stdout),
		locks:      map[string]*opened{},
		holds:      map[string]*slock.Hold{},
		running:    map[int64]context.CancelFunc{},
		memory:     map[string]*slocktest.Server{},
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r Request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			fmt.Fprintln(os.Stderr, "not understood:", lines.Text(), err)
			os.Exit(1)
		}
		a.start(r)
	}
}

type agent struct {
	openClient func(r Request) (Client, error)

	mu      sync.Mutex
	out     *json.Encoder
	locks   map[string]*opened
	holds   map[string]*slock.Hold
	running map[int64]context.CancelFunc
	memory  map[string]*slocktest.Server
}

// start runs an operation, whatever else is running.
func (a *agent) start(r Request) {
	ctx, cancel := context.WithCancel(context.Background())
	a.mu.Lock()
	a.running[r.ID] = cancel
	a.mu.Unlock()
	go func() {
		defer cancel()
		ok, err := a.perform(ctx, r)
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.running, r.ID)
		if err != nil {
			_ = a.out.Encode(map[string]any{"id": r.ID, "error": name(err), "text": err.Error()})
			return
		}
		_ = a.out.Encode(map[string]any{"id": r.ID, "ok": ok})
	}()
}

func (a *agent) perform(ctx context.Context, r Request) (any, error) {
	switch r.Op {
	case "open":
		return a.open(r)
	case "open_quorum":
		return a.openQuorum(r)
	case "cancel":
		return a.cancel(r.Target)
	case "tasks":
		a.mu.Lock()
		defer a.mu.Unlock()
		return map[string]any{"count": runtime.NumGoroutine() - len(a.running)}, nil
	case "release", "extend", "upgrade", "downgrade", "detach", "check", "state", "await_lost":
		return a.withHold(ctx, r)
	}
	return a.withLocks(ctx, r)
}

func (a *agent) cancel(id int64) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cancel := a.running[id]; cancel != nil {
		cancel()
	}
	return none{}, nil
}

type none struct{}
