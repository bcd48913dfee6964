// SPDX-License-Identifier: MIT OR Apache-2.0

//! Revoked tokens: tokens that get no new hold of a lock for a while, because their owners have ended the acquisition.
//!
//! A command that such an owner sent earlier may still be on its way. If it arrives after `MUNLOCK … REFUSE`, it is
//! refused here, so that nobody is granted a lock that nobody waits for any more.
//!
//! This file knows databases, names, tokens and the monotonic clock, nothing else. It is this server's alone:
//! neither stored nor replicated. It goes by the number of the database and the name, as the queues do: commands
//! on their way go by these too, whatever `FLUSHALL` or `SWAPDB` do to the data.
//!
//! The table has a fixed size and keeps a hash of 64 bits for each lock and token, keyed at random, so that nobody can
//! choose names that collide. If two ever did, a request would be refused that need not be; none would be granted
//! that must not be.

use std::hash::BuildHasher;

#[cfg(not(test))]
use hashbrown::DefaultHashBuilder as RandomKey;

use crate::ids::LockIdRef;
use crate::timestamp::Timestamp;

/// In tests the key is always the same, so that a history can be played again.
#[cfg(test)]
type RandomKey = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// How many entries the table has.
pub(crate) const ENTRIES: usize = 1 << 16;
/// An entry is in one of so many places. So the last few thousand stay, even if the table is full.
const PLACES: usize = 8;

/// See the file.
#[derive(Debug, Default)]
pub struct RevokedTokens {
    hasher: RandomKey,
    /// The lowest bits of an entry's hash tell its places; the newest entry is in the first of them. Allocated when the
    /// first token is revoked.
    table: Vec<[Entry; PLACES]>,
    /// How many entries were overwritten by others before their time was up.
    pub overwritten: u64,
}

/// A token that is revoked for one lock. 24 bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Of the database, the name and the token.
    hash: u64,
    /// When it ends, in milliseconds of the monotonic clock.
    end_ms: u64,
    /// Whether the token lost a hold of this lock when it was revoked.
    is_released: bool,
}

impl RevokedTokens {
    /// Revokes the token for this lock for `ms`, or until a later moment that was said before. `is_released` says
    /// whether the token has just lost a hold there; returns whether it has lost one since it was revoked first.
    pub(crate) fn revoke(
        &mut self,
        lock: LockIdRef<'_>,
        token: &[u8],
        now: Timestamp,
        ms: u64,
        is_released: bool,
    ) -> bool {
        let end_ms = now.monotonic_ms().saturating_add(ms);
        if self.table.is_empty() {
            self.table = vec![Default::default(); ENTRIES / PLACES];
        }
        let hash = self.hasher.hash_one((lock, token));
        let mut new = Entry { hash, end_ms, is_released };
        let places = &mut self.table[hash as usize % (ENTRIES / PLACES)];
        let own = places.iter().position(|entry| entry.hash == hash);
        let over = || places.iter().position(|entry| entry.end_ms <= now.monotonic_ms());
        let at = own.or_else(over).unwrap_or(PLACES - 1);
        if places[at].end_ms > now.monotonic_ms() {
            if own.is_some() {
                new.end_ms = end_ms.max(places[at].end_ms);
                new.is_released |= places[at].is_released;
            } else {
                self.overwritten += 1;
            }
        }
        places[..=at].rotate_right(1);
        places[0] = new;
        new.is_released
    }

    /// For how many milliseconds from now the token is revoked for this lock, if it is.
    pub(crate) fn left_ms(&self, lock: LockIdRef<'_>, token: &[u8], now: Timestamp) -> Option<u64> {
        let left_ms = self.entry(lock, token)?.end_ms.checked_sub(now.monotonic_ms());
        left_ms.filter(|left_ms| *left_ms > 0)
    }

    fn entry(&self, lock: LockIdRef<'_>, token: &[u8]) -> Option<&Entry> {
        // Before the first token is revoked nothing is hashed.
        let hash = self.table.first().map(|_| self.hasher.hash_one((lock, token)))?;
        self.table[hash as usize % (ENTRIES / PLACES)].iter().find(|entry| entry.hash == hash)
    }
}

#[cfg(test)]
#[path = "tests/revoked_described.rs"]
mod describe;
