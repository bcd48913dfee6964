package slock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
	"slock.example/go/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// world is a server, the locks of a program, and what they wrote to the log.
type world struct {
	*testserver.Server
	t     *testing.T
	plain *redis.Client // to look at the server
	rdb   *redis.Client // of the program
	locks *slock.Locks
	log   *logged
}

// newWorld starts a server, and makes locks over a client with these options.
func newWorld(t *testing.T, client redis.Options, options ...slock.Option) *world {
	t.Helper()
	w := &world{Server: testserver.New(t), t: t, log: &logged{}}
	client.Addr = w.Addr
	w.plain, w.rdb = w.Client(t), redis.NewClient(&client)
	t.Cleanup(func() { _ = w.rdb.Close() })
	w.locks = slock.New(w.rdb, append([]slock.Option{slock.WithLogger(slog.New(slog.NewTextHandler(w.log, nil)))}, options...)...)
	t.Cleanup(func() { _ = w.locks.Close() })
	return w
}

func (w *world) do(arguments ...any) any {
	w.t.Helper()
	reply, err := w.plain.Do(w.t.Context(), arguments...).Result()
	if err != nil && err != redis.Nil {
		w.t.Fatal(arguments, err)
	}
	return reply
}

// info is a field of SLOCK.INFO, or nil if nobody holds the lock or waits for it.
func (w *world) info(key, field string) any {
	w.t.Helper()
	reply, _ := w.do("SLOCK.INFO", key).(map[any]any)
	return reply[field]
}

// nothingLeft waits until nobody holds a lock or waits for one.
func (w *world) nothingLeft() {
	w.t.Helper()
	testserver.Eventually(w.t, func() bool {
		text := w.do("INFO", "slock").(string)
		return strings.Contains(text, "slock_locks:0\r") && strings.Contains(text, "slock_waiters:0\r")
	})
}

// logged is what was written to a log. A nil one writes nothing.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

// Printf is for redis.SetLogger.
func (l *logged) Printf(_ context.Context, format string, values ...any) {
	fmt.Fprintf(l, format+"\n", values...)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// seen is a hook of go-redis that notes the names of commands.
type seen struct{ names sync.Map }

func (s *seen) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *seen) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.names.Store(strings.ToUpper(cmd.Name()), true)
		return next(ctx, cmd)
	}
}

func (s *seen) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *seen) hasLockAndUnlock() bool {
	_, locked := s.names.Load("SLOCK.LOCK")
	_, unlocked := s.names.Load("SLOCK.MUNLOCK")
	return locked && unlocked
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// within fails if a call takes longer than its limit and a second, of which a loaded machine gets another two.
func within(t *testing.T, limit time.Duration, call func()) {
	t.Helper()
	began := time.Now()
	call()
	if took := time.Since(began); took > limit+3*time.Second {
		t.Errorf("it took %s, not %s", took, limit)
	}
}

// is fails unless the error is each of these, and contains the texts. Without any it has to be nil.
func is(t *testing.T, err error, all []error, texts ...string) {
	t.Helper()
	if err != nil && len(all)+len(texts) == 0 {
		t.Errorf("the error is %v", err)
	}
	for _, one := range all {
		if !errors.Is(err, one) {
			t.Errorf("the error is %v, not %v", err, one)
		}
	}
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("the error is %v, without %q", err, text)
		}
	}
}
