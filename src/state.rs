// SPDX-License-Identifier: MIT OR Apache-2.0

//! What may be read at any time, also by a callback in the middle of an operation: the values of the settings, what is
//! counted outside of the core, the server's role. What operations work with is in `runtime`.

use std::cell::RefCell;

use slock_core::{LockId, LockIdRef};

use crate::shared::{Count, Flag, Number};

/// The longest ttl that [`Settings::max_ttl_ms`] may allow: a year.
pub const TTL_MAX_MS: i64 = 31_536_000_000;

/// See the module. It takes no look-up of a thread's own, which each command would make several times.
pub struct State {
    /// Whether the server loads a data set.
    pub is_loading: Flag,
    /// Whether the server is a replica.
    pub is_replica: Flag,
    /// The last fence that was given or seen.
    pub last_fence: Count,
    /// What is counted outside of the manager.
    pub metrics: Metrics,
    /// The values of the settings.
    pub settings: Settings,
    /// Whether it is known whether anybody listens to what is replicated, or has to be looked at again.
    pub knows_listeners: Flag,
    /// Whether somebody does, where that is known.
    pub has_listeners: Flag,
}

/// The state. The settings get their defaults when they are registered.
pub static STATE: State = State {
    is_loading: Flag::new(false),
    is_replica: Flag::new(false),
    last_fence: Count::new(0),
    metrics: Metrics { expirations: Count::new(0), evictions: Count::new(0) },
    settings: Settings {
        max_ttl_ms: Number::new(0),
        max_waiters: Number::new(0),
        max_waiters_per_user: Number::new(0),
        restart_grace_ms: Number::new(0),
        allow_apply: Number::new(0),
    },
    knows_listeners: Flag::new(false),
    has_listeners: Flag::new(false),
};

impl State {
    /// Whether this server only follows what was decided before or elsewhere: it is a replica, or loads.
    pub fn only_follows(&self) -> bool {
        self.is_replica.get() || self.is_loading.get()
    }

    /// Counts holders whose deadline had passed when an effect dropped them, or when a lock went in which they still
    /// were. Not on a server that only follows: they are counted where it is decided. May be called on any thread.
    pub fn count_expirations(&self, holders: usize) {
        if !self.only_follows() {
            self.metrics.expirations.add(holders as u64);
        }
    }
}

/// The values of the settings. Their names and bounds are in `settings`.
pub struct Settings {
    /// The longest ttl that a command may ask for.
    pub max_ttl_ms: Number,
    /// How many places in queues there may be, on the whole server: a request for several names has one in each.
    pub max_waiters: Number,
    /// How many of them one user may have; 0 is nine tenths of them.
    pub max_waiters_per_user: Number,
    /// For how long after a start no new hold is given.
    pub restart_grace_ms: Number,
    /// Whether ordinary clients may use `SLOCK.APPLY`, to feed a stream of changes into this server: 0 or 1.
    pub allow_apply: Number,
}

/// What is counted outside of the manager.
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
