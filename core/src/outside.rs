// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the core asks for that it does not keep: locks, and those who wait.

use crate::effect::{Effect, Event};
use crate::error::LockError;
use crate::ids::LockIdRef;
use crate::lock::Lock;
use crate::queue::Waiter;

/// Where the locks are.
///
/// An operation opens the names that it is about, once, and keeps what it has seen until it closes them:
/// a name that was there for one look cannot be gone for the next, so all of a request's names are
/// changed or none is.
pub trait LockStore {
    /// Begins an operation on these names, each given once. What was open is closed.
    fn open(&mut self, db: i32, names: &[&[u8]]);

    /// What stands under the name at this position.
    fn get(&self, at: usize) -> Lookup<'_>;

    /// Makes an effect on the lock at this position, and makes it known to replicas, the log and subscribers. A `Hold`
    /// makes the lock if there is none; a lock that is left without holders goes. Only where [`LockStore::get`] gave
    /// [`Lookup::Lock`]. If another module has put another type there since, nothing happens.
    fn commit(&mut self, at: usize, effect: &Effect<'_>, event: Event);

    /// When the key at this position goes by itself, in Unix milliseconds, if it has an expiry.
    fn expires_ms(&self, at: usize) -> Option<u64>;

    /// Ends the operation.
    fn close(&mut self);

    /// The lock under any name, to look at only, beside what is open.
    fn peek(&mut self, id: LockIdRef<'_>) -> Option<&Lock>;
}

/// What a name leads to.
#[derive(Debug)]
pub enum Lookup<'a> {
    /// A lock, or nothing, which is as good as a free lock.
    Lock(Option<&'a Lock>),
    /// A value of another type.
    OtherType,
    /// This node of a cluster does not serve the name now.
    NotServed,
}

/// Who waits.
pub trait Clients {
    /// Whether a request that can be granted now on these names may still be. Asked right before the grant.
    ///
    /// # Errors
    /// Why not. The wait ends, and the next is served.
    fn may_be_granted(&mut self, waiter: &Waiter, names: &[&[u8]]) -> Result<(), NotGranted>;
}

/// Why a request is not granted although the lock is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotGranted {
    /// It ends with this error.
    Failed(LockError),
    /// Its channel has no subscriber: all requests of the channel leave, without an answer.
    NoSubscriber,
}
