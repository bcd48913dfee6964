// SPDX-License-Identifier: MIT OR Apache-2.0

package slocktest

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"slock.example/go"
)

// This file has the commands and their rules. The server is locked while they run.

// request is a command: SLOCK.<name> [count] key … token [ttl] [option …]. If it is granted it is a hold.
type request struct {
	name, token  string
	keys         []string
	options      map[string]string // the word after each; TTL is one too
	channel, tag string
	mode         slock.Mode
	limit        int           // of holders at once
	fence        int64         // 0: not granted
	since, until time.Duration // when it began to wait or to hold, and when that ends
}

// longest is the longest ttl.
const longest = 24 * time.Hour

var start = time.Now()

func now() time.Duration { return time.Since(start) }

func parse(command []any) *request {
	var words []string
	for _, word := range command {
		words = append(words, fmt.Sprint(word))
	}
	next := func() (word string) { word, words = words[0], words[1:]; return word }
	r := &request{name: strings.TrimPrefix(next(), "SLOCK."), mode: slock.Write, limit: 1, options: map[string]string{}}
	if r.keys = words; slices.Contains([]string{"DEL", "INFO", "QUEUES", "WAIT"}, r.name) {
		return r
	}
	count := 1
	if r.name[0] == 'M' {
		count, _ = strconv.Atoi(next())
	}
	r.keys, words = words[:count], words[count:]
	r.token = next()
	if !strings.HasSuffix(r.name, "UNLOCK") && r.name != "CANCEL" {
		r.options["TTL"] = next()
	}
	if strings.Contains(r.name, "RLOCK") || r.name == "DOWNGRADE" {
		r.mode, r.limit = slock.Read, math.MaxInt
	}
	for len(words) > 0 {
		switch option := next(); option {
		case "NOTIFY":
			r.channel, r.tag = next(), next()
		case "LIMIT":
			r.limit, _ = strconv.Atoi(next())
		case "XX", "GT":
			r.options[option] = option
		default:
			r.options[option] = next()
		}
	}
	return r
}

func (r *request) number(option string) int64 {
	n, _ := strconv.ParseInt(r.options[option], 10, 64)
	return n
}

// after is the end of the time that an option gives.
func (r *request) after(option string) time.Duration {
	return now() + time.Duration(r.number(option))*time.Millisecond
}

func (r *request) changesMode() bool { return strings.HasSuffix(r.name, "GRADE") }

func (r *request) wants(key string) bool { return slices.Contains(r.keys, key) }

// meets tells whether two requests have a key in common.
func (r *request) meets(other *request) bool { return slices.ContainsFunc(r.keys, other.wants) }

// covers tells whether a request has all keys of another.
func (r *request) covers(other *request) bool {
	return !slices.ContainsFunc(other.keys, func(key string) bool { return !r.wants(key) })
}

func failed(format string, arguments ...any) any {
	return &slock.ReplyError{Err: fmt.Errorf(format, arguments...)}
}

// commands has what executes each command for one key or none. The same executes it for several.
var commands = map[string]func(s *Server, r *request) any{
	"LOCK": (*Server).acquire, "RLOCK": (*Server).acquire, "UPGRADE": (*Server).acquire, "DOWNGRADE": (*Server).acquire,
	"EXTEND": (*Server).extend, "UNLOCK": (*Server).release, "RUNLOCK": (*Server).release, "CANCEL": (*Server).cancel,
	"DEL": (*Server).lose, "INFO": (*Server).info, "QUEUES": (*Server).queues,
	"WAIT": func(*Server, *request) any { return int64(0) }, // for replicas: there are none
}

func (s *Server) execute(command []any) any {
	r := parse(command)
	execute, isKnown := commands[strings.TrimPrefix(r.name, "M")]
	switch {
	case !isKnown:
		return failed("ERR unknown command '%s'", r.name)
	case r.number("TTL") > longest.Milliseconds():
		return failed("ERR ttl must be an integer from 1 to %d milliseconds (slock.max-ttl-ms)", longest.Milliseconds())
	}
	return execute(s, r)
}

