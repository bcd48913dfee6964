// Package testserver starts servers for tests.
package testserver

import (
	"cmp"
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
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Shared is the server of examples and of tests that need none of their own. It is nil without a module.
var Shared *Server

// module is the file of the SLOCK module.
var module = os.Getenv("SLOCK_MODULE")

// Server is a server on a port of its own.
type Server struct {
	Addr, Dir string

	arguments []string
	process   *exec.Cmd
	ended     chan struct{}
}

// Main runs the tests of a package, with a shared server. Without a module it skips what needs one.
func Main(m *testing.M) {
	runtime.LockOSThread() // the kernel ends a server with the thread that started it
	flag.Parse()
	if module == "" {
		fmt.Println("SLOCK_MODULE does not name the file of the module: what needs a server is skipped")
		if err := flag.Set("test.skip", "^Example"); err != nil {
			panic(err)
		}
		os.Exit(m.Run())
	}
	var err error
	if Shared, err = start("--loadmodule", module); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	Shared.stop()
	os.Exit(status)
}

// Need skips a test that cannot run without the module.
func Need(t testing.TB) {
	t.Helper()
	if module == "" {
		t.Skip("SLOCK_MODULE does not name the file of the module")
	}
}

// New starts a server with the module, which ends with the test.
func New(t testing.TB, arguments ...string) *Server {
	t.Helper()
	Need(t)
	s, err := start(append([]string{"--loadmodule", module}, arguments...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if text, err := os.ReadFile(filepath.Join(s.Dir, "log")); err == nil && t.Failed() {
			t.Logf("log of the server on %s:\n%s", s.Addr, text)
		}
		s.stop()
	})
	return s
}

func start(arguments ...string) (*Server, error) {
	for {
		dir, err := os.MkdirTemp("", "slock")
		if err != nil {
			return nil, err
		}
		addr, err := FreeAddress()
		if err != nil {
			return nil, err
		}
		s := &Server{Addr: addr, Dir: dir}
		_, port, _ := net.SplitHostPort(addr)
		s.arguments = append([]string{
			"--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", dir, "--logfile", filepath.Join(dir, "log"),
		}, arguments...)
		if err = s.Start(); err == nil {
			return s, nil
		}
		os.RemoveAll(dir)
		if !strings.Contains(err.Error(), "Address already in use") {
			return nil, err
		}
	}
}

// Start starts the server, and returns when it replies.
func (s *Server) Start() error {
	process, ended := exec.Command(cmp.Or(os.Getenv("SERVER"), "redis-server"), s.arguments...), make(chan struct{})
	endWithParent(process)
	if err := process.Start(); err != nil {
		return err
	}
	s.process, s.ended = process, ended
	go func() {
		_ = process.Wait()
		close(ended)
	}()
	client := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
	defer client.Close()
	for client.Ping(context.Background()).Err() != nil {
		select {
		case <-ended:
			text, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
			return fmt.Errorf("the server has ended\n%s", text)
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// Kill ends the server, which Start may start again.
func (s *Server) Kill() {
	_ = s.process.Process.Kill()
	<-s.ended
}

// Pause lets the server be silent, with its connections open. It returns when the server has stopped.
func (s *Server) Pause() {
	_ = s.process.Process.Signal(syscall.SIGSTOP)
	for range 10_000 {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(s.process.Process.Pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") T ") {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Resume ends a pause.
func (s *Server) Resume() { _ = s.process.Process.Signal(syscall.SIGCONT) }

func (s *Server) stop() {
	s.Kill()
	os.RemoveAll(s.Dir)
}

// Client is a client of the server, which is closed with the test.
func (s *Server) Client(t testing.TB) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: s.Addr})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// FreeAddress is an address of the loopback that nobody uses.
func FreeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

// Eventually waits for a condition, generously: a loaded machine is slow.
func Eventually(t testing.TB, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the condition of this line did not come true within a minute")
		}
	}
}
