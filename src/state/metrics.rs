//! What is counted outside of the manager.

use std::cell::RefCell;

use slock_core::{LockId, LockIdRef};

use crate::server;
use crate::shared::{Count, Flag};

/// See the module.
pub struct Metrics {
    /// Whether this server decides what becomes of locks, or only follows: then expirations are counted where
    /// it is decided.
    follows: Flag,
    expirations: Count,
    evictions: Count,
}

thread_local! {
    /// The lock that the server removed last: if an eviction is announced next, it was this one.
    static REMOVED: RefCell<Option<LockId>> = const { RefCell::new(None) };
}

impl Metrics {
    pub(super) const fn new() -> Self {
        Self { follows: Flag::new(false), expirations: Count::new(0), evictions: Count::new(0) }
    }

    /// Says whether this server only follows what is decided elsewhere.
    pub fn set_follows(&self, follows: bool) {
        self.follows.set(follows);
        server::count_freed(!follows);
    }

    /// Counts holders whose deadline had passed when an effect dropped them. Those that were still in a lock
    /// when it went are counted where it is freed.
    pub fn count_expirations(&self, holders: usize) {
        if !self.follows.get() {
            self.expirations.set(self.expirations.get() + holders as u64);
        }
    }

    /// Remembers a lock that the server removed, not we.
    pub fn note_removal(&self, lock: LockIdRef<'_>) {
        REMOVED.set(Some(lock.into()));
    }

    /// Counts an evicted key, if it was a lock.
    pub fn count_eviction(&self, key: LockIdRef<'_>) {
        if REMOVED.take().is_some_and(|removed| removed.as_ref() == key) {
            self.evictions.set(self.evictions.get() + 1);
        }
    }

    /// Holders whose deadline has passed.
    pub fn expirations(&self) -> u64 {
        self.expirations.get() + server::freed_ended_holders()
    }

    /// Begins to count anew.
    pub fn reset(&self) {
        self.expirations.set(0);
        self.evictions.set(0);
        server::reset_freed();
    }

    /// Locks that were evicted.
    pub fn evictions(&self) -> u64 {
        self.evictions.get()
    }
}
