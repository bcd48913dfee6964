package slocktest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"slock.example/go"
)

// This file has the commands and their rules. The server is locked while they run.

// commands has the words that follow a command's name, the mode that it means, and what executes it.
var commands = map[string]struct {
	words   string
	mode    slock.Mode
	execute func(s *Server, r *request) any
}{
	"SLOCK.LOCK":      {"key token ttl", slock.Write, (*Server).acquire},
	"SLOCK.RLOCK":     {"key token ttl", slock.Read, (*Server).acquire},
	"SLOCK.MLOCK":     {"keys token ttl", slock.Write, (*Server).acquire},
	"SLOCK.MRLOCK":    {"keys token ttl", slock.Read, (*Server).acquire},
	"SLOCK.UPGRADE":   {"key token ttl", slock.Write, (*Server).acquire},
	"SLOCK.DOWNGRADE": {"key token ttl", slock.Read, (*Server).acquire},
	"SLOCK.EXTEND":    {"key token ttl", "", (*Server).extend},
	"SLOCK.MEXTEND":   {"keys token ttl", "", (*Server).extend},
	"SLOCK.UNLOCK":    {"key token", slock.Write, (*Server).end},
	"SLOCK.RUNLOCK":   {"key token", slock.Read, (*Server).end},
	"SLOCK.MUNLOCK":   {"keys token", "", (*Server).end},
	"SLOCK.CANCEL":    {"key token", "", (*Server).cancel},
	"SLOCK.INFO":      {"key", "", (*Server).info},
	"SLOCK.QUEUES":    {"", "", (*Server).queues},
	"DEL":             {"all", "", (*Server).lose},
	"WAIT":            {"", "", func(*Server, *request) any { return int64(0) }}, // there are no replicas
}

// longest is the longest ttl, and the longest time between two looks at the deadlines.
const longest = 24 * time.Hour

// request is a command. In the queue it waits for its keys; as a hold it has one key.
type request struct {
	name, token  string
	keys         []string
	mode         slock.Mode
	words        map[string]string // ttl, tag, and the word after each option; an option without one is its own
	fence        int64             // 0: it was not granted
	released     int64             // how many holds the end of an acquisition has ended
	since, until time.Duration     // when it began to wait or to hold, and when that ends
}

var start = time.Now()

func now() time.Duration { return time.Since(start) }

func parse(words []any) *request {
	next := func() (word string) {
		if len(words) > 0 {
			word, words = fmt.Sprint(words[0]), words[1:]
		}
		return word
	}
	r := &request{name: strings.ToUpper(next()), words: map[string]string{}}
	r.mode = commands[r.name].mode
	for _, name := range strings.Fields(commands[r.name].words) {
		count := map[string]int{"key": 1, "all": len(words)}[name]
		if name == "keys" {
			count, _ = strconv.Atoi(next())
		}
		for range min(count, len(words)) {
			r.keys = append(r.keys, next())
		}
		if count == 0 {
			r.words[name] = next()
		}
	}
	r.token = r.words["token"]
	for len(words) > 0 {
		option := strings.ToUpper(next())
		if r.words[option] = option; !slices.Contains([]string{"XX", "GT", "FULL"}, option) {
			r.words[option] = next()
		}
		if option == "NOTIFY" {
			r.words["tag"] = next()
		}
	}
	return r
}

func (r *request) has(option string) bool { return r.words[option] != "" }

func (r *request) number(name string) int64 {
	n, _ := strconv.ParseInt(r.words[name], 10, 64)
	return n
}

// after is so many milliseconds from now.
func (r *request) after(name string) time.Duration {
	return now() + time.Duration(r.number(name))*time.Millisecond
}

func (r *request) changesMode() bool { return strings.HasSuffix(r.name, "GRADE") }

// meets tells whether two requests have a key in common.
func (r *request) meets(other *request) bool {
	return slices.ContainsFunc(r.keys, func(key string) bool { return slices.Contains(other.keys, key) })
}

func failed(format string, arguments ...any) any {
	return &slock.ReplyError{Err: fmt.Errorf(format, arguments...)}
}

