// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is counted outside of the manager.

use std::cell::RefCell;

use slock_core::{LockId, LockIdRef};

use crate::shared::Count;

/// See the module.
pub struct Metrics {
    /// Holders whose deadline has passed.
    pub expirations: Count,
    /// Locks that were evicted.
    pub evictions: Count,
}

thread_local! {
    /// The lock that the server removed last: if an eviction is announced next, it was this one.
    static REMOVED: RefCell<Option<LockId>> = const { RefCell::new(None) };
}

impl Metrics {
    /// Remembers a lock that the server removed, not we.
    pub fn note_removal(&self, lock: LockIdRef<'_>) {
        REMOVED.set(Some(lock.into()));
    }

    /// Counts an evicted key, if it was a lock.
    pub fn count_eviction(&self, key: LockIdRef<'_>) {
        if REMOVED.take().is_some_and(|removed| removed.as_ref() == key) {
            self.evictions.add(1);
        }
    }
}
