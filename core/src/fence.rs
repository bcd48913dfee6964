// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fencing numbers.
//!
//! A fence is handed out with each new hold. A resource that remembers the greatest fence it has
//! seen can refuse a writer whose lease ran out while it was paused (the idea is described in
//! M. Kleppmann, "How to do distributed locking", 2016, and in Chubby's "sequencers", 2006).

use crate::limits::NUMBER_MAX;
use crate::timestamp::Timestamp;

/// The server-wide source of fences: each is `max(last + 1, Unix time in microseconds)`.
///
/// So fences rise even when the clock steps back, and rise above everything given before a restart
/// even when the log of the last moments was lost, as long as the clock went on.
#[derive(Clone, Debug, Default)]
pub struct Fences {
    last: u64,
}

impl Fences {
    /// The last fence given or seen; 0 before the first.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// A new fence, greater than every one given or seen before. `None` when that would be more than
    /// [`NUMBER_MAX`], which nothing that loads stored locks would accept.
    pub fn next(&mut self, now: Timestamp) -> Option<u64> {
        let fence = now.unix_us().max(self.last.saturating_add(1));
        if fence > NUMBER_MAX {
            return None;
        }
        self.last = fence;
        Some(fence)
    }

    /// Learns of a fence that was given elsewhere: on the primary, or before a restart.
    pub fn see(&mut self, fence: u64) {
        self.last = self.last.max(fence);
    }
}
