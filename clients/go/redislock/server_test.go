package redislock_test

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
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// module is the file of the SLOCK module.
var module = os.Getenv("SLOCK_MODULE")

// serverAddr is the address of the server that all tests and examples share.
var serverAddr string

func TestMain(m *testing.M) {
	// The server dies with the thread that started it, so this goroutine keeps its thread.
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
	server, err := startServer("--loadmodule", module)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer server.stop()
	serverAddr = server.addr
	return m.Run()
}

type server struct {
	addr    string
	process *exec.Cmd
	ended   chan error
	dir     string
}

// startServer starts a server on a free port, and returns when it answers.
func startServer(arguments ...string) (*server, error) {
	for {
		server, err := tryServer(arguments...)
		if err == nil || !strings.Contains(err.Error(), "Address already in use") {
			return server, err
		}
	}
}

func tryServer(arguments ...string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "redislock")
	if err != nil {
		return nil, err
	}
	log := filepath.Join(dir, "log")
	arguments = append([]string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--dir", dir, "--logfile", log,
	}, arguments...)
	s := &server{
		addr:    net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		process: exec.Command("redis-server", arguments...),
		ended:   make(chan error, 1),
		dir:     dir,
	}
	endWithParent(s.process)
	if err := s.process.Start(); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	go func() { s.ended <- s.process.Wait() }()
	client := redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1})
	defer client.Close()
	for client.Ping(context.Background()).Err() != nil {
		select {
		case err := <-s.ended:
			text, _ := os.ReadFile(log)
			os.RemoveAll(dir)
			return nil, fmt.Errorf("redis-server ended: %w\n%s", err, text)
		case <-time.After(5 * time.Millisecond):
		}
	}
	return s, nil
}

func (s *server) stop() {
	_ = s.process.Process.Kill()
	<-s.ended
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

// needModule skips a test that cannot run without the module.
func needModule(t *testing.T) {
	t.Helper()
	if module == "" {
		t.Skip("SLOCK_MODULE does not name the file of the module")
	}
}

// connect returns a client of the shared server, and closes it after the test.
func connect(t *testing.T) *redis.Client {
	t.Helper()
	needModule(t)
	return connectWith(t, &redis.Options{Addr: serverAddr})
}

func connectWith(t *testing.T, options *redis.Options) *redis.Client {
	t.Helper()
	client := redis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	return client
}

// ownServer starts a server for one test and returns a client of it.
func ownServer(t *testing.T, arguments ...string) *redis.Client {
	t.Helper()
	needModule(t)
	server, err := startServer(arguments...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.stop)
	return connectWith(t, &redis.Options{Addr: server.addr})
}

var lastKey atomic.Int64

// newKey returns a name that no other test uses.
func newKey() string {
	return fmt.Sprintf("lock:%d", lastKey.Add(1))
}