// find has the requests of a list that are meant.
func find(list []*request, isMeant func(r *request) bool) (found []*request) {
	for _, r := range list {
		if isMeant(r) {
			found = append(found, r)
		}
	}
	return found
}

// own has the token's holds with a key of the request. Unless fence is 0, they have this fence.
func (s *Server) own(r *request, fence int64) []*request {
	return find(s.holds, func(h *request) bool {
		return h.token == r.token && h.meets(r) && (fence == 0 || h.fence == fence)
	})
}

// blockers has the holds of others that keep a request out. This is the one rule of admission, beside the queue.
func (s *Server) blockers(r *request) (blockers []*request) {
	for _, key := range r.keys {
		others := find(s.holds, func(h *request) bool { return h.token != r.token && h.wants(key) })
		isWritten := slices.ContainsFunc(others, func(h *request) bool { return h.mode == slock.Write })
		if isWritten || len(others) >= r.limit {
			blockers = append(blockers, others...)
		}
	}
	return blockers
}

// waitsFor tells whether a request waits for a token, also by way of others who wait.
func (s *Server) waitsFor(r *request, token string, seen map[*request]bool) bool {
	seen[r] = true
	return slices.ContainsFunc(s.blockers(r), func(h *request) bool {
		return h.token == token || slices.ContainsFunc(s.queue, func(w *request) bool {
			return w.token == h.token && !seen[w] && s.waitsFor(w, token, seen)
		})
	})
}

// acquire takes the keys in a mode, or changes the mode of a hold.
func (s *Server) acquire(r *request) any {
	own := s.own(r, 0)
	isSame := func(w *request) bool { return w.token == r.token && w.mode == r.mode && w.covers(r) }
	switch {
	case len(own) == 1 && own[0].mode == r.mode && own[0].covers(r):
		own[0].refresh(r)
		return own[0].fence
	case r.options["XX"] != "":
		return int64(0)
	case r.changesMode() && len(s.own(r, r.number("FENCE"))) == 0:
		return failed("NOTHELD the token does not hold the lock")
	case !r.changesMode() && len(own) > 0 && own[0].mode != r.mode:
		return failed("WRONGMODE the token holds the lock in the other mode")
	case r.name != "DOWNGRADE" && s.isRefused(r.token):
		return failed("REFUSED the acquisition of this token was ended")
	case len(s.blockers(r)) == 0 && (r.changesMode() || !slices.ContainsFunc(s.queue, r.meets)):
		return s.grant(r)
	case r.channel == "":
		return int64(0)
	case s.channels[r.channel] == nil:
		return failed("NOSUBSCRIBER nobody subscribes to the channel")
	case s.waitsFor(r, r.token, map[*request]bool{}):
		return failed("DEADLOCK %s and %s wait for each other", r.token, s.blockers(r)[0].token)
	}
	r.since, r.until = now(), r.after("WAIT")
	switch at := slices.IndexFunc(s.queue, isSame); {
	case at >= 0: // it was sent before
		r.since, s.queue[at] = s.queue[at].since, r
	case r.changesMode():
		s.queue = slices.Insert(s.queue, 0, r)
	default:
		s.queue = append(s.queue, r)
	}
	return nil
}

func (s *Server) isRefused(token string) bool {
	until, ok := s.refused[token]
	return ok && until > now()
}

// refresh lets a hold last as long as the request wants. It never shortens.
func (h *request) refresh(r *request) {
	h.until = max(h.until, r.after("TTL"))
	if meta, ok := r.options["META"]; ok {
		h.options["META"] = meta
	}
}

// grant makes the request a hold, in place of what its token has held of the keys.
func (s *Server) grant(r *request) any {
	own := s.own(r, 0)
	s.fence = max(s.fence+1, time.Now().UnixMicro())
	r.fence, r.since, r.until = s.fence, now(), r.after("TTL")
	for _, h := range own {
		h.refresh(r)
		r.refresh(h)
	}
	s.drop(r, own)
	s.holds = append(s.holds, r)
	return r.fence
}

// drop takes the keys of a request off holds, and tells how many.
func (s *Server) drop(r *request, from []*request) (count int64) {
	for _, h := range from {
		before := len(h.keys)
		h.keys = slices.DeleteFunc(slices.Clone(h.keys), r.wants)
		count += int64(before - len(h.keys))
	}
	s.holds = find(s.holds, func(h *request) bool { return len(h.keys) > 0 })
	return count
}

