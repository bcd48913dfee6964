//! What has happened since the server started.

use crate::distribution::Distribution;

/// Nothing here costs a scan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// Requests that were given a new hold. A refresh is not counted.
    pub grants: u64,
    /// Requests answered 0 because they did not want to wait.
    pub refusals: u64,
    /// Of `grants`, those that waited for it.
    pub handoffs: u64,
    /// Holds that were released by their owners or ended with their connections.
    pub releases: u64,
    /// Requests that waited in vain.
    pub wait_timeouts: u64,
    /// Requests that were cancelled while they waited; see [`LockManager::cancel`](super::LockManager::cancel).
    pub cancels: u64,
    /// Requests refused because their owners had given up; see [`LockManager::refuse`](super::LockManager::refuse).
    pub cancelled: u64,
    /// Tokens that were refused no more before their time, because there were too many.
    pub refused_tokens_dropped: u64,
    /// Requests that left because nobody listened to their channel.
    pub unheard: u64,
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
