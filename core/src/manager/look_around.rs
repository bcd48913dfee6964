// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is looked at now and then of all that wait, because nothing reports it: names, and owners. The caller says
//! when, and keeps how far the look has come.

use std::rc::Rc;

use super::lock_manager::LockManager;
use super::operation::{Open, Operation};
use crate::deadlock;
use crate::lock::Admission;
use crate::outside::LockStore;
use crate::queue::QueueId;
use crate::request::WaitResult;
use crate::timestamp::Timestamp;

/// How far [`LockManager::look_at_name`] has come.
#[derive(Clone, Copy, Debug)]
pub struct NamePosition(QueueId);

/// How far [`LockManager::look_at_owner`] has come.
#[derive(Clone, Debug)]
pub struct OwnerPosition(Rc<[u8]>);

impl LockManager {
    /// Looks at the next name that is waited for, after the one that the last call came to; `None` at the end. It finds
    /// what was not reported by [`LockManager::key_changed`]: another type or another lock under a name that was free,
    /// or a name that this node of a cluster no longer serves. [`LockManager::serve_queues`] draws the consequences. To
    /// open a key also has the server remove it if it has expired.
    pub fn look_at_name(
        &mut self,
        store: &mut impl LockStore,
        now: Timestamp,
        after: Option<NamePosition>,
    ) -> Option<NamePosition> {
        let (id, queue) = self.waitlist.queues_after(after.map(|position| position.0)).next()?;
        let (lock, front) = (queue.lock.clone(), self.waitlist.front(id));
        let names = [&*lock.name];
        let open = Open::new(Operation::new(store, now, lock.db, &names));
        let may_go_on = front.and_then(|front| self.waitlist.get(front)).is_some_and(|waiter| {
            // One for many names that has this one for itself waits elsewhere.
            let waits = |admission: Admission| waiter.is_for_many() || admission.is_blocked();
            self.admission(&open, 0, &waiter.claim(), true).is_ok_and(waits)
        });
        store.close();
        if !may_go_on {
            self.signal(id);
        }
        Some(NamePosition(id))
    }

    /// Looks around the next owner that waits, after the one that the last call came to; `None` at the end. The owner
    /// may wait by now in a cycle that no request closed, or that was not found when one closed it: then the youngest
    /// request of the cycle is refused. Or it may have got what it asks for in another way: then it is answered.
    pub fn look_at_owner(
        &mut self,
        store: &mut impl LockStore,
        now: Timestamp,
        after: Option<OwnerPosition>,
    ) -> Option<OwnerPosition> {
        let token = self.waitlist.tokens_after(after.as_ref().map(|position| &*position.0)).next()?.clone();
        let found = deadlock::around(&token, &self.waitlist, now.unix_ms(), store);
        store.close();
        self.tasks.revisit.extend(found.answered);
        if let Some(cycle) = found.cycle.filter(|_| !self.some_are_leaving(now)) {
            self.counters.deadlocks += 1;
            let error = cycle.told_to_youngest(&self.waitlist);
            self.finish(cycle.youngest.0, WaitResult::Failed(error));
        }
        Some(OwnerPosition(token))
    }

    /// Whether some still stand in their queues, or in their locks, who keep nobody waiting any more.
    pub(super) fn some_are_leaving(&self, now: Timestamp) -> bool {
        self.waitlist.has_leaving()
            || self.ephemeral.has_closed()
            || self.waitlist.next_give_up(now.monotonic_ms()).is_some()
    }
}
