//! What decides how the manager goes on, said without numbers that depend on the past; for tests.

use super::lock_manager::LockManager;
use crate::ids::LockIdRef;
use crate::outside::LockStore;
use crate::queue::QueueId;
use crate::queue::describe::Note;
use crate::timestamp::Timestamp;

impl LockManager {
    /// Whether holds are to end because their connections have closed: till then a cycle is refused later.
    pub(crate) fn ends_holds(&self) -> bool {
        self.ephemeral.has_closed()
    }

    /// Notes all of it but the stored locks, for the locks of database 0 and these tokens. Two managers of which the same
    /// is noted behave alike. Left out is what only a crowd, a grace period, a change of role or a cluster brings: it is
    /// asserted that there is none of it.
    pub(crate) fn describe(
        &self,
        store: &mut impl LockStore,
        now: Timestamp,
        tokens: &[&[u8]],
        names: &[&[u8]],
        note: &mut Note<'_>,
    ) {
        assert!(self.failing.is_empty() && self.grace_until_ms.is_none() && self.answers.is_empty());
        assert!(self.tasks.after.is_none());
        self.waitlist.describe(now.unix_ms(), note);
        let name_of = |queue: QueueId| self.waitlist.lock_of(queue).map(|lock| &*lock.name);
        for (at, queue) in self.tasks.ready.iter().enumerate() {
            note(b'd', None, name_of(*queue), &[at as u64]);
        }
        for request in &self.tasks.revisit {
            note(b'v', None, None, &[self.waitlist.rank(*request)]);
        }
        for (fence, token, name, has_closed, check_ms) in self.ephemeral.describe() {
            let own = store.peek(LockIdRef { db: 0, name }).and_then(|lock| lock.holder(token, 0));
            let is_there = own.is_some_and(|own| own.fence == fence);
            let check_ms = check_ms.saturating_sub(now.unix_ms());
            note(b'e', Some(token), Some(name), &[u64::from(is_there), u64::from(has_closed), check_ms]);
        }
        for (token, name) in tokens.iter().flat_map(|token| names.iter().map(move |name| (token, name))) {
            let lock = LockIdRef { db: 0, name };
            if let Some((left_ms, is_released)) = self.revoked_tokens.described(lock, token, now) {
                note(b'x', Some(token), Some(name), &[left_ms, u64::from(is_released)]);
            }
        }
    }
}
