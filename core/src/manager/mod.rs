// SPDX-License-Identifier: MIT OR Apache-2.0

//! Every operation of the lock, from request to answer.
//!
//! The manager owns what is not stored with a lock: the source of fences, the queue, and which hold ends
//! with which connection. An operation looks at the locks it names, once, decides, applies effects, and
//! answers. Locks are reached through a [`LockStore`] only.
//!
//! # Who is granted, and where
//!
//! A newcomer is granted at once where nobody waits. Everybody else is granted in one place,
//! [`LockManager::serve_queues`], which the caller runs at the end of the turn in which a lock came free,
//! whatever freed it. Until then its queue is *ready*: it has to be looked at. A grant is
//! final: nothing here takes one back.
//!
//! # What always holds
//!
//! * Whenever an operation has returned, the first in each queue cannot be served, or the queue is ready,
//!   or a wake says when time alone will let it in.
//! * A request is granted on all its names in one operation or on none.
//! * Nobody overtakes: a new hold is given to a request at the front of each of its queues, or to a
//!   newcomer where nobody waits. What a token holds already it may refresh at any time.
//! * Only [`LockManager::extend`] makes a hold end earlier, where it is told to. So a command that comes late
//!   ends no hold before its time, if it names the hold that it means.

mod acquire;
mod counters;
#[cfg(test)]
#[path = "../tests/manager_described.rs"]
mod describe;
mod end;
mod ephemeral;
mod hold;
mod lock_manager;
mod look_around;
mod operation;
mod rounds;
mod serve_queues;
mod tasks;

pub use counters::Counters;
pub use lock_manager::{Bounds, LockManager};
pub use look_around::{NamePosition, OwnerPosition};
pub use operation::Operation;
pub use rounds::TimeSlice;
