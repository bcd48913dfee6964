//! What is to be done, when, and whose turn it is: every kind of work that goes on after the command that caused it.
//!
//! Each kind says whether it has a step to do now, or at which moment it will have one, and does one step. So nothing
//! else has to know what there is to do.

use super::changed_databases::ChangedDatabases;
use super::lock_manager::LockManager;
use crate::clients::Clients;
use crate::store::LockStore;
use crate::time::Timestamp;

/// The time, once for each decision; `None` when this turn has taken long enough, and the rest is left to
/// the next.
pub trait TimeSlice {
    /// The time, if there is enough of it left for work that is so urgent.
    fn now_for(&mut self, urgency: Urgency) -> Option<Timestamp>;

    /// Whether more can be answered in this turn than so many.
    fn has_room(&self, _answers: usize) -> bool {
        true
    }
}

/// A slice that is as long for all work.
impl<F: FnMut() -> Option<Timestamp>> TimeSlice for F {
    fn now_for(&mut self, _: Urgency) -> Option<Timestamp> {
        self()
    }
}

/// How urgent work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Somebody may be granted or waits for an answer.
    Answers,
    /// Nobody waits for it: what is to leave, to end or to be searched. It must not keep waiting those who have been
    /// answered in this slice and are told at its end.
    Upkeep,
}

/// What is put off while queues have to be looked at has its turn after so many steps all the same.
pub(super) const AT_LEAST_EVERY: usize = 64;

/// The clock is looked at when each kind of work has had its turn, and sooner after a step that had so many places in
/// queues to do with.
const PLACES_AT_ONCE: usize = 64;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Requests that fail because this server no longer decides, or that have waited long enough.
    EndWaits,
    /// Requests whose answers nobody would hear.
    DropUnheard,
    /// Holds of connections that have closed.
    EndHoldsOfClosed,
    /// Entries of EPHEMERAL holds that may be stale.
    CheckEphemeral,
    /// Queues in which somebody may be served.
    ServeQueues,
    /// Requests for several names, which may be at the front of all of them.
    ServeMany,
    /// Databases that have changed.
    ScanDatabases,
}

impl Work {
    /// In the order of their turns.
    const ALL: [Self; 7] = [
        Self::EndWaits,
        Self::DropUnheard,
        Self::EndHoldsOfClosed,
        Self::CheckEphemeral,
        Self::ServeQueues,
        Self::ServeMany,
        Self::ScanDatabases,
    ];
}

impl LockManager {
    /// Whether there is a step to do that does not wait for time to pass.
    pub(super) fn is_ready(&self, work: Work) -> bool {
        match work {
            Work::EndWaits => self.sent_away.is_some(),
            Work::DropUnheard => self.waitlist.has_unheard() || !self.closed_askers.is_empty(),
            Work::EndHoldsOfClosed => self.ephemeral.has_work() && self.retry_ended_ms.is_none(),
            Work::CheckEphemeral => false,
            Work::ServeQueues => !self.dirty.is_empty(),
            Work::ServeMany => !self.revisit.is_empty(),
            Work::ScanDatabases => !self.changed_databases.is_empty(),
        }
    }

    /// Whether these kinds of work come first, as mostly where there is any of them.
    pub(super) fn come_first(&self, kinds: &[Work]) -> bool {
        kinds.iter().any(|work| self.is_ready(*work)) && !self.rounds.is_multiple_of(AT_LEAST_EVERY)
    }

    /// The moment at which there is one if nothing happens, on the monotonic clock.
    fn moment_ms(&self, work: Work, now: Timestamp) -> Option<u64> {
        let on_monotonic_clock =
            |unix_ms: u64| now.monotonic_ms().saturating_add(unix_ms.saturating_sub(now.unix_ms()));
        match work {
            Work::EndWaits => self.waitlist.next_give_up_ms(),
            Work::EndHoldsOfClosed => self.retry_ended_ms,
            Work::CheckEphemeral => self.ephemeral.next_check_ms().map(on_monotonic_clock),
            Work::ServeQueues => {
                let wake_ms = self.waitlist.next_wake_ms().map(on_monotonic_clock);
                let grace_ms = self.grace_until_ms.filter(|_| !self.waitlist.is_empty());
                wake_ms.into_iter().chain(grace_ms).min()
            }
            Work::DropUnheard | Work::ServeMany | Work::ScanDatabases => None,
        }
    }

