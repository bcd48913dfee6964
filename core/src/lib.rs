// SPDX-License-Identifier: MIT OR Apache-2.0

//! The rules of the SLOCK read-write lock.
//!
//! This crate owns every decision: who may hold a lock, until when, with which fence, and who is
//! next. It knows no server, reads no clock and does no I/O: time is passed in as a [`Timestamp`], and
//! whatever is stored lies behind the [`LockStore`] trait. What a decision changes is a value, an
//! [`Effect`], which the caller stores, replicates and announces; where there is no effect there is
//! nothing to replicate.
//!
//! | module | owns |
//! |---|---|
//! | `ids`, `mode`, `timestamp`, `error`, [`limits`] | the words that all others use; they import nothing else |
//! | `lock` | one lock: its mode, its holders, what may be granted, how an effect changes it |
//! | `request` | what is asked for, from the command to the grant, and what the answer is |
//! | `effect` | the changes a lock can undergo, in absolute time |
//! | `fence` | the server-wide fencing counter |
//! | `queue` | the requests that wait, in order, over any number of names |
//! | `revoked_tokens` | tokens that get no new hold of a lock for a while |
//! | [`manager`] | every operation from request to answer; who is granted next |
//! | `deadlock` | the search for owners that would wait for each other |
//! | `outside` | what the core asks for that it does not keep: locks, and those who wait |
//! | `distribution` | how long waits and holds took |
//! | [`format`] | the bytes of a stored lock |

// The tests count what is allocated, which takes an allocator of their own.
#![cfg_attr(not(test), forbid(unsafe_code))]

mod alloc_size;
mod deadlock;
mod distribution;
mod effect;
mod error;
mod fence;
pub mod format;
mod ids;
pub mod limits;
mod lock;
pub mod manager;
mod mode;
mod outside;
mod queue;
mod request;
mod revoked_tokens;
#[cfg(test)]
mod tests;
mod timestamp;
pub mod wire;

pub use distribution::Distribution;
pub use effect::{Change, Effect, Event};
pub use error::{DeadlockCycle, DeadlockStep, LockError};
pub use fence::Fences;
pub use ids::{ConnectionId, HoldRef, LockId, LockIdRef, RequestId, UserName};
pub use lock::{Applied, Holder, Lock};
pub use manager::{Counters, LockManager, NamePosition, Operation, OwnerPosition, TimeSlice};
pub use mode::{Mode, Want};
pub use outside::{Clients, LockStore, Lookup, NotGranted};
pub use queue::{QueueSummary, Waiter, Waitlist};
pub use request::{
    AcquireOutcome, Answer, Claim, Destination, Extension, ReplyTo, Request, Terms, WaitPolicy, WaitResult,
};
pub use revoked_tokens::RevokedTokens;
pub use timestamp::Timestamp;
