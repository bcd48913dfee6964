package slock_test

import (
	"bytes"
	"net"
	"sync"
	"testing"
)

// proxy stands before a server. It can cut the connection of a command when the server has executed it,
// before the client reads the reply. It can also keep a command, and deliver it later.
type proxy struct {
	listener net.Listener
	target   string

	mu      sync.Mutex
	cut     [][]byte // commands whose replies are to be lost, each once
	refused []byte   // a command that never reaches the server
	keeps   []byte   // the next command of this name is kept
	kept    []*kept
}

// kept is what a client has sent on one connection, from a command on that is to arrive late.
type kept struct {
	server    net.Conn
	requests  []byte
	delivered bool
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

// keep keeps the next command of this name, and what follows on its connection, until deliver.
func (p *proxy) keep(command string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keeps = append([]byte(command), '\r')
}

// keeping is how many commands are kept.
func (p *proxy) keeping() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.kept)
}

// deliver sends the server what was kept, also where the client has closed its connection.
func (p *proxy) deliver(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.kept) == 0 {
		t.Fatal("nothing was kept")
	}
	for _, k := range p.kept {
		if _, err := k.server.Write(k.requests); err != nil {
			t.Fatal(err)
		}
		k.delivered = true
	}
	p.kept = nil
}

// take keeps requests if they belong to a kept command, or begin one.
func (p *proxy) take(k *kept, server net.Conn, requests []byte) *kept {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k != nil && k.delivered {
		return nil
	}
	if k == nil && p.keeps != nil && bytes.Contains(requests, p.keeps) {
		p.keeps = nil
		k = &kept{server: server}
		p.kept = append(p.kept, k)
	}
	if k != nil {
		k.requests = append(k.requests, requests...)
	}
	return k
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
	var k *kept
	defer func() {
		if k == nil {
			_ = server.Close()
		}
	}()
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
		if k = p.take(k, server, requests[:n]); k != nil {
			continue
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