    fn step(
        &mut self,
        work: Work,
        store: &mut impl LockStore,
        clients: &mut impl Clients,
        now: Timestamp,
    ) -> bool {
        match work {
            Work::EndWaits => {
                self.rounds = self.rounds.wrapping_add(1);
                self.end_next_wait(now)
            }
            Work::DropUnheard => self.drop_next_without_listener(),
            Work::EndHoldsOfClosed => self.end_next_hold_of_closed(store, now),
            Work::CheckEphemeral => self.check_next_ephemeral(store, now),
            Work::ServeQueues => self.serve_next_queue(store, clients, now),
            Work::ServeMany => self.serve_next_revisit(store, clients, now),
            Work::ScanDatabases => self.scan_next_database(),
        }
    }

    /// Whether nobody waits and no hold ends with a connection. Then there is nothing to do, now or later.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waitlist.is_empty() && self.ephemeral.is_empty() && self.answers.is_empty()
    }

    /// Whether [`LockManager::serve_queues`] has work that does not wait for time to pass.
    #[must_use]
    pub fn has_work(&self) -> bool {
        Work::ALL.into_iter().any(|work| self.is_ready(work))
    }

    /// When [`LockManager::serve_queues`] has to be called next for what waits for time to pass, on the monotonic
    /// clock.
    #[must_use]
    pub fn next_due_ms(&self, now: Timestamp) -> Option<u64> {
        Work::ALL.into_iter().filter_map(|work| self.moment_ms(work, now)).min()
    }

    /// When the next request gives up if nothing happens, on the monotonic clock.
    #[must_use]
    pub fn next_wait_end_ms(&self) -> Option<u64> {
        self.waitlist.next_give_up_ms()
    }

    /// Does what is due: answers requests that have waited long enough, ends the holds of connections that
    /// have closed, and grants whoever is at the front of a queue and can be granted. One step of each in
    /// turn, and in each the oldest first, so that many of one kind do not keep the others waiting.
    ///
    /// The cost is that of the requests granted, whatever the number of those that go on waiting: at each
    /// name only the front is looked at, until one cannot be granted.
    pub fn serve_queues(
        &mut self,
        store: &mut impl LockStore,
        clients: &mut impl Clients,
        slice: &mut impl TimeSlice,
    ) {
        let (mut kinds_left, mut idle) = (0, 0);
        let mut now = None;
        while idle < Work::ALL.len() && slice.has_room(self.answers.len()) {
            if kinds_left == 0 || self.places_looked_at >= PLACES_AT_ONCE {
                if now.is_some_and(|now| !self.is_due(now)) {
                    idle = Work::ALL.len();
                    break;
                }
                (kinds_left, self.places_looked_at) = (Work::ALL.len(), 0);
                now = slice.now_for(self.urgency());
            }
            let Some(now) = now else { break };
            kinds_left -= 1;
            let work = Work::ALL[self.turn];
            self.turn = (self.turn + 1) % Work::ALL.len();
            idle = if self.step(work, store, clients, now) { 0 } else { idle + 1 };
        }
        if idle == Work::ALL.len() {
            self.turn = 0;
        }
        store.close();
    }

    /// Whether [`LockManager::serve_queues`] has anything to do at this moment.
    fn is_due(&self, now: Timestamp) -> bool {
        self.has_work() || self.next_due_ms(now).is_some_and(|due_ms| due_ms <= now.monotonic_ms())
    }

    fn urgency(&self) -> Urgency {
        let answers = [Work::EndWaits, Work::ServeQueues, Work::ServeMany];
        if answers.into_iter().any(|work| self.is_ready(work)) { Urgency::Answers } else { Urgency::Upkeep }
    }

    /// Answers the requests that have waited long enough, and leaves those behind them to
    /// [`LockManager::serve_queues`]. This much can be done while no lock may be changed.
    pub fn end_waits(&mut self, slice: &mut impl TimeSlice) {
        while slice.has_room(self.answers.len())
            && slice
                .now_for(Urgency::Answers)
                .is_some_and(|now| self.end_next_wait(now) | self.drop_next_without_listener())
        {}
        if self.waitlist.is_empty() {
            self.forget_those_to_look_at();
        }
    }

    /// Nobody waits any more: there is nobody to look at.
    fn forget_those_to_look_at(&mut self) {
        self.dirty.clear();
        self.changed_databases = ChangedDatabases::default();
        self.revisit.clear();
    }
}
