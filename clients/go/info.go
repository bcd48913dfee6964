// SPDX-License-Identifier: MIT OR Apache-2.0

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
	Metadata string        `slock:"meta"`
}

// Queue is a lock that is waited for.
type Queue struct {
	Key         string        `slock:"key"`
	Waiters     int           `slock:"waiters"`
	Writers     int           `slock:"writers"`
	LongestWait time.Duration `slock:"longest-wait-ms"`
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
	fill(reflect.ValueOf(&info).Elem(), reply)
	info.Mode = cmp.Or(info.Mode, Free)
	return info
}

// Queues tells which locks are waited for whose names begin with the prefix, on all nodes of a cluster, the longest wait
// first.
func (l *Locks) Queues(ctx context.Context) ([]Queue, error) {
	var found []Queue
	isKnown := map[string]bool{}
	// All nodes are asked from the least of their cursors on, so some may tell the same again.
	for cursor, isDone := uint64(0), false; !isDone; {
		reply, err := l.query(ctx, "", "SLOCK.QUEUES", "COUNT", 0, "CURSOR", cursor)
		if err != nil {
			return nil, err
		}
		cursor, isDone = math.MaxUint64, true
		for _, reply := range reply.([]any) {
			page := reply.([]any)
			if next, _ := strconv.ParseUint(page[0].(string), 10, 64); next > 0 {
				cursor, isDone = min(cursor, next), false
			}
			var queues []Queue
			fill(reflect.ValueOf(&queues).Elem(), page[1])
			for _, queue := range queues {
				name, ok := strings.CutPrefix(queue.Key, l.settings.prefix)
				if queue.Key = name; ok && !isKnown[name] {
					isKnown[name], found = true, append(found, queue)
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
	a := newAttempts(ctx, l.closing, nil, l.settings.retryFor)
	err = a.run(func() error {
		got := l.servers[0].try(ctx, a.limit, Call{Key: key, KeyAt: 1, Command: words})
		reply = got.reply
		_, err := asNumber(got.reply, got.err)
		items, _ := reply.([]any)
		for _, item := range items { // the replies of several servers
			_, refusal := asNumber(item, nil)
			err = cmp.Or(err, refusal)
		}
		return err
	})
	return reply, err
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
