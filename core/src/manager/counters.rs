//! What has happened since the server started.

/// Nothing here costs a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Requests refused because to wait would have closed a cycle.
    pub deadlocks: u64,
    /// How long all requests that were granted had waited, together.
    pub wait_ms_total: u64,
    /// How long the one of them that waited longest had waited.
    pub wait_ms_max: u64,
    /// The most requests that ever waited at a time.
    pub waiters_max: u64,
}
