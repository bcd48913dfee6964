//! Tokens that may not have a lock anew for a while, because their owners have given it up.
//!
//! A command of an owner who has given up may still be on its way. What it asks for after `CANCEL … REFUSE` is
//! refused here, so that nobody gets a lock that nobody waits for any more.
//!
//! This file knows databases, names, tokens and the monotonic clock, nothing else. It is this server's alone:
//! neither stored nor replicated. It goes by the number of the database and the name, as the queues do: commands
//! on their way go by these too, whatever `FLUSHALL` or `SWAPDB` do to the data.
//!
//! Of each only a hash of 64 bits is kept, so that all of them together stay small, however long names and tokens
//! are. It is keyed at random, so that nobody can choose names that collide. If two ever did, a request would be
//! refused that need not be, and never one granted that must not be.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;

use crate::ids::LockIdRef;

/// So many are kept at most. One more, and the one that was given first is forgotten.
pub const REFUSED_TOKENS_MAX: usize = 100_000;

/// See the module. Trees, so that no command pays for the growth of a table.
#[derive(Debug, Default)]
pub struct RefusedTokens {
    hasher: RandomState,
    refusals: BTreeMap<u64, Refusal>,
    /// The hashes in the order in which the refusals were given last.
    by_age: BTreeMap<u64, u64>,
    /// When each ends, and its hash.
    by_end: BTreeSet<(u64, u64)>,
    given: u64,
}

#[derive(Clone, Copy, Debug)]
struct Refusal {
    /// On the monotonic clock.
    until_ms: u64,
    /// The how manieth it is.
    number: u64,
}

impl RefusedTokens {
    /// How many are kept, except for a moment after they have ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.refusals.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.refusals.is_empty()
    }

    /// From now on the token may not have this lock anew until then, or until a later moment that was said
    /// before. Whether another one had to be forgotten for it before its time.
    pub(crate) fn insert(&mut self, lock: LockIdRef<'_>, token: &[u8], now_ms: u64, until_ms: u64) -> bool {
        let hash = self.hash(lock, token);
        let before_ms = self.remove(hash).map_or(0, |refusal| refusal.until_ms);
        self.drop_ended(now_ms, 1);
        let is_full = self.refusals.len() >= REFUSED_TOKENS_MAX;
        if is_full && let Some((_, oldest)) = self.by_age.first_key_value() {
            self.remove(*oldest);
        }
        self.given += 1;
        let refusal = Refusal { until_ms: until_ms.max(before_ms), number: self.given };
        self.refusals.insert(hash, refusal);
        self.by_age.insert(refusal.number, hash);
        self.by_end.insert((refusal.until_ms, hash));
        is_full
    }

    /// For how many milliseconds from now the token may not have this lock anew, if for any.
    pub(crate) fn left_ms(&self, lock: LockIdRef<'_>, token: &[u8], now_ms: u64) -> Option<u64> {
        let refusal = self.refusals.get(&self.hash(lock, token))?;
        refusal.until_ms.checked_sub(now_ms).filter(|left_ms| *left_ms > 0)
    }

    /// Forgets those that have ended, so many at most.
    pub(crate) fn drop_ended(&mut self, now_ms: u64, most: usize) {
        for _ in 0..most {
            let ended = self.by_end.first().filter(|(until_ms, _)| *until_ms <= now_ms);
            let Some((_, hash)) = ended else { return };
            self.remove(*hash);
        }
    }

    fn hash(&self, lock: LockIdRef<'_>, token: &[u8]) -> u64 {
        self.hasher.hash_one((lock, token))
    }

    fn remove(&mut self, hash: u64) -> Option<Refusal> {
        let refusal = self.refusals.remove(&hash)?;
        self.by_age.remove(&refusal.number);
        self.by_end.remove(&(refusal.until_ms, hash));
        Some(refusal)
    }
}
