// SPDX-License-Identifier: MIT OR Apache-2.0

//! What has happened since the server started.

use crate::distribution::Distribution;

/// Nothing here costs a scan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// Requests that were given a new hold. A refresh is not counted.
    pub grants: u64,
    /// Requests answered 0 because they did not want to wait. (One that only refreshes is not counted.)
    pub refusals: u64,
    /// Of `grants`, those that waited for it.
    pub handoffs: u64,
    /// Holds that were released by their owners or ended with their connections.
    pub releases: u64,
    /// Requests whose time ran out while they waited.
    pub wait_timeouts: u64,
    /// Requests that were withdrawn by [`LockManager::cancel`](super::LockManager::cancel) or
    /// [`LockManager::end`](super::LockManager::end).
    pub cancels: u64,
    /// Requests refused because their tokens were revoked; see [`LockManager::end`](super::LockManager::end).
    pub revoked_requests: u64,
    /// Requests that left because their channel had no subscriber.
    pub no_subscriber: u64,
    /// Requests refused because owners would wait for each other in a cycle.
    pub deadlocks: u64,
    /// How long the requests of `handoffs` waited.
    pub waits: Distribution,
    /// The same together.
    pub wait_ms_total: u64,
    /// How long the holds of `releases` lasted.
    pub holds: Distribution,
    /// The most requests that ever waited at a time.
    pub waiters_max: u64,
}
