package slock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file has what the server tells of locks: who holds one, who waits for it, and which are waited for.

// Free is the mode of a lock that nobody holds.
const Free Mode = "free"

// Info is what SLOCK.INFO tells of one lock, at most 100 holders and 100 waiters of it.
type Info struct {
	Mode      Mode // Write, Read or Free
	Readers   int
	Waiters   int
	Fence     int64         // the highest of the holders
	Remaining time.Duration // until the last holder's deadline
	Holders   []Holder      // in the order in which their holds began
	Queue     []Waiter      // in the order in which they will be granted
}

// Holder is one who holds a lock.
type Holder struct {
	Token     string
	Fence     int64
	Remaining time.Duration // until its deadline
	Held      time.Duration // since the hold began
	Metadata  string
}

// Waiter is one who waits for a lock.
type Waiter struct {
	Token    string
	Mode     string // "write", "read" or "upgrade"
	Waiting  time.Duration
	Wait     time.Duration // how long at most; 0 without a limit
	Metadata string
	Limit    int
	Channel  string
	Tag      string
}

// Queue is a lock that is waited for.
type Queue struct {
	Key         string
	Waiters     int
	Writers     int
	LongestWait time.Duration
	Next        string // the token at the front
	Mode        Mode
	Readers     int
	Held        time.Duration // of the oldest hold
}

// Info tells who holds the lock of the key and who waits for it.
func (l *Locks) Info(ctx context.Context, key string) (Info, error) {
	replies, err := l.query(ctx, func(limit time.Time) ([]*node, error) {
		n, err := l.servers.find(ctx, limit, key)
		return []*node{n}, err
	}, "SLOCK.INFO", key, "FULL")
	if err != nil || replies[0] == nil {
		return Info{Mode: Free}, err
	}
	f := newFields(replies[0])
	info := Info{
		Mode: Mode(f.text("mode")), Readers: f.int("readers"), Waiters: f.int("waiters"),
		Fence: f.number("fence"), Remaining: f.duration("pttl"),
	}
	for _, h := range f.list("holders") {
		info.Holders = append(info.Holders, Holder{
			Token: h.text("token"), Fence: h.number("fence"), Remaining: h.duration("pttl"),
			Held: h.duration("held-ms"), Metadata: h.text("meta"),
		})
	}
	for _, w := range f.list("queue") {
		info.Queue = append(info.Queue, Waiter{
			Token: w.text("token"), Mode: w.text("mode"), Waiting: w.duration("waiting-ms"),
			Wait: w.duration("timeout-ms"), Metadata: w.text("meta"), Limit: w.int("limit"),
			Channel: w.text("channel"), Tag: w.text("tag"),
		})
	}
	return info, nil
}

// Queues tells which locks are waited for, on all nodes of a cluster, the longest wait first.
func (l *Locks) Queues(ctx context.Context) ([]Queue, error) {
	replies, err := l.query(ctx, l.servers.primaries, "SLOCK.QUEUES", "COUNT", 0)
	var queues []Queue
	for _, reply := range replies {
		for _, q := range (fields{"": reply}).list("") {
			queues = append(queues, Queue{
				Key: q.text("key"), Waiters: q.int("waiters"), Writers: q.int("writers"),
				LongestWait: q.duration("longest-wait-ms"), Next: q.text("next"), Mode: Mode(q.text("mode")),
				Readers: q.int("readers"), Held: q.duration("held-ms"),
			})
		}
	}
	slices.SortStableFunc(queues, func(a, b Queue) int { return cmp.Compare(b.LongestWait, a.LongestWait) })
	return queues, err
}

// query sends a question to nodes, one after the other, for no longer than RetryFor.
func (l *Locks) query(
	ctx context.Context, of func(limit time.Time) ([]*node, error), w ...any,
) (replies []any, err error) {
	limit := l.answerEnd()
	err = l.repeat(ctx, "answer", []string{fmt.Sprint(w[0])}, l.retryEnd(), func() error {
		nodes, err := of(limit)
		replies = nil
		for _, n := range nodes {
			c := newCall(limit, w)
			if err == nil {
				err = cmp.Or(n.commands.do(ctx, c), c.last().Err())
			}
			if errors.Is(err, redis.Nil) {
				err = nil
			}
			replies = append(replies, c.last().Val())
		}
		l.servers.note(err)
		return err
	})
	return replies, err
}

// primaries are all nodes that have keys.
func (s *servers) primaries(limit time.Time) (all []*node, err error) {
	rdb, ok := s.rdb.(*redis.ClusterClient)
	if !ok {
		n, err := s.find(context.Background(), limit, "")
		return []*node{n}, err
	}
	ctx, cancel := context.WithDeadline(context.Background(), limit)
	defer cancel()
	var mu sync.Mutex
	err = rdb.ForEachMaster(ctx, func(_ context.Context, client *redis.Client) error {
		n, err := s.at(client.Options().Addr, client.Options())
		mu.Lock()
		defer mu.Unlock()
		all = append(all, n)
		return err
	})
	return all, err
}

// fields are the values of a map, which RESP2 gives as a flat array.
type fields map[any]any

func newFields(reply any) fields {
	switch reply := reply.(type) {
	case map[any]any:
		return reply
	case []any:
		f := make(fields, len(reply)/2)
		for i := 0; i+1 < len(reply); i += 2 {
			f[reply[i]] = reply[i+1]
		}
		return f
	}
	return nil
}

func (f fields) text(name string) string {
	text, _ := f[name].(string)
	return text
}

func (f fields) number(name string) int64 {
	number, _ := f[name].(int64)
	return number
}

func (f fields) int(name string) int { return int(f.number(name)) }

func (f fields) duration(name string) time.Duration {
	return time.Duration(f.number(name)) * time.Millisecond
}

func (f fields) list(name string) []fields {
	items, _ := f[name].([]any)
	all := make([]fields, len(items))
	for i, item := range items {
		all[i] = newFields(item)
	}
	return all
}
