package slock_test

import (
	"bytes"
	"net"
	"sync"
	"testing"
)

// proxy stands before a server. It can cut the connection of a command when the server has executed it,
// before the client reads the reply.
type proxy struct {
	listener net.Listener
	target   string

	mu      sync.Mutex
	cut     [][]byte // commands whose replies are to be lost, each once
	refused []byte   // a command that never reaches the server
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, target: target}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(client)
		}
	}()
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// loseReply loses the reply to the next command of this name.
func (p *proxy) loseReply(command string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = append(p.cut, []byte(command))
}

// refuse lets the command not reach the server from now on: its connection is cut.
func (p *proxy) refuse(command string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = []byte(command)
}

func (p *proxy) isRefused(request []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused != nil && bytes.Contains(request, p.refused)
}

// left is how many replies are still to be lost.
func (p *proxy) left() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.cut)
}

func (p *proxy) isCut(request []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, command := range p.cut {
		if bytes.Contains(request, append(command, '\r')) {
			p.cut = append(p.cut[:i], p.cut[i+1:]...)
			return true
		}
	}
	return false
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	var mu sync.Mutex
	lost := false
	go func() {
		defer client.Close()
		defer server.Close()
		replies := make([]byte, 1<<16)
		for {
			n, err := server.Read(replies)
			mu.Lock()
			stop := lost
			mu.Unlock()
			if err != nil || stop {
				return
			}
			if _, err := client.Write(replies[:n]); err != nil {
				return
			}
		}
	}()
	requests := make([]byte, 1<<16)
	for {
		n, err := client.Read(requests)
		if err != nil {
			return
		}
		if p.isRefused(requests[:n]) {
			return
		}
		if p.isCut(requests[:n]) {
			mu.Lock()
			lost = true
			mu.Unlock()
		}
		if _, err := server.Write(requests[:n]); err != nil {
			return
		}
	}
}
