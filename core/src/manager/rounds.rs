// SPDX-License-Identifier: MIT OR Apache-2.0

//! When there is something to do, and the rounds in which it is done: one step of each kind in turn.

use super::lock_manager::LockManager;
use super::tasks::Tasks;
use crate::outside::{Clients, LockStore};
use crate::timestamp::Timestamp;

/// A part of the time of one thread.
pub trait TimeSlice {
    /// The time, once for each round of steps; `None` when the slice is over, and the rest is left to the next.
    fn now(&mut self) -> Option<Timestamp>;

    /// Whether more can be answered in this slice than so many.
    fn has_room(&self, answers: usize) -> bool;
}

impl LockManager {
    /// Whether nobody waits and no hold ends with a connection. Then there is nothing to do, now or later.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waitlist.is_empty() && self.ephemeral.len() == 0 && !self.is_failing_waiters()
    }

    /// Whether [`LockManager::serve_queues`] has work that does not wait for time to pass.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.tasks.is_empty()
            || !self.failing.is_empty()
            || self.waitlist.has_leaving()
            || self.ephemeral.has_closed()
    }

    /// When [`LockManager::serve_queues`] has to be called next for what waits for time to pass, on the monotonic
    /// clock.
    #[must_use]
    pub fn next_due_ms(&self, now: Timestamp) -> Option<u64> {
        let on_monotonic_clock =
            |unix_ms: u64| now.monotonic_ms().saturating_add(unix_ms.saturating_sub(now.unix_ms()));
        let moments = [
            self.next_wait_end_ms(),
            self.waitlist.next_wake_ms().map(on_monotonic_clock),
            self.grace_until_ms.filter(|_| !self.waitlist.is_empty()),
            self.ephemeral.next_check_ms().map(on_monotonic_clock),
        ];
        moments.into_iter().flatten().min()
    }

    /// When the next request gives up if nothing happens, on the monotonic clock.
    #[must_use]
    pub fn next_wait_end_ms(&self) -> Option<u64> {
        self.waitlist.next_give_up_ms()
    }

    /// Does what is due: ends waits that fail, have been long enough or have lost their channel or connection, ends
    /// holds of connections that have closed, and grants requests at the front of queues that can be granted. One step
    /// of each in each round, and in each the oldest first, so that many of one kind do not keep the others waiting.
    ///
    /// The cost is that of the requests granted, whatever the number of those that go on waiting: at each
    /// name only the front is looked at, until one cannot be granted.
    pub fn serve_queues(
        &mut self,
        store: &mut impl LockStore,
        clients: &mut impl Clients,
        slice: &mut impl TimeSlice,
    ) {
        let mut round = 0;
        while slice.has_room(self.answers.len())
            && let Some(now) = slice.now()
        {
            self.end_next_wait(now);
            self.leave_next();
            self.end_next_hold_of_closed(store, now);
            self.check_next_ephemeral(store, now);
            self.serve_next_queue(store, clients, now);
            if self.tasks.has_turn_of_revisit(round) {
                self.serve_next_revisit(store, clients, now);
            }
            if let Some(queue) = self.tasks.next_of_all(&self.waitlist) {
                self.signal(queue);
            }
            let is_due =
                self.has_work() || self.next_due_ms(now).is_some_and(|at_ms| at_ms <= now.monotonic_ms());
            if !is_due {
                break;
            }
            round += 1;
        }
        store.close();
    }

    /// Ends waits as [`LockManager::serve_queues`] does, and leaves those behind them to it. This much can be done
    /// while no lock may be changed.
    pub fn end_waits(&mut self, slice: &mut impl TimeSlice) {
        // One step of each: `||` would leave the second to last.
        while slice.has_room(self.answers.len())
            && slice.now().is_some_and(|now| self.end_next_wait(now) | self.leave_next())
        {}
        if self.waitlist.is_empty() {
            self.tasks = Tasks::default();
        }
    }
}