// extend moves the deadline of a hold of all keys.
func (s *Server) extend(r *request) any {
	own := s.own(r, r.number("FENCE"))
	if len(own) != 1 || !own[0].covers(r) {
		return int64(0)
	}
	if r.options["GT"] == "" {
		own[0].until = now()
	}
	own[0].refresh(r)
	return int64(1)
}

// release releases what the token holds, and tells of how many keys. With REFUSE it ends all that the token wants.
func (s *Server) release(r *request) any {
	if r.options["REFUSE"] != "" {
		s.cancel(r)
		if len(s.refused) == 1<<16 { // the module does not remember more
			clear(s.refused)
		}
		s.refused[r.token] = r.after("REFUSE")
	}
	return s.drop(r, s.own(r, r.number("FENCE")))
}

// cancel withdraws the requests of the token, and tells how many.
func (s *Server) cancel(r *request) any {
	return s.leave(func(w *request) bool { return w.token == r.token && w.meets(r) })
}

// lose ends all holds of the keys, and has their owners look.
func (s *Server) lose(r *request) any {
	for _, heard := range s.channels {
		go heard("", false)
	}
	return s.drop(r, s.holds)
}

// advance ends what is over, and grants what the queue lets in, in its order.
func (s *Server) advance() {
	s.holds = find(s.holds, func(h *request) bool { return now() < h.until })
	var before []*request
	s.leave(func(r *request) bool {
		isGone := r.changesMode() && len(s.own(r, r.number("FENCE"))) == 0
		isOver := r.until <= now() || isGone || s.channels[r.channel] == nil
		if !isOver && (len(s.blockers(r)) > 0 || slices.ContainsFunc(before, r.meets)) {
			before = append(before, r)
			return false
		}
		return isOver || s.grant(r) != nil
	})
	next := now() + longest
	for _, r := range slices.Concat(s.holds, s.queue) {
		next = min(next, r.until)
	}
	s.timer.Reset(next - now())
}

// leave takes requests out of the queue, sends their messages, and tells how many.
func (s *Server) leave(isMeant func(r *request) bool) (count int64) {
	s.queue = find(s.queue, func(r *request) bool {
		is, heard := isMeant(r), s.channels[r.channel]
		if is && heard != nil {
			count++
			go heard(fmt.Sprint(r.fence, " ", r.tag), true)
		}
		return !is
	})
	return count
}

func (s *Server) info(r *request) any {
	mode, fence, pttl := "free", int64(0), int64(0)
	holders, queue := []any{}, []any{}
	for _, one := range slices.Concat(s.holds, s.queue) {
		since, left := (now() - one.since).Milliseconds(), (one.until - now()).Milliseconds()
		shown := map[any]any{
			"token": one.token, "mode": string(one.mode), "meta": one.options["META"], "fence": one.fence, "pttl": left,
			"held-ms": since, "waiting-ms": since, "timeout-ms": since + left,
		}
		switch {
		case !one.wants(r.keys[0]):
		case one.fence == 0:
			queue = append(queue, shown)
		default:
			holders = append(holders, shown)
			mode, fence, pttl = string(one.mode), max(fence, one.fence), max(pttl, left)
		}
	}
	if len(holders)+len(queue) == 0 {
		return nil
	}
	return map[any]any{
		"mode": mode, "readers": int64(map[string]int{"read": len(holders)}[mode]), "waiters": int64(len(queue)),
		"fence": fence, "pttl": pttl, "holders": holders, "queue": queue,
	}
}

// queues is the keys that somebody waits for, on one page.
func (s *Server) queues(*request) any {
	all := []any{}
	for i, r := range s.queue {
		for _, key := range r.keys {
			if !slices.ContainsFunc(s.queue[:i], func(w *request) bool { return w.wants(key) }) {
				all = append(all, map[any]any{"key": key, "longest-wait-ms": (now() - r.since).Milliseconds()})
			}
		}
	}
	return []any{"0", all}
}
