// Package slock takes locks of the SLOCK module of Redis and Valkey, on go-redis: write locks, read locks,
// semaphores, several keys at once, and quorums of independent servers.
//
//	locks := slock.New(rdb)
//	err := locks.Write("report").Do(ctx, func(ctx context.Context) error {
//		return writeReport(ctx) // ctx ends when the lock is lost
//	})
//
// A Locks is made once for a program. Its Write and Read give requests, Lock and TryLock of a Request give a
// Hold, and Do runs work under one. A hold is renewed in the background until it is released. When it is lost
// all the same, its context ends.
//
// A hold is a lease: a process that was stopped for longer than the ttl has lost it, and learns of it only
// when it goes on. Send Hold.Fence with what is written, and refuse lesser fences where it is stored.
package slock
