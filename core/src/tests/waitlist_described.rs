//! What decides how the queue goes on, said without numbers that depend on the past; for tests.

use super::*;

/// Takes note of one fact: of which kind, whom it is about, of which lock, and what else is to be said.
pub(crate) type Note<'n> = dyn FnMut(u8, Option<&[u8]>, Option<&[u8]>, &[u64]) + 'n;

impl Waitlist {
    /// How manieth a request is of all that wait.
    pub(crate) fn rank(&self, request: RequestId) -> u64 {
        self.waiters.range(..request).count() as u64
    }

    /// The waiters are described by who knows connections and channels.
    pub(crate) fn describe(&self, now_unix_ms: u64, note: &mut Note<'_>) {
        for (nth, queue) in self.queues.values().enumerate() {
            let name = Some(&*queue.lock.name);
            let wake_ms = queue.wake_ms.map_or(0, |at_ms| 1 + at_ms.saturating_sub(now_unix_ms));
            note(b'q', None, name, &[nth as u64, u64::from(queue.is_ready), wake_ms]);
            for request in queue.iter() {
                note(b'r', Some(&self.waiters[&request].token), name, &[self.rank(request)]);
            }
        }
    }
}
