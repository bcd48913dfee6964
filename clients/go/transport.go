// SPDX-License-Identifier: MIT OR Apache-2.0

package slock

import (
	"context"
	"time"
)

// This file has the one interface to Redis client libraries.

// Transport is what a Locks needs of a Redis client library: New makes one of a client of go-redis. Other packages have
// one for rueidis and valkey-go, and slocktest has one that needs no server.
type Transport interface {
	// Call sends a command, and returns its reply and that of the command that follows it: int64, string, nil, []any,
	// map[any]any, or a *ReplyError. The error means that a reply is missing. It may send a command more than once, and
	// what was sent may be carried out later.
	Call(ctx context.Context, call Call) (reply, then any, err error)
	// Listen subscribes to a channel by SSUBSCRIBE, on the primary that has the channel's slot, and hands on each message.
	// When the server has confirmed the subscription, and whenever a message may have been missed, it hands on that with
	// ok false. It does not wait for the server, and may be called for a channel again after stop.
	Listen(channel string, heard func(message string, ok bool)) (stop func())
	// Topology describes the servers. The error says why the client cannot be used.
	Topology() (Topology, error)
	// Close ends what the Transport has made. The program's client stays open, and Call goes on over it.
	Close()
}

// Call is what a Transport sends.
type Call struct {
	// Key is a key of the command, and tells which primary has to have it. If it is empty, the command goes to each
	// primary, and the reply is a []any of theirs.
	Key string
	// KeyAt is the position of the key in the command, counted from 0 for the name.
	KeyAt int8
	// Command is the command with its arguments.
	Command []any
	// Then is a command that follows over the same connection, if it is not empty.
	Then []any
	// Reserved asks for a connection that the program's own commands cannot occupy.
	Reserved bool
	// Again is whether the same call had no reply, perhaps because its connection is silent: it asks for another one.
	Again bool
}

// Topology describes the servers behind a Transport.
type Topology struct {
	// Name is the address for texts of errors.
	Name string
	// Cluster is whether keys and channels belong to slots.
	Cluster bool
	// Failover is whether another server, which may lack some locks, can take over while the former one still replies, as
	// with Sentinel. Then Locks listens while there are holds, and confirms them when a message may have been missed.
	Failover bool
	// Prompt is whether Call returns within a second after ctx is over. Otherwise each call takes a goroutine.
	Prompt bool
	// RepeatsAfter is the shortest time after which Call may have sent a command again. If it is zero, a request that was
	// refused is always ended by a command, because a copy of it may still arrive.
	RepeatsAfter time.Duration
}

// ReplyError is an error reply of the server, whose text begins with the code, or an error of the Redis client library
// that stays, for example because the program has closed its client.
type ReplyError struct{ Err error }

func (e *ReplyError) Error() string { return e.Err.Error() }

// Unwrap is the error of the Redis client library.
func (e *ReplyError) Unwrap() error { return e.Err }
