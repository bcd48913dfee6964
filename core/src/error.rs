// SPDX-License-Identifier: MIT OR Apache-2.0

//! Why a request is refused. The module words it for clients.

use std::rc::Rc;

use crate::ids::{LockId, UserName};
use crate::mode::Mode;

/// Why a request ends without a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockError {
    /// The key holds another type.
    WrongType,
    /// This node of a cluster does not serve the key now: its slot is moving or has moved.
    NotServed,
    /// The token holds the lock in this mode, and asked for the other.
    WrongMode(Mode),
    /// The token was to upgrade or downgrade a hold that it does not have.
    NotHeld,
    /// To wait would close a cycle of owners that wait for each other.
    Deadlock(DeadlockCycle),
    /// The request needs more places in queues than are left of so many.
    QueueFull(usize),
    /// The same of the places that one user may have.
    UserQueueFull(usize),
    /// The same of the places that one user may have with this token.
    TokenQueueFull(usize),
    /// The owner has ended the acquisition: for this many milliseconds the token gets no new hold of this lock.
    Revoked(u64),
    /// No new hold is given before this many milliseconds have passed.
    Grace(u64),
    /// The fence or the deadline would be greater than a stored lock can carry.
    OutOfRange,
    /// The server has become a replica.
    NotPrimary,
    /// The user may no longer ask for this lock.
    NoPermission,
}

/// A cycle of owners that wait for each other, as far as it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlockCycle {
    /// The first steps.
    pub steps: Vec<DeadlockStep>,
    /// How many more there are.
    pub more: usize,
    /// Who is to be told: of locks that this user may not look at, neither names nor tokens.
    pub told_to: UserName,
}

/// One step of a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlockStep {
    /// Who waits.
    pub token: Rc<[u8]>,
    /// Where.
    pub lock: LockId,
    /// For whom.
    pub waits_for: Rc<[u8]>,
}
