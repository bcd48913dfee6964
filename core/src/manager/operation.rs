// SPDX-License-Identifier: MIT OR Apache-2.0

//! An operation: which locks it is about, where they are, and what the time is.

use crate::error::LockError;
use crate::ids::{HoldRef, LockIdRef};
use crate::lock::{Holder, Lock};
use crate::outside::{LockStore, Lookup};
use crate::timestamp::Timestamp;

/// What the manager is to work on: names of one database, each given once, and the time that counts for all of it.
#[derive(Debug)]
pub struct Operation<'a, S> {
    store: &'a mut S,
    now: Timestamp,
    db: i32,
    names: &'a [&'a [u8]],
}

impl<'a, S: LockStore> Operation<'a, S> {
    /// An operation on these names.
    pub fn new(store: &'a mut S, now: Timestamp, db: i32, names: &'a [&'a [u8]]) -> Self {
        Self { store, now, db, names }
    }

    /// The time that counts for all of it.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }
}

/// An operation whose locks are open. Only [`LockManager::open`] makes one of a command's; what only looks, or has
/// nobody who asks, opens its own.
#[derive(Debug)]
pub(super) struct Open<'a, S>(Operation<'a, S>);

impl<'a, S: LockStore> Open<'a, S> {
    pub(super) fn new(operation: Operation<'a, S>) -> Self {
        operation.store.open(operation.db, operation.names);
        Self(operation)
    }

    pub(super) fn now(&self) -> Timestamp {
        self.0.now
    }

    /// How many names it is about.
    pub(super) fn len(&self) -> usize {
        self.0.names.len()
    }

    pub(super) fn db(&self) -> i32 {
        self.0.db
    }

    pub(super) fn names(&self) -> &'a [&'a [u8]] {
        self.0.names
    }

    pub(super) fn id(&self, at: usize) -> LockIdRef<'a> {
        LockIdRef { db: self.0.db, name: self.0.names[at] }
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = LockIdRef<'a>> {
        self.0.names.iter().map(|name| LockIdRef { db: self.0.db, name })
    }

    pub(super) fn store(&mut self) -> &mut S {
        self.0.store
    }

    /// The lock at this position, if the name can have one.
    pub(super) fn lock(&self, at: usize) -> Result<Option<&Lock>, LockError> {
        match self.0.store.get(at) {
            Lookup::Lock(lock) => Ok(lock),
            Lookup::OtherType => Err(LockError::WrongType),
            Lookup::NotServed => Err(LockError::NotServed),
        }
    }

    /// The hold that is meant, if it is in force at this position.
    pub(super) fn hold(&self, at: usize, hold: HoldRef<'_>) -> Result<Option<&Holder>, LockError> {
        let own = self.lock(at)?.and_then(|lock| lock.holder(hold.token, self.0.now.unix_ms()));
        Ok(own.filter(|own| hold.means(own.fence)))
    }

    /// When the key at this position goes by itself, in Unix milliseconds, if it has an expiry.
    pub(super) fn expires_ms(&self, at: usize) -> Option<u64> {
        self.0.store.expires_ms(at)
    }
}
