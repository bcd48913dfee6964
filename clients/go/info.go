package slock

import (
	"cmp"
	"context"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file has what the server tells of locks: who holds one, who waits for it, and which are waited for.

// Free is the mode of a lock that nobody holds.
const Free Mode = "free"

// Info is what SLOCK.INFO tells of one lock.
type Info struct {
	Mode      Mode          `slock:"mode"` // Write, Read or Free
	Readers   int           `slock:"readers"`
	Waiters   int           `slock:"waiters"`
	Fence     int64         `slock:"fence"`   // the highest of the holders
	Remaining time.Duration `slock:"pttl"`    // until the last holder's deadline
	Holders   []Holder      `slock:"holders"` // in the order in which their holds began
	Queue     []Waiter      `slock:"queue"`   // in the order in which they will be granted
}

// Holder is one who holds a lock.
type Holder struct {
	Token     string        `slock:"token"`
	Fence     int64         `slock:"fence"`
	Remaining time.Duration `slock:"pttl"`    // until its deadline
	Held      time.Duration `slock:"held-ms"` // since the hold began
	Metadata  string        `slock:"meta"`
}

// Waiter is one who waits for a lock.
type Waiter struct {
	Token    string        `slock:"token"`
	Mode     string        `slock:"mode"` // "write", "read" or "upgrade"
	Waiting  time.Duration `slock:"waiting-ms"`
	Wait     time.Duration `slock:"timeout-ms"` // at most, unless the client sends the request again
	Metadata string        `slock:"meta"`
	Limit    int           `slock:"limit"`
	Channel  string        `slock:"channel"`
}

// Queue is a lock that is waited for.
type Queue struct {
	Key         string        `slock:"key"`
	Waiters     int           `slock:"waiters"`
	Writers     int           `slock:"writers"`
	LongestWait time.Duration `slock:"longest-wait-ms"`
	Next        string        `slock:"next"` // the token at the front
	Mode        Mode          `slock:"mode"`
	Readers     int           `slock:"readers"`
	Held        time.Duration `slock:"held-ms"` // of the oldest hold
}

// Info tells who holds the lock of the key and who waits for it, all of them.
func (l *Locks) Info(ctx context.Context, key string) (Info, error) {
	if key == "" {
		return Info{}, invalid("a key must not be empty")
	}
	reply, err := l.query(ctx, l.settings.prefix+key, "SLOCK.INFO", l.settings.prefix+key, "FULL", "COUNT", 0)
	if err != nil {
		return Info{}, err
	}
	return infoOf(reply), nil
}

func infoOf(reply any) (info Info) {
	if reply == nil {
		return Info{Mode: Free}
	}
	fill(reflect.ValueOf(&info).Elem(), reply)
	return info
}

// holders are those of the first key that somebody holds, at most 10, or none if the server does not tell in time.
func (s *server) holders(ctx context.Context, within time.Duration, keys []string) []Holder {
	for until, i := time.Now().Add(within), 0; i < len(keys) && time.Now().Before(until); i++ {
		call := Call{Key: keys[i], KeyAt: 1, Command: []any{"SLOCK.INFO", keys[i], "FULL", "COUNT", 10}}
		got, err := s.try(ctx, until, call)
		if err != nil || asError(got.reply) != nil {
			return nil
		}
		if info := infoOf(got.reply); len(info.Holders) > 0 {
			return info.Holders
		}
	}
	return nil
}

// Queues tells which locks are waited for whose names begin with the prefix, on all nodes of a cluster, the longest wait
// first.
func (l *Locks) Queues(ctx context.Context) ([]Queue, error) {
	var found []Queue
	at := map[string]int{} // by the key
	// All nodes are asked from the least of their cursors on, so some may tell the same again.
	for cursor, isDone := uint64(0), false; !isDone; {
		reply, err := l.query(ctx, "", "SLOCK.QUEUES", "COUNT", 0, "CURSOR", cursor)
		if err != nil {
			return nil, err
		}
		replies, _ := reply.([]any)
		cursor, isDone = math.MaxUint64, true
		for _, reply := range replies {
			var queues []Queue
			page, _ := reply.([]any)
			if len(page) != 2 {
				continue
			}
			if next, err := strconv.ParseUint(page[0].(string), 10, 64); err == nil && next > 0 {
				cursor, isDone = min(cursor, next), false
			}
			fill(reflect.ValueOf(&queues).Elem(), page[1])
			for _, queue := range queues {
				if name, ok := strings.CutPrefix(queue.Key, l.settings.prefix); ok {
					queue.Key = name
					if _, isKnown := at[name]; !isKnown {
						at[name], found = len(found), append(found, Queue{})
					}
					found[at[name]] = queue
				}
			}
		}
	}
	// A server sends those that wait equally long in their order.
	slices.SortStableFunc(found, func(a, b Queue) int { return cmp.Compare(b.LongestWait, a.LongestWait) })
	return found, nil
}

// query sends a question until it is answered, to the node of the key or without a key to all, for the time of RetryFor.
func (l *Locks) query(ctx context.Context, key string, words ...any) (reply any, err error) {
	if err := l.usable(); err != nil {
		return nil, err
	}
	a := newAttempts(ctx, l.closing, &l.settings, nil)
	err = a.run(func() error {
		got, err := l.servers[0].try(ctx, a.limit(), Call{Key: key, KeyAt: 1, Command: words})
		reply = got.reply
		replies, _ := reply.([]any)
		for i := 0; key == "" && i < len(replies) && err == nil; i++ {
			err = asError(replies[i])
		}
		return cmp.Or(err, asError(reply))
	})
	return reply, err
}

// asError is a reply that is an error, or nil.
func asError(reply any) error {
	err, _ := reply.(error)
	return err
}

// fill sets a field, or a struct by the names of its fields, from what the server says. What is of another kind is zero.
// Times are in milliseconds. A map is a flat array by RESP2.
func fill(to reflect.Value, reply any) {
	text, _ := reply.(string)
	number, _ := reply.(int64)
	items, _ := reply.([]any)
	switch to.Kind() {
	case reflect.String:
		to.SetString(text)
	case reflect.Int, reflect.Int64:
		if to.Type() == reflect.TypeFor[time.Duration]() {
			number *= int64(time.Millisecond)
		}
		to.SetInt(number)
	case reflect.Slice:
		if len(items) == 0 {
			return
		}
		to.Set(reflect.MakeSlice(to.Type(), len(items), len(items)))
		for i, item := range items {
			fill(to.Index(i), item)
		}
	case reflect.Struct:
		values, _ := reply.(map[any]any)
		if values == nil {
			values = map[any]any{}
		}
		for i := 0; i+1 < len(items); i += 2 {
			values[items[i]] = items[i+1]
		}
		for i := range to.NumField() {
			fill(to.Field(i), values[to.Type().Field(i).Tag.Get("slock")])
		}
	}
}
