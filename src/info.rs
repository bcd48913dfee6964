//! What `INFO slock` shows. Counting costs no scan.

use std::cell::{Cell, RefCell};

use slock_core::{LockId, LockIdRef, LockManager};

use crate::server::{self, Section};

/// What is counted outside of the manager.
#[derive(Default)]
pub struct Metrics {
    /// Whether this server decides what becomes of locks, or only follows: then expirations are counted where
    /// it is decided.
    follows: Cell<bool>,
    expirations: Cell<u64>,
    evictions: Cell<u64>,
    /// The lock that the server removed last: if an eviction is announced next, it was this one.
    removed: RefCell<Option<LockId>>,
}

impl Metrics {
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
        self.removed.replace(Some(lock.into()));
    }

    /// Counts an evicted key, if it was a lock.
    pub fn count_eviction(&self, key: LockIdRef<'_>) {
        if self.removed.take().is_some_and(|removed| removed.as_ref() == key) {
            self.evictions.set(self.evictions.get() + 1);
        }
    }
}

/// Writes the section.
pub fn write(section: &Section, metrics: &Metrics, manager: &LockManager) {
    let counters = &manager.counters;
    section.field(c"locks", u64::try_from(server::stored_locks()).unwrap_or(0));
    section.field(c"waiters", manager.waitlist().len() as u64);
    section.field(c"waiters_max", counters.waiters_max);
    section.field(c"grants", counters.grants);
    section.field(c"refusals", counters.refusals);
    section.field(c"handoffs", counters.handoffs);
    section.field(c"releases", counters.releases);
    section.field(c"expirations", metrics.expirations.get() + server::freed_ended_holders());
    section.field(c"wait_timeouts", counters.wait_timeouts);
    section.field(c"deadlocks", counters.deadlocks);
    section.field(c"evicted_locks", metrics.evictions.get());
    section.field(c"wait_ms_total", counters.wait_ms_total);
    section.field(c"wait_ms_max", counters.wait_ms_max);
    section.field(c"last_fence", manager.fences.last());
}
