// SPDX-License-Identifier: MIT OR Apache-2.0

// Package slockrueidis takes locks of package slock over clients of rueidis.
//
//	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"localhost:6379"}})
//	locks := slock.NewWith(slockrueidis.New(client))
package slockrueidis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"slock.example/go"
)

const (
	// listenAgain is the pause before a subscription that has ended is made again.
	listenAgain = 100 * time.Millisecond
	// leaving is how long the end of a subscription is sent at most.
	leaving = time.Second
)

// New makes a Transport over the program's client, for slock.NewWith and slock.NewQuorumWith. The client may be one of a
// server, of Sentinel, or of a cluster. It stays the program's, which closes it after the Locks.
func New(client rueidis.Client) slock.Transport { return transport{client} }

type transport struct{ client rueidis.Client }

// Topology describes the servers. With Sentinel, rueidis closes the connections to the former primary when Sentinel
// announces another one, and subscribes there again.
func (t transport) Topology() (slock.Topology, error) {
	mode, nodes := t.client.Mode(), slices.Sorted(maps.Keys(t.client.Nodes()))
	return slock.Topology{
		Name:    strings.Join(nodes, ", "),
		Cluster: mode == rueidis.ClientModeCluster, Failover: mode == rueidis.ClientModeSentinel,
		RepeatsAfter: time.Hour, // rueidis repeats only commands that read
	}, nil
}

// Call sends a command over the connections that all commands share, which none occupies, and again over one of the pool
// for blocking commands. Two commands, of which the second may be a WAIT that would delay all others, go the other way round.
func (t transport) Call(ctx context.Context, call slock.Call) (reply, then any, err error) {
	isAlone := call.Again != (len(call.Then) > 0)
	words, at := texts(call.Command), call.KeyAt
	if call.Key == "" {
		reply, err = t.everywhere(ctx, words)
		return reply, nil, err
	}
	command := build(t.client.B().Arbitrary(words[:at]...).Keys(call.Key).Args(words[at+1:]...), isAlone)
	if len(call.Then) == 0 {
		reply, err = t.reply(t.client.Do(ctx, command))
		return reply, nil, err
	}
	// Both go over one connection, in a cluster to the node of the key.
	results := t.client.DoMulti(ctx, command, build(t.client.B().Arbitrary(texts(call.Then)...), isAlone))
	if reply, err = t.reply(results[0]); err == nil {
		then, err = t.reply(results[1])
	}
	return reply, then, err
}

// build completes a command for a connection of its own, or for one that all share.
func build[C interface {
	Build() rueidis.Completed
	Blocking() rueidis.Completed
}](command C, isAlone bool) rueidis.Completed {
	if isAlone {
		return command.Blocking()
	}
	return command.Build().ToPipe()
}

// everywhere sends a command to each node. Replicas have nobody who waits.
func (t transport) everywhere(ctx context.Context, words []string) (any, error) {
	replies := []any{}
	for _, node := range t.client.Nodes() {
		reply, err := t.reply(node.Do(ctx, node.B().Arbitrary(words...).Build().ToPipe()))
		if err != nil {
			return nil, err
		}
		replies = append(replies, reply)
	}
	return replies, nil
}

// reply is the reply to a command, or the error that there is none. A login that is refused is one of the latter: it may
// succeed later, with other credentials.
func (t transport) reply(result rueidis.RedisResult) (any, error) {
	err := result.NonRedisError()
	isClosed := errors.Is(err, rueidis.ErrClosing) && t.client.Mode() == rueidis.ClientModeStandalone
	if err != nil && !isClosed {
		return nil, err
	}
	value, err := result.ToAny()
	if err != nil && !rueidis.IsRedisNil(err) {
		return &slock.ReplyError{Err: err}, nil
	}
	return plain(value), nil
}

// plain has maps as package slock expects them.
func plain(value any) any {
	switch value := value.(type) {
	case map[string]any:
		all := make(map[any]any, len(value))
		for key, one := range value {
			all[key] = plain(one)
		}
		return all
	case []any:
		for i, one := range value {
			value[i] = plain(one)
		}
	}
	return value
}

func texts(words []any) []string {
	all := make([]string, len(words))
	for i, word := range words {
		all[i] = fmt.Sprint(word)
	}
	return all
}

// Listen subscribes over one of the connections that all commands share. Receive subscribes again when that is lost,
// unless ClientOption.DisableRetry is set, and returns when the slot of the channel has moved.
func (t transport) Listen(channel string, heard func(message string, ok bool)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	confirmed := rueidis.WithOnSubscriptionHook(ctx, func(s rueidis.PubSubSubscription) {
		if s.Kind == "ssubscribe" {
			heard("", false)
		}
	})
	go func() {
		for ctx.Err() == nil {
			subscribe := t.client.B().Ssubscribe().Channel(channel).Build()
			_ = t.client.Receive(confirmed, subscribe, func(m rueidis.PubSubMessage) { heard(m.Message, true) })
			time.Sleep(listenAgain)
		}
		// Receive leaves the subscription to the server when ctx ends.
		unsubscribing, end := context.WithTimeout(context.Background(), leaving)
		defer end()
		_ = t.client.Do(unsubscribing, t.client.B().Sunsubscribe().Channel(channel).Build())
	}()
	return cancel
}

// Close does nothing: the connections are the client's.
func (t transport) Close() {}
