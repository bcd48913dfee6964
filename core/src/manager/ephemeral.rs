// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which hold ends with which connection.
//!
//! A hold is known by its fence, which only a copy of its lock shares. So an entry that has become stale, because
//! its hold expired or its key was deleted or renamed, leads to nothing and does no harm; each entry is looked
//! at within a minute.
//!
//! It is this server's alone: neither stored nor replicated, for the connection is neither.
//!
//! A hold takes three entries in trees, each in logarithmic time, and some 600 bytes. While there is any, each command
//! asks when to look next, and each commit looks at what it drops.

use std::collections::{BTreeMap, BTreeSet};

use super::operation::Open;
use crate::ids::{ConnectionId, LockIdRef};
use crate::outside::LockStore;
use crate::request::Claim;

/// A hold that ends with a connection: one fence, on one lock or on several.
#[derive(Debug)]
pub(super) struct EphemeralHold {
    connection: ConnectionId,
    /// The database of the locks.
    pub(super) db: i32,
    pub(super) names: BTreeSet<Box<[u8]>>,
    pub(super) token: Box<[u8]>,
    /// When to look whether it is stale, in Unix milliseconds.
    check_ms: u64,
}

impl EphemeralHold {
    /// A copy of a lock has the same fences: only the lock that was granted ends with the connection.
    fn covers(&self, lock: LockIdRef<'_>) -> bool {
        self.db == lock.db && self.names.contains(lock.name)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct EphemeralHolds {
    by_fence: BTreeMap<u64, EphemeralHold>,
    by_connection: BTreeMap<ConnectionId, BTreeSet<u64>>,
    by_check: BTreeSet<(u64, u64)>,
    /// Connections that have closed and whose holds have not all been ended. The oldest first.
    closed: BTreeSet<ConnectionId>,
}

impl EphemeralHolds {
    pub(super) fn len(&self) -> usize {
        self.by_fence.len()
    }

    /// The hold with this fence, granted to this claim, ends with the connection that asked.
    pub(super) fn bind(&mut self, open: &Open<'_, impl LockStore>, claim: &Claim<'_>, fence: u64) {
        let now_unix_ms = open.now().unix_ms();
        let hold = EphemeralHold {
            connection: claim.terms.client,
            db: open.db(),
            names: open.names().iter().map(|name| Box::from(*name)).collect(),
            token: claim.token.into(),
            check_ms: check_after_ms(now_unix_ms, now_unix_ms.saturating_add(claim.terms.ttl_ms)),
        };
        self.insert(fence, hold);
    }

    fn insert(&mut self, fence: u64, hold: EphemeralHold) {
        self.by_check.insert((hold.check_ms, fence));
        self.by_connection.entry(hold.connection).or_default().insert(fence);
        self.by_fence.insert(fence, hold);
    }

    pub(super) fn remove(&mut self, fence: u64) -> Option<EphemeralHold> {
        let hold = self.by_fence.remove(&fence)?;
        self.by_check.remove(&(hold.check_ms, fence));
        if let Some(fences) = self.by_connection.get_mut(&hold.connection) {
            fences.remove(&fence);
            if fences.is_empty() {
                self.by_connection.remove(&hold.connection);
                self.closed.remove(&hold.connection);
            }
        }
        Some(hold)
    }

    /// The hold with this fence has ended on this lock.
    #[inline(always)]
    pub(super) fn end(&mut self, fence: u64, lock: LockIdRef<'_>) {
        let Some(hold) = self.by_fence.get_mut(&fence).filter(|hold| hold.db == lock.db) else { return };
        hold.names.remove(lock.name);
        if hold.names.is_empty() {
            self.remove(fence);
        }
    }

    /// The hold has another fence now on this lock: it was upgraded or downgraded.
    pub(super) fn change_fence(&mut self, old: u64, new: u64, lock: LockIdRef<'_>, now_unix_ms: u64) {
        let Some(hold) = self.by_fence.get(&old).filter(|hold| hold.covers(lock)) else { return };
        let renamed = EphemeralHold {
            connection: hold.connection,
            db: hold.db,
            names: BTreeSet::from([lock.name.into()]),
            token: hold.token.clone(),
            check_ms: check_after_ms(now_unix_ms, u64::MAX),
        };
        self.insert(new, renamed);
        self.end(old, lock);
    }

    /// This connection has closed.
    pub(super) fn close(&mut self, connection: ConnectionId) {
        if self.by_connection.contains_key(&connection) {
            self.closed.insert(connection);
        }
    }

    /// Whether the hold with this fence, of this lock, is to end because its connection has closed.
    pub(super) fn has_ended(&self, fence: u64, lock: LockIdRef<'_>) -> bool {
        !self.closed.is_empty()
            && self
                .by_fence
                .get(&fence)
                .is_some_and(|hold| self.closed.contains(&hold.connection) && hold.covers(lock))
    }

    /// The connection with which the hold with this fence, of this lock, ends, if with one.
    pub(super) fn connection_of(&self, fence: u64, lock: LockIdRef<'_>) -> Option<ConnectionId> {
        let hold = self.by_fence.get(&fence).filter(|hold| hold.covers(lock))?;
        Some(hold.connection)
    }

    /// Whether any hold is to end.
    pub(super) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// The next hold that is to end, and its fence.
    pub(super) fn next_ended(&self) -> Option<(u64, &EphemeralHold)> {
        let fence = self.by_connection.get(self.closed.first()?)?.first()?;
        Some((*fence, self.by_fence.get(fence)?))
    }

    /// An entry whose hold was due to have ended by now, for the caller to look whether it has.
    pub(super) fn next_check(&self, now_unix_ms: u64) -> Option<(u64, &EphemeralHold)> {
        let (check_ms, fence) = self.by_check.first()?;
        Some((*fence, self.by_fence.get(fence).filter(|_| *check_ms <= now_unix_ms)?))
    }

    /// When [`EphemeralHolds::next_check`] has an entry next, in Unix milliseconds.
    pub(super) fn next_check_ms(&self) -> Option<u64> {
        self.by_check.first().map(|(check_ms, _)| *check_ms)
    }

    /// The hold is alive and is due to end at this moment.
    pub(super) fn check_again_after(&mut self, fence: u64, now_unix_ms: u64, deadline_ms: u64) {
        if let Some(hold) = self.by_fence.get_mut(&fence) {
            self.by_check.remove(&(hold.check_ms, fence));
            hold.check_ms = check_after_ms(now_unix_ms, deadline_ms);
            self.by_check.insert((hold.check_ms, fence));
        }
    }
}

/// When to look at an entry whose hold is due to end then: within a minute, because its key may be deleted, and at
/// whole seconds, so that many are looked at at once.
fn check_after_ms(now_unix_ms: u64, deadline_ms: u64) -> u64 {
    const LONGEST_MS: u64 = 60_000;
    (deadline_ms.min(now_unix_ms.saturating_add(LONGEST_MS)) / 1000 + 1).saturating_mul(1000)
}

#[cfg(test)]
#[path = "../tests/ephemeral_described.rs"]
mod describe;
