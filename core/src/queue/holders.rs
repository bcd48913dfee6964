//! Which tokens hold a lock that somebody waits for.
//!
//! It is asked before any search for a deadlock: nobody waits for an owner that holds no such lock and does
//! not wait elsewhere itself, so its request closes no cycle, however large the crowd.
//!
//! Tokens are noted by their hashes, for locks with few holders. Locks with more are looked at one by one, as
//! long as they are few. So the answer may be yes where it is no (two tokens with one hash, a hold that has
//! ended): then a search is made for nothing. It is no instead of yes only while something has happened to a key that
//! was not reported: when the name is checked, a cycle is searched for. If it was reported, and not looked at yet, it is
//! yes for everybody.

use std::hash::BuildHasher;

use super::{QueueId, Waitlist};
use crate::ids::LockId;
use crate::lock::Lock;

/// Of a lock with more holders none is noted.
const FEW_HOLDERS: usize = 16;

/// So many locks with more holders are looked at, at most.
const LOOKED_AT: usize = 16;

impl Waitlist {
    /// Notes who holds the lock of this queue now. Whether that is somebody else than was noted, as far as it can be told.
    pub(crate) fn note_holders(&mut self, id: QueueId, lock: Option<&Lock>) -> bool {
        let Some(queue) = self.queues.get_mut(&id) else { return false };
        let is_as_noted = match (&queue.noted_holders, lock) {
            (None, Some(lock)) => lock.len() > FEW_HOLDERS,
            (Some(noted), None) => noted.is_empty(),
            _ => false,
        };
        if is_as_noted {
            return false;
        }
        let is_crowded = lock.is_some_and(|lock| lock.len() > FEW_HOLDERS);
        let holders = lock.filter(|_| !is_crowded).into_iter().flat_map(Lock::holders);
        let hashes = holders.map(|holder| self.holders.hasher.hash_one(holder.token())).collect();
        let noted = Some(hashes).filter(|_| !is_crowded);
        if noted == queue.noted_holders {
            return false;
        }
        self.holders.remove(id, &queue.noted_holders);
        self.holders.add(id, &noted);
        queue.noted_holders = noted;
        true
    }

    /// Whether this token may hold a lock that is waited for. `holds` is asked for some locks with many
    /// holders.
    pub(crate) fn may_hold_what_is_waited_for(
        &self,
        token: &[u8],
        mut holds: impl FnMut(&LockId) -> bool,
    ) -> bool {
        let hash = self.holders.hasher.hash_one(token);
        let mut noted = self.holders.by_hash.range((hash, QueueId::FIRST)..=(hash, QueueId::LAST));
        let crowded = &self.holders.crowded;
        self.changed_outside > 0
            || noted.next().is_some()
            || crowded.len() > LOOKED_AT
            || crowded.iter().any(|queue| self.lock_of(*queue).is_some_and(&mut holds))
    }
}
