// Package slocktest has a server in memory for the tests of programs that use locks. It answers as a server with the
// module does, so what is tested is the library that the program uses.
//
//	locks, server := slocktest.New()
//	release := server.Hold("report") // somebody else has it
//	server.Lose("report")            // the hold of the program is gone
//	server.Fail(errors.New("…"))     // nobody replies
package slocktest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"slock.example/go"
)

// Server is a server in memory: a slock.Transport. Several Locks may share one.
type Server struct {
	mu       sync.Mutex
	locks    map[string]*lock
	queue    []*waiter         // in the order of arrival; an upgrade comes before the others
	ended    map[string]ending // by key and token
	channels map[string]*channel
	fence    int64
	failure  error
	timer    *time.Timer // of the next deadline
}

type lock struct {
	mode    string
	holders []*holder // in the order of their holds
}

type holder struct {
	token, meta     string
	fence           int64
	since, deadline time.Time
}

type waiter struct {
	request
	since, until time.Time
}

type channel struct {
	heard   func(payload string)
	changed func()
}

// request is what a command asks for.
type request struct {
	keys                        []string
	token, mode, meta           string // the mode is read, write or upgrade
	ttl                         time.Duration
	limit                       int
	isExact, isGreater, hasMeta bool // XX, GT
	fence                       int64
	wait                        time.Duration
	channel, tag                string
	refuse                      time.Duration
}

// New makes a Locks over a new Server.
func New(options ...slock.Option) (*slock.Locks, *Server) {
	s := NewServer()
	return slock.NewWith(s, options...), s
}

// NewServer makes a server that has no locks.
func NewServer() *Server {
	return &Server{
		locks: map[string]*lock{}, ended: map[string]ending{}, channels: map[string]*channel{},
	}
}

// Hold has somebody else hold the lock for writing until the function is called.
func (s *Server) Hold(key string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.locks, key)
	s.grant(&request{keys: []string{key}, token: "somebody else", mode: "write", ttl: time.Hour})
	return func() { s.Lose(key) }
}

// Lose ends all holds of the key, as if it had been deleted. Their owners are told at once.
func (s *Server) Lose(key string) {
	s.mu.Lock()
	delete(s.locks, key)
	s.serve()
	all := slices.Collect(maps.Values(s.channels))
	s.mu.Unlock()
	for _, c := range all {
		c.changed()
	}
}

// Fail has all calls end with the error from now on, as if no connection could be made. After nil, calls succeed again.
func (s *Server) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}

// Holders are the owner tokens that hold the lock.
func (s *Server) Holders(key string) (tokens []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	if l := s.locks[key]; l != nil {
		for _, h := range l.holders {
			tokens = append(tokens, h.token)
		}
	}
	return tokens
}

// Topology is that of a server whose losses are noticed at once.
func (s *Server) Topology() (slock.Topology, error) {
	return slock.Topology{Name: "memory", Failover: true}, nil
}

// Close does nothing: other Locks may use the server.
func (s *Server) Close() error { return nil }

// Listen subscribes to a channel.
func (s *Server) Listen(name string, heard func(payload string), changed func()) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.channels[name] = &channel{heard, changed}
	go changed()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.channels, name)
	}
}

// Call carries commands out.
func (s *Server) Call(ctx context.Context, call slock.Call) (reply, then any, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := errors.Join(ctx.Err(), s.failure); err != nil {
		return nil, nil, err
	}
	return s.run(call.Command), s.run(call.Then), nil
}

// run carries one command out.
func (s *Server) run(command []any) any {
	if len(command) == 0 {
		return nil
	}
	words := make([]string, len(command))
	for i, word := range command {
		words[i] = fmt.Sprint(word)
	}
	s.expire()
	reply, err := s.execute(strings.TrimPrefix(strings.ToUpper(words[0]), "SLOCK."), words[1:])
	if err != nil {
		reply = &slock.ReplyError{Err: err}
	}
	s.serve()
	return reply
}

func (s *Server) execute(name string, words []string) (any, error) {
	switch name {
	case "WAIT": // for replicas: there are none
		return int64(0), nil
	case "DEL", "UNLINK":
		_, was := s.locks[words[0]]
		delete(s.locks, words[0])
		return map[bool]int64{true: 1}[was], nil
	case "QUEUES":
		return s.queues(), nil
	}
	r, err := parse(name, words)
	if err != nil {
		return nil, err
	}
	switch name {
	case "LOCK", "RLOCK", "MLOCK", "MRLOCK", "UPGRADE":
		return s.acquire(r)
	case "UNLOCK", "RUNLOCK", "MUNLOCK":
		return s.end(r, map[string]string{"UNLOCK": "write", "RUNLOCK": "read"}[name]), nil
	case "EXTEND", "MEXTEND":
		return s.extend(r), nil
	case "DOWNGRADE":
		h := s.holder(r.keys[0], r)
		if h == nil {
			return nil, errors.New("NOTHELD the token does not hold the lock")
		}
		if s.locks[r.keys[0]].mode == "write" {
			s.locks[r.keys[0]].mode, h.fence, h.since = "read", s.next(), time.Now()
		}
		h.deadline = later(h.deadline, time.Now().Add(r.ttl))
		return h.fence, nil
	case "CANCEL":
		return s.withdraw(r, "0"), nil
	case "INFO":
		return s.info(r.keys[0]), nil
	}
	return nil, fmt.Errorf("ERR unknown command '%s'", name)
}

// parse reads the arguments of a command.
func parse(name string, words []string) (*request, error) {
	r, count := &request{mode: "write"}, 1
	if strings.HasPrefix(name, "M") {
		count, _ = strconv.Atoi(words[0])
		words = words[1:]
	}
	if len(words) < count {
		return nil, errors.New("ERR wrong number of arguments")
	}
	r.keys, words = words[:count], words[count:]
	if name == "INFO" {
		return r, nil
	}
	r.token, words = words[0], words[1:]
	switch {
	case name == "UPGRADE":
		r.mode = "upgrade"
	case strings.Contains(name, "RLOCK"):
		r.mode = "read"
	}
	number := func() (n int64) {
		n, _ = strconv.ParseInt(words[0], 10, 64)
		words = words[1:]
		return n
	}
	if !strings.HasSuffix(name, "UNLOCK") && name != "CANCEL" {
		if r.ttl = time.Duration(number()) * time.Millisecond; r.ttl <= 0 {
			return nil, errors.New("ERR the ttl must be 1 or more")
		}
	}
	for len(words) > 0 {
		option := strings.ToUpper(words[0])
		words = words[1:]
		switch option {
		case "META":
			r.meta, r.hasMeta, words = words[0], true, words[1:]
		case "LIMIT":
			r.limit = int(number())
		case "WAIT":
			if r.wait = time.Duration(number()) * time.Millisecond; r.wait == 0 {
				r.wait = 365 * 24 * time.Hour
			}
		case "NOTIFY":
			r.channel, r.tag, words = words[0], words[1], words[2:]
		case "XX":
			r.isExact = true
		case "GT":
			r.isGreater = true
		case "FENCE":
			r.fence = number()
		case "REFUSE":
			r.refuse = time.Duration(number()) * time.Millisecond
		default:
			return nil, fmt.Errorf("ERR unknown option '%s'", option)
		}
	}
	return r, nil
}
