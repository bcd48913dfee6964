package slocktest

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// This file has the rules of the lock: who may hold it, who is next, and what the server tells of it. The server is
// locked while they run.

// ending is an acquisition that was ended: for a while its token is refused.
type ending struct {
	until    time.Time
	released bool // what the end found
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// next is a new fence: greater than all before, and than the time in microseconds.
func (s *Server) next() int64 {
	s.fence = max(s.fence+1, time.Now().UnixMicro())
	return s.fence
}

// holder is the request's hold of a key, if it is the one that is meant, or nil.
func (s *Server) holder(key string, r *request) *holder {
	if l := s.locks[key]; l != nil {
		for _, h := range l.holders {
			if h.token == r.token && (r.fence == 0 || r.fence == h.fence) {
				return h
			}
		}
	}
	return nil
}

// admits tells whether the lock itself, whoever waits, lets a request in.
func (s *Server) admits(key string, r *request) bool {
	l := s.locks[key]
	switch {
	case l == nil:
		return r.mode != "upgrade"
	case s.holder(key, &request{token: r.token}) != nil:
		return r.mode != "upgrade" || len(l.holders) == 1
	}
	return r.mode == "read" && l.mode == "read" && (r.limit == 0 || len(l.holders) < r.limit)
}

func (s *Server) acquire(r *request) (any, error) {
	held := 0
	for _, key := range r.keys {
		h := s.holder(key, &request{token: r.token})
		switch {
		case h == nil && r.mode == "upgrade":
			return nil, errors.New("NOTHELD the token does not hold the lock")
		case h != nil && r.mode != "upgrade" && s.locks[key].mode != r.mode && !r.isExact:
			return nil, fmt.Errorf("WRONGMODE the token holds the lock for %s: UPGRADE and DOWNGRADE change the mode", s.locks[key].mode)
		case h != nil && s.locks[key].mode == map[string]string{"upgrade": "write"}[r.mode] || h != nil && s.locks[key].mode == r.mode:
			held++
		case r.mode == "upgrade" && r.fence != 0 && h.fence != r.fence:
			return nil, errors.New("NOTHELD the token does not hold the lock")
		case s.ended[key+"\x00"+r.token].until.After(time.Now()):
			return nil, errors.New("REFUSED the acquisition of this token was ended")
		}
	}
	switch {
	case held == len(r.keys) || !r.isExact && !s.isBlocked(r):
		return s.grant(r), nil
	case r.isExact || r.wait == 0:
		return int64(0), nil
	case r.channel != "" && s.channels[r.channel] == nil:
		return nil, errors.New("NOSUBSCRIBER nobody subscribes to the channel")
	}
	w := &waiter{request: *r, since: time.Now(), until: time.Now().Add(r.wait)}
	for i, other := range s.queue {
		if other.token == r.token && other.mode == r.mode && slices.Equal(other.keys, r.keys) {
			w.since, s.queue[i] = other.since, w
			return nil, nil
		}
	}
	if r.mode != "upgrade" {
		s.queue = append(s.queue, w)
	} else if slices.ContainsFunc(s.queue, func(o *waiter) bool { return o.mode == "upgrade" && o.keys[0] == r.keys[0] }) {
		return nil, errors.New("DEADLOCK another reader of the lock waits to upgrade it")
	} else {
		s.queue = slices.Insert(s.queue, 0, w)
	}
	if s.waitsFor(w, r.token, map[*waiter]bool{}) {
		s.queue = slices.DeleteFunc(s.queue, func(o *waiter) bool { return o == w })
		return nil, fmt.Errorf("DEADLOCK %s and the owner of %s wait for each other", r.token, r.keys[0])
	}
	return nil, nil
}

// isBlocked tells whether a request that does not wait yet has to.
func (s *Server) isBlocked(r *request) bool {
	for _, key := range r.keys {
		isQueued := func(w *waiter) bool { return slices.Contains(w.keys, key) }
		isNew := s.holder(key, &request{token: r.token}) == nil
		if !s.admits(key, r) || isNew && slices.ContainsFunc(s.queue, isQueued) {
			return true
		}
	}
	return false
}

// waitsFor tells whether a waiter waits for the token, by way of others who wait.
func (s *Server) waitsFor(w *waiter, token string, seen map[*waiter]bool) bool {
	seen[w] = true
	for _, key := range w.keys {
		if l := s.locks[key]; l != nil && !s.admits(key, &w.request) {
			for _, h := range l.holders {
				if h.token != w.token && h.token == token {
					return true
				}
				for _, other := range s.queue {
					if h.token != w.token && other.token == h.token && !seen[other] && s.waitsFor(other, token, seen) {
						return true
					}
				}
			}
		}
	}
	return false
}

// grant gives the hold on all keys, or refreshes it, and returns its fence.
func (s *Server) grant(r *request) int64 {
	fence := int64(0)
	if h := s.holder(r.keys[0], &request{token: r.token}); h != nil && (r.mode != "upgrade" || s.locks[r.keys[0]].mode == "write") {
		fence = h.fence
	}
	for _, key := range r.keys[1:] {
		if h := s.holder(key, &request{token: r.token}); h == nil || h.fence != fence {
			fence = 0 // not one hold of all
		}
	}
	if fence == 0 {
		fence = s.next()
	}
	for _, key := range r.keys {
		l := s.locks[key]
		if l == nil {
			l = &lock{}
			s.locks[key] = l
		}
		l.mode = map[bool]string{true: "read", false: "write"}[r.mode == "read"]
		h := s.holder(key, &request{token: r.token})
		if h == nil {
			h = &holder{token: r.token, since: time.Now()}
			l.holders = append(l.holders, h)
		}
		if h.fence != fence {
			h.fence, h.since = fence, time.Now()
		}
		h.deadline = later(h.deadline, time.Now().Add(r.ttl))
		if r.hasMeta {
			h.meta = r.meta
		}
	}
	return fence
}

// serve grants what the queue lets in, in its order.
func (s *Server) serve() {
	blocked := map[string]bool{}
	s.queue = slices.DeleteFunc(s.queue, func(w *waiter) bool {
		isFree := !slices.ContainsFunc(w.keys, func(key string) bool { return blocked[key] || !s.admits(key, &w.request) })
		if isFree {
			s.tell(w, fmt.Sprint(s.grant(&w.request)))
			return true
		}
		for _, key := range w.keys {
			blocked[key] = true
		}
		return false
	})
	s.schedule()
}

// tell sends the message that ends a wait.
func (s *Server) tell(w *waiter, what string) {
	if c := s.channels[w.channel]; c != nil {
		go c.heard(what + " " + w.tag)
	}
}

// withdraw ends the waits of a token for the keys.
func (s *Server) withdraw(r *request, what string) (count int64) {
	s.queue = slices.DeleteFunc(s.queue, func(w *waiter) bool {
		isMeant := w.token == r.token && slices.ContainsFunc(w.keys, func(key string) bool { return slices.Contains(r.keys, key) })
		if isMeant {
			count++
			s.tell(w, what)
		}
		return isMeant
	})
	return count
}

// end releases the token's holds of the keys, in a mode or in any, and tells how many.
func (s *Server) end(r *request, mode string) (count int64) {
	if r.refuse > 0 {
		s.withdraw(r, "0")
	}
	for _, key := range r.keys {
		h := s.holder(key, r)
		released := h != nil && (mode == "" || s.locks[key].mode == mode)
		if released {
			s.remove(key, func(other *holder) bool { return other == h })
		}
		id := key + "\x00" + r.token
		if before, ok := s.ended[id]; ok && r.refuse > 0 {
			released = released || before.released
		}
		if r.refuse > 0 {
			s.ended[id] = ending{time.Now().Add(r.refuse), released}
		}
		if released {
			count++
		}
	}
	return count
}

// extend moves the deadlines of one hold on all keys, or of none.
func (s *Server) extend(r *request) int64 {
	for _, key := range r.keys {
		if s.holder(key, r) == nil {
			return 0
		}
	}
	for _, key := range r.keys {
		h, deadline := s.holder(key, r), time.Now().Add(r.ttl)
		if !r.isGreater || deadline.After(h.deadline) {
			h.deadline = deadline
		}
	}
	return 1
}

func (s *Server) remove(key string, isMeant func(h *holder) bool) {
	if l := s.locks[key]; l != nil {
		if l.holders = slices.DeleteFunc(l.holders, isMeant); len(l.holders) == 0 {
			delete(s.locks, key)
		}
	}
}

// expire ends what has passed its deadline.
func (s *Server) expire() {
	now := time.Now()
	for key := range s.locks {
		s.remove(key, func(h *holder) bool { return !now.Before(h.deadline) })
	}
	for id, e := range s.ended {
		if now.After(e.until) {
			delete(s.ended, id)
		}
	}
	s.queue = slices.DeleteFunc(s.queue, func(w *waiter) bool {
		isOver := !now.Before(w.until)
		if isOver {
			s.tell(w, "0")
		}
		return isOver
	})
}

// schedule has the queue served when time alone lets somebody in, or ends a wait.
func (s *Server) schedule() {
	first := time.Duration(math.MaxInt64)
	for _, w := range s.queue {
		first = min(first, time.Until(w.until))
		for _, key := range w.keys {
			if l := s.locks[key]; l != nil {
				for _, h := range l.holders {
					first = min(first, time.Until(h.deadline))
				}
			}
		}
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	if len(s.queue) > 0 {
		s.timer = time.AfterFunc(first, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.expire()
			s.serve()
		})
	}
}

// info is the reply to INFO key FULL.
func (s *Server) info(key string) any {
	holders, queue := []any{}, []any{}
	mode, fence, pttl, now := "free", int64(0), int64(0), time.Now()
	if l := s.locks[key]; l != nil {
		mode = l.mode
		for _, h := range l.holders {
			fence, pttl = max(fence, h.fence), max(pttl, h.deadline.Sub(now).Milliseconds())
			holders = append(holders, []any{
				"token", h.token, "fence", h.fence, "pttl", h.deadline.Sub(now).Milliseconds(),
				"held-ms", now.Sub(h.since).Milliseconds(), "meta", h.meta,
			})
		}
	}
	for _, w := range s.queue {
		if slices.Contains(w.keys, key) {
			queue = append(queue, []any{
				"token", w.token, "mode", w.mode, "waiting-ms", now.Sub(w.since).Milliseconds(),
				"timeout-ms", w.until.Sub(w.since).Milliseconds(), "meta", w.meta, "channel", w.channel,
			})
		}
	}
	if len(holders)+len(queue) == 0 {
		return nil
	}
	readers := int64(len(holders))
	if mode == "write" {
		readers = 0
	}
	return []any{
		"mode", mode, "readers", readers, "waiters", int64(len(queue)), "fence", fence, "pttl", pttl,
		"holders", holders, "queue", queue,
	}
}

// queues is the reply to QUEUES.
func (s *Server) queues() any {
	names := []string{}
	for _, w := range s.queue {
		names = append(names, w.keys...)
	}
	slices.Sort(names)
	all := []any{}
	longest := func(key string) (since time.Time) {
		for _, w := range s.queue {
			if slices.Contains(w.keys, key) {
				return w.since
			}
		}
		return since
	}
	names = slices.Compact(names)
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(longest(a).UnixNano(), longest(b).UnixNano()) })
	for _, key := range names {
		all = append(all, []any{"key", key, "longest-wait-ms", time.Since(longest(key)).Milliseconds()})
	}
	return all
}
