// SPDX-License-Identifier: MIT OR Apache-2.0

// Package redislock obtains locks on a Redis or Valkey server that has loaded the SLOCK module.
//
// It has the exported names and the behaviour of [github.com/bsm/redislock], so that a program changes only
// its import path. The few differences are in the README of this package. Waiting is done by the client: it
// tries again as the [RetryStrategy] says. Package slock of this module waits on the server, renews locks, and
// ends work whose lock is lost.
//
// [github.com/bsm/redislock]: https://github.com/bsm/redislock
package redislock
