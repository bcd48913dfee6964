package slock_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"slock.example/go"
)

// module is the file of the SLOCK module.
var module = os.Getenv("SLOCK_MODULE")

// exampleServer is the server of the examples.
var exampleServer *server

func TestMain(m *testing.M) {
	// The kernel ends a server with the thread that started it, so this goroutine keeps its thread.
	runtime.LockOSThread()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	flag.Parse()
	if module == "" {
		fmt.Println("SLOCK_MODULE does not name the file of the module: what needs a server is skipped")
		if err := flag.Set("test.skip", "^Example"); err != nil {
			panic(err)
		}
		return m.Run()
	}
	var err error
	if exampleServer, err = startServer("--loadmodule", module); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer exampleServer.stop()
	return m.Run()
}

// server is a redis-server on a port of its own.
type server struct {
	addr      string
	arguments []string
	dir       string
	process   *exec.Cmd
	ended     chan struct{}
}

// newServer starts a server with the module, which ends with the test.
func newServer(t *testing.T, arguments ...string) *server {
	t.Helper()
	if module == "" {
		t.Skip("SLOCK_MODULE does not name the file of the module")
	}
	s, err := startServer(append([]string{"--loadmodule", module}, arguments...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if text, err := os.ReadFile(filepath.Join(s.dir, "log")); err == nil && t.Failed() {
			t.Logf("log of the server on %s:\n%s", s.addr, text)
		}
		s.stop()
	})
	return s
}

func startServer(arguments ...string) (*server, error) {
	dir, err := os.MkdirTemp("", "slock")
	if err != nil {
		return nil, err
	}
	for {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		s := &server{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), dir: dir}
		s.arguments = append([]string{
			"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--dir", dir,
			"--logfile", filepath.Join(dir, "log"),
		}, arguments...)
		err = s.start()
		if err == nil {
			return s, nil
		}
		if !strings.Contains(err.Error(), "Address already in use") {
			os.RemoveAll(dir)
			return nil, err
		}
	}
}

func (s *server) start() error {
	s.process = exec.Command("redis-server", s.arguments...)
	endWithParent(s.process)
	if err := s.process.Start(); err != nil {
		return err
	}
	process, ended := s.process, make(chan struct{})
	s.ended = ended
	go func() {
		_ = process.Wait()
		close(ended)
	}()
	client := redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1})
	defer client.Close()
	for client.Ping(context.Background()).Err() != nil {
		select {
		case <-ended:
			text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("redis-server ended\n%s", text)
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

func (s *server) kill() {
	_ = s.process.Process.Kill()
	<-s.ended
}

// pause lets the server be silent, with its connections open.
// pause returns when the server has stopped: until then it may still answer.
func (s *server) pause() {
	_ = s.process.Process.Signal(syscall.SIGSTOP)
	for range 10_000 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.process.Process.Pid))
		if err != nil || strings.Contains(string(stat), ") T ") {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (s *server) resume() { _ = s.process.Process.Signal(syscall.SIGCONT) }

func (s *server) stop() {
	s.kill()
	os.RemoveAll(s.dir)
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// client is a client of the server, which is closed with the test.
func (s *server) client(t *testing.T) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: s.addr})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// world is a server, a Locks and a client to look at what they did.
type world struct {
	*server
	t     *testing.T
	rdb   *redis.Client
	locks *slock.Locks
}

func newWorld(t *testing.T, options ...slock.Option) *world {
	t.Helper()
	s := newServer(t)
	w := &world{server: s, t: t, rdb: s.client(t)}
	w.locks = slock.New(s.client(t), options...)
	t.Cleanup(func() { _ = w.locks.Close() })
	return w
}

// another is the token of an owner that uses no library.
const another = "another"

func (w *world) do(args ...any) any {
	w.t.Helper()
	reply, err := w.rdb.Do(w.t.Context(), args...).Result()
	if err != nil && err != redis.Nil {
		w.t.Fatalf("%v: %v", args, err)
	}
	return reply
}

// info is a field of SLOCK.INFO, or nil when nobody holds the lock or waits for it.
func (w *world) info(key, field string) any {
	w.t.Helper()
	reply, _ := w.do("SLOCK.INFO", key).(map[any]any)
	return reply[field]
}

// nothingLeft waits until nobody holds the lock or waits for it.
func (w *world) nothingLeft(key string) {
	w.t.Helper()
	eventually(w.t, func() bool { return w.do("SLOCK.INFO", key) == nil })
}

func (w *world) waiters(key string, n int64) {
	w.t.Helper()
	eventually(w.t, func() bool { return w.info(key, "waiters") == n })
}

// calls is how often the server ran a command.
func (w *world) calls(command string) int {
	w.t.Helper()
	stats := w.rdb.InfoMap(w.t.Context(), "commandstats").Item("Commandstats", "cmdstat_"+strings.ToLower(command))
	_, rest, _ := strings.Cut(stats, "calls=")
	count, _, _ := strings.Cut(rest, ",")
	n, _ := strconv.Atoi(count)
	return n
}

// eventually waits for a condition, generously: a loaded machine is slow.
func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !condition(); {
		if time.Now().After(end) {
			t.Fatal("the condition of this line did not come true within a minute")
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// clients are the connections of the server, each with its fields.
func clients(w *world) []map[string]string {
	var all []map[string]string
	for line := range strings.Lines(w.do("CLIENT", "LIST").(string)) {
		fields := map[string]string{}
		for field := range strings.FieldsSeq(line) {
			name, value, _ := strings.Cut(field, "=")
			fields[name] = value
		}
		all = append(all, fields)
	}
	return all
}

// beside runs a task in a goroutine of the group.
func beside(group *sync.WaitGroup, task func()) {
	group.Add(1)
	go func() {
		defer group.Done()
		task()
	}()
}