func (s *Server) execute(words []any) any {
	r := parse(words)
	command, isKnown := commands[r.name]
	switch {
	case !isKnown:
		return failed("ERR unknown command '%s'", r.name)
	case r.has("ttl") && (r.number("ttl") < 1 || r.number("ttl") > longest.Milliseconds()):
		return failed("ERR ttl-ms must be 1 to %d", longest.Milliseconds())
	}
	return command.execute(s, r)
}

// advance ends what is over, and grants what the queue lets in, in its order.
func (s *Server) advance() {
	s.remove(&s.holds, func(h *request) bool { return h.until <= now() })
	s.remove(&s.queue, func(r *request) bool {
		isGone := r.changesMode() && len(s.own(r, r.number("FENCE"))) == 0
		return r.until <= now() || isGone || s.channel(r).heard == nil
	})
	var before []*request
	s.remove(&s.queue, func(r *request) bool {
		if slices.ContainsFunc(before, r.meets) || len(s.blockers(r)) > 0 {
			before = append(before, r)
			return false
		}
		return s.grant(r, 0) != nil
	})
	next := now() + longest
	for _, r := range slices.Concat(s.holds, s.queue) {
		next = min(next, r.until)
	}
	s.timer.Reset(next - now())
}

func (s *Server) channel(r *request) channel { return s.channels[r.words["NOTIFY"]] }

// remove takes requests out of a list, and sends the messages of those that have waited.
func (s *Server) remove(from *[]*request, isMeant func(r *request) bool) int64 {
	before := len(*from)
	*from = slices.DeleteFunc(*from, func(r *request) bool {
		is := isMeant(r)
		if heard := s.channel(r).heard; is && heard != nil {
			go heard(fmt.Sprint(r.fence, " ", r.words["tag"]))
		}
		return is
	})
	return int64(before - len(*from))
}

func filter(list []*request, isMeant func(r *request) bool) (found []*request) {
	for _, r := range list {
		if isMeant(r) {
			found = append(found, r)
		}
	}
	return found
}

// own has the token's holds of the keys, in any mode. Unless fence is 0, they have this fence.
func (s *Server) own(r *request, fence int64) []*request {
	return filter(s.holds, func(h *request) bool {
		return h.token == r.token && h.meets(r) && (fence == 0 || h.fence == fence)
	})
}

