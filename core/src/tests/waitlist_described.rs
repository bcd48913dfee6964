//! What decides how the queue goes on, said without numbers that depend on the past; for tests.

use std::hash::BuildHasher;

use super::*;

/// Takes note of one fact: of which kind, whom it is about, of which lock, and what else is to be said.
pub(crate) type Note<'n> = dyn FnMut(u8, Option<&[u8]>, Option<&[u8]>, &[u64]) + 'n;

impl Waitlist {
    /// How manieth a request is of all that wait.
    pub(crate) fn rank(&self, request: RequestId) -> u64 {
        self.waiters.range(..request).count() as u64
    }

    /// The waiters are described by who knows connections and channels. `tokens` are those that may hold a lock.
    pub(crate) fn describe(&self, tokens: &[&[u8]], now_unix_ms: u64, note: &mut Note<'_>) {
        for (nth, (id, queue)) in self.queues.iter().enumerate() {
            let name = Some(&*queue.lock.name);
            let flags = u64::from(queue.is_dirty) + 2 * u64::from(queue.is_changed_outside);
            let wake_ms = queue.wake_ms.map_or(0, |at_ms| 1 + at_ms.saturating_sub(now_unix_ms));
            note(b'q', None, name, &[nth as u64, flags, wake_ms]);
            for token in tokens {
                let hash = self.holders.hasher.hash_one(token);
                if queue.noted_holders.as_ref().is_some_and(|noted| noted.contains(&hash)) {
                    note(b'n', Some(token), name, &[]);
                }
                let own = self.token_id(token).and_then(|token| self.own_holds.get(&(*id, token)));
                if let Some(ends_ms) = own {
                    note(b'o', Some(token), name, &[ends_ms.saturating_sub(now_unix_ms)]);
                }
            }
            for request in queue.iter() {
                note(b'r', Some(&self.waiters[&request].token), name, &[self.rank(request)]);
            }
        }
    }
}
