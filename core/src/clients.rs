// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the core asks about the clients that wait, whom it does not know.

use crate::error::LockError;
use crate::queue::Waiter;

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