// blockers has the holds of others that keep a request out: writers, readers if it is a writer, or as many as its limit.
func (s *Server) blockers(r *request) (blockers []*request) {
	isWriter := func(h *request) bool { return h.mode == slock.Write }
	for _, key := range r.keys {
		others := filter(s.holds, func(h *request) bool { return h.token != r.token && h.keys[0] == key })
		isFull := r.has("LIMIT") && len(others) >= int(r.number("LIMIT"))
		if isFull || isWriter(r) || slices.ContainsFunc(others, isWriter) {
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
	own, ended, blockers := s.own(r, 0), s.ended[r.token], s.blockers(r)
	isOther := func(h *request) bool { return h.mode != r.mode }
	isSame := func(w *request) bool {
		return w.token == r.token && w.mode == r.mode && slices.Equal(w.keys, r.keys)
	}
	switch {
	case len(own) == len(r.keys) && !slices.ContainsFunc(own, isOther) && own[0].fence == own[len(own)-1].fence:
		return s.grant(r, own[0].fence)
	case r.has("XX"):
		return int64(0)
	case r.changesMode() && len(s.own(r, r.number("FENCE"))) == 0:
		return failed("NOTHELD the token does not hold the lock")
	case !r.changesMode() && slices.ContainsFunc(own, isOther):
		return failed("WRONGMODE the token holds the lock in the other mode")
	case r.name != "SLOCK.DOWNGRADE" && ended != nil && ended.meets(r) && now() < ended.until:
		return failed("REFUSED the acquisition of this token was ended")
	case len(blockers) == 0 && (r.changesMode() || !slices.ContainsFunc(s.queue, r.meets)):
		return s.grant(r, 0)
	case !r.has("NOTIFY"):
		return int64(0)
	case s.channel(r).heard == nil:
		return failed("NOSUBSCRIBER nobody subscribes to the channel")
	case s.waitsFor(r, r.token, map[*request]bool{}):
		return failed("DEADLOCK %s and %s wait for each other", r.token, blockers[0].token)
	}
	r.since, r.until = now(), r.after("WAIT")
	at := slices.IndexFunc(s.queue, isSame)
	switch {
	case at >= 0: // it was sent before
		r.since, s.queue[at] = s.queue[at].since, r
	case r.changesMode():
		s.queue = slices.Insert(s.queue, 0, r)
	default:
		s.queue = append(s.queue, r)
	}
	return nil
}

// grant gives the token one hold of all keys, with this fence or else a new one. It never shortens a hold.
func (s *Server) grant(r *request, fence int64) any {
	if r.fence = fence; fence == 0 {
		s.fence = max(s.fence+1, time.Now().UnixMicro())
		r.fence = s.fence
	}
	for _, key := range r.keys {
		own := s.own(&request{token: r.token, keys: []string{key}}, 0)
		if len(own) == 0 {
			own = []*request{{token: r.token, keys: []string{key}}}
			s.holds = append(s.holds, own...)
		}
		h := own[0]
		if h.fence != r.fence {
			h.mode, h.fence, h.since = r.mode, r.fence, now()
		}
		if h.until = max(h.until, r.after("ttl")); r.has("META") {
			h.words = map[string]string{"META": r.words["META"]}
		}
	}
	return r.fence
}

// extend moves the deadline of one hold of all keys, or of none.
func (s *Server) extend(r *request) any {
	own := s.own(r, r.number("FENCE"))
	if len(own) < len(r.keys) {
		return int64(0)
	}
	for _, h := range own {
		if until := r.after("ttl"); !r.has("GT") || until > h.until {
			h.until = until
		}
	}
	return int64(1)
}

// cancel withdraws the token's requests for any of the keys.
func (s *Server) cancel(r *request) any {
	return s.remove(&s.queue, func(w *request) bool { return w.token == r.token && w.meets(r) })
}

// end releases what the token holds, and tells of how many keys. With REFUSE it withdraws and refuses the token's
// requests too, and replies the same when it is repeated.
func (s *Server) end(r *request) any {
	own := s.own(r, r.number("FENCE"))
	r.released = s.remove(&s.holds, func(h *request) bool {
		return slices.Contains(own, h) && (r.mode == "" || r.mode == h.mode)
	})
	if r.has("REFUSE") {
		s.cancel(r)
		if before := s.ended[r.token]; before != nil && now() < before.until {
			r.released = max(r.released, before.released)
		}
		if len(s.ended) == 1<<16 { // as many as the module remembers
			clear(s.ended)
		}
		r.until, s.ended[r.token] = r.after("REFUSE"), r
	}
	return r.released
}

// lose ends all holds of the keys, and has their owners look.
func (s *Server) lose(r *request) any {
	for _, c := range s.channels {
		go c.changed()
	}
	return s.remove(&s.holds, r.meets)
}

func (s *Server) info(r *request) any {
	mode, readers, fence, pttl := "free", int64(0), int64(0), int64(0)
	describe := func(list []*request) (all []any) {
		for _, one := range filter(list, r.meets) {
			since, left := (now() - one.since).Milliseconds(), (one.until - now()).Milliseconds()
			all = append(all, map[any]any{
				"token": one.token, "mode": string(one.mode), "meta": one.words["META"], "fence": one.fence,
				"pttl": left, "held-ms": since, "waiting-ms": since, "timeout-ms": since + left,
			})
		}
		return all
	}
	holders, queue := describe(s.holds), describe(s.queue)
	if len(holders)+len(queue) == 0 {
		return nil
	}
	for _, h := range filter(s.holds, r.meets) {
		mode, fence, pttl = string(h.mode), max(fence, h.fence), max(pttl, (h.until-now()).Milliseconds())
	}
	if mode == "read" {
		readers = int64(len(holders))
	}
	return map[any]any{
		"mode": mode, "readers": readers, "waiters": int64(len(queue)), "fence": fence, "pttl": pttl,
		"holders": holders, "queue": queue,
	}
}

// queues is the keys that somebody waits for.
func (s *Server) queues(*request) any {
	all, seen := []any{}, map[string]bool{}
	for _, r := range s.queue {
		for _, key := range r.keys {
			if !seen[key] {
				all = append(all, map[any]any{"key": key, "longest-wait-ms": (now() - r.since).Milliseconds()})
			}
			seen[key] = true
		}
	}
	return all
}
