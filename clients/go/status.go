package slock

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file has what the server tells of locks: who holds one, who waits for it, and which are waited for.

// Free is the mode of a lock that nobody holds.
const Free Mode = "free"

// Info is what SLOCK.INFO tells of one lock, at most 100 holders and 100 waiters of it.
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
	Wait     time.Duration `slock:"timeout-ms"` // how long at most; 0 without a limit
	Metadata string        `slock:"meta"`
	Limit    int           `slock:"limit"`
	Channel  string        `slock:"channel"`
	Tag      string        `slock:"tag"`
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

// Info tells who holds the lock of the key and who waits for it.
func (l *Locks) Info(ctx context.Context, key string) (info Info, err error) {
	replies, err := l.query(ctx, key, "SLOCK.INFO", key, "FULL")
	if err != nil || replies[0] == nil {
		return Info{Mode: Free}, err
	}
	fill(reflect.ValueOf(&info).Elem(), replies[0])
	return info, nil
}

// Queues tells which locks are waited for, on all nodes of a cluster, the longest wait first.
func (l *Locks) Queues(ctx context.Context) (all []Queue, err error) {
	replies, err := l.query(ctx, "", "SLOCK.QUEUES", "COUNT", 0)
	for _, reply := range replies {
		var queues []Queue
		fill(reflect.ValueOf(&queues).Elem(), reply)
		all = append(all, queues...)
	}
	slices.SortStableFunc(all, func(a, b Queue) int { return cmp.Compare(b.LongestWait, a.LongestWait) })
	return all, err
}

// query sends a question to the node of the key, or without a key to all, one after the other, for no longer than RetryFor.
func (l *Locks) query(ctx context.Context, key string, w ...any) (replies []any, err error) {
	if l.ending.Err() != nil {
		return nil, ErrClosed
	}
	about := owner{keys: []string{fmt.Sprint(w[0])}}
	_, err = l.repeat(ctx, "answer", about, l.retryEnd(), func(ctx context.Context, limit time.Time) (int64, error) {
		nodes, err := l.servers.primaries(ctx, limit, key)
		replies = nil
		for i := 0; i < len(nodes) && err == nil; i++ {
			var answers []*redis.Cmd
			if answers, err = nodes[i].ask(ctx, limit, w); err == nil {
				replies, err = append(replies, answers[0].Val()), answers[0].Err()
			}
			if err == redis.Nil {
				err = nil
			}
		}
		return 0, err
	})
	return replies, err
}

// fill sets a field, or a struct by the names of its fields, from what the server says. What is of another kind is
// zero. Times are in milliseconds. A map is a flat array by RESP2.
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
