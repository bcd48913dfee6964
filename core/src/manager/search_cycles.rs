//! Cycles that no request closed: whose locks have changed, and the search around those owners, in slices.
//!
//! The search itself is `deadlock`; here it is decided around whom, and when.

use std::ops::Bound;
use std::rc::Rc;

use smallvec::SmallVec;

use super::agenda::{AT_LEAST_EVERY, Work};
use super::lock_manager::{HolderScan, LockManager};
use super::operation::Open;

use crate::deadlock::{self, Search};
use crate::effect::Change;
use crate::ids::{HoldRef, LockIdRef, RequestId};
use crate::lock::Holder;
use crate::queue::{HoldersSeen, QueueId, TokenId};
use crate::request::WaitResult;
use crate::store::LockStore;
use crate::time::Timestamp;

/// A search for a cycle goes so many steps at a time.
const SEARCH_STEPS: usize = 100;

/// So many holders are looked at in a step: each may have as many requests as a token can.
const HOLDERS_AT_ONCE: usize = 8;

impl LockManager {
    /// A hold of a token on this lock begins, ends, or has another mode or deadline. If the token waits itself,
    /// it may now wait in a cycle: for what it has lost there and waits for among others, or because others
    /// have to wait for it where they could have read beside it.
    /// The queue of the lock, if anybody waits there.
    #[inline(never)]
    pub(super) fn hold_changes(&mut self, lock: LockIdRef<'_>, change: &Change<'_>) -> Option<QueueId> {
        let queue = self.waitlist.queue_at(lock)?;
        let (token, ends_ms) = match change {
            Change::Hold { token, deadline_ms, .. } | Change::Extend { token, deadline_ms } => {
                (token, Some(*deadline_ms))
            }
            Change::Release { token } => (token, None),
        };
        if let Some(id) = self.waitlist.token_id(token) {
            self.waitlist.set_own_hold(queue, id, ends_ms);
            // Who waits for whom is not changed by another deadline.
            if !matches!(change, Change::Extend { .. }) {
                self.search_around(id);
            }
        }
        Some(queue)
    }

    /// Has a cycle looked for around this owner: its oldest request stands for all of them, so that this is done once.
    pub(super) fn search_around(&mut self, owner: TokenId) {
        self.search_again.extend(self.waitlist.requests_of(owner).next());
    }

    /// Whether some still stand in their queues, or in their locks, who keep nobody waiting any more.
    pub(super) fn some_are_leaving(&self, now: Timestamp) -> bool {
        [Work::EndWaits, Work::DropUnheard, Work::EndHoldsOfClosed]
            .into_iter()
            .any(|work| self.is_ready(work))
            || self.waitlist.next_give_up(now.monotonic_ms()).is_some()
    }

    /// Others than before hold this lock, and it was not the manager who gave it to them.
    pub(super) fn holders_changed(&mut self, store: &mut impl LockStore, queue: QueueId) {
        let Some(lock) = self.waitlist.lock_of(queue) else { return };
        self.waitlist.note_holders(queue, store.peek(lock.clone().as_ref()));
        self.look_at_holders(queue);
    }

    pub(super) fn look_at_holders(&mut self, queue: QueueId) {
        self.holder_scans.entry(queue).and_modify(|scan| scan.again = true).or_default();
    }

    /// Goes on with the look at who held and who holds a lock that has come into other hands. Those of them who wait
    /// may now wait in a cycle; and who waits for what he holds by now is answered.
    pub(super) fn look_at_next_holders(&mut self, store: &mut impl LockStore, now: Timestamp) -> bool {
        let later = self.last_holder_scan.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.holder_scans.range((later, Bound::Unbounded)).next();
        let Some(id) = next.or_else(|| self.holder_scans.iter().next()).map(|(id, _)| *id) else {
            return false;
        };
        self.last_holder_scan = Some(id);
        let Some(mut scan) = self.holder_scans.remove(&id) else { return false };
        let Some(lock) = self.waitlist.lock_of(id).cloned() else { return true };
        for _ in 0..AT_LEAST_EVERY {
            let Some(token) = self.waitlist.next_own_hold(id, scan.held_before) else { break };
            scan.held_before = token;
            self.search_around(token);
        }
        if self.waitlist.next_own_hold(id, scan.held_before).is_none() {
            let mut found = SmallVec::<[(RequestId, u64); 1]>::new();
            match store.peek(lock.as_ref()) {
                Some(lock) => {
                    let note = |request, holder: &Holder| found.push((request, holder.deadline_ms));
                    let seen = &mut scan.hold_now;
                    self.waitlist.tokens_holding(lock, now.unix_ms(), seen, HOLDERS_AT_ONCE, note);
                }
                None => scan.hold_now = HoldersSeen::All,
            }
            found.into_iter().for_each(|(request, ends_ms)| self.holds_by_now(id, request, ends_ms));
        }
        if !matches!(scan.hold_now, HoldersSeen::All) {
            self.holder_scans.insert(id, scan);
        } else if scan.again {
            self.holder_scans.insert(id, HolderScan::default());
        }
        true
    }

    /// The token of this request waits, and was seen to hold the lock of this queue.
    fn holds_by_now(&mut self, queue: QueueId, request: RequestId, ends_ms: u64) {
        let Some(token) = self.waitlist.get(request).map(|waiter| waiter.token.clone()) else { return };
        self.search_around(TokenId::of(&token));
        self.waitlist.set_own_hold(queue, TokenId::of(&token), Some(ends_ms));
        self.revisit.extend(self.waitlist.of_token_at(queue, &token));
    }

    /// For a blocked request for several names, which are open: notes on which of them its token has a hold. It
    /// waits for nobody there until that hold ends.
    pub(super) fn note_holds(&mut self, open: &Open<'_, impl LockStore>, request: RequestId) {
        let Some(waiter) = self.waitlist.get(request).filter(|waiter| waiter.is_for_many()) else { return };
        let (token, queues) = (waiter.token.clone(), waiter.queues.clone());
        queues.iter().enumerate().for_each(|(at, queue)| self.note_hold(open, at, *queue, &token));
    }

    /// The same at one of its names.
    pub(super) fn note_hold(
        &mut self,
        open: &Open<'_, impl LockStore>,
        at: usize,
        queue: QueueId,
        token: &Rc<[u8]>,
    ) {
        let own = open.hold(at, HoldRef::of(token)).ok().flatten();
        if self.waitlist.set_own_hold(queue, TokenId::of(token), own.map(|own| own.deadline_ms)) {
            // It has ended, and this look came before the one that was due for that.
            self.search_around(TokenId::of(token));
        }
    }

    /// Forgets some of what a search has noted that is over, if there is one.
    pub(super) fn forget_search(&mut self) -> bool {
        let Some(mut ended) = self.search.take_if(|search| search.is_over()) else { return false };
        self.search = ended.forget_some(SEARCH_STEPS).then_some(ended);
        true
    }

    /// Looks whether the owner of a request waits by now in a cycle that no request closed: it has lost a lock
    /// that it waits for among others, or an older request of its own, behind which it waited for nobody, has
    /// gone. Or whether its request has closed one that was not found at once. The youngest request of such a cycle
    /// is refused.
    pub(super) fn search_next_cycle(&mut self, store: &mut impl LockStore, now: Timestamp) -> bool {
        if let Some(owner) = self.waitlist.pop_own_hold_end(now.unix_ms()) {
            self.search_around(owner);
        }
        if self.forget_search() {
            return true;
        }
        // What may be granted, or leave, a search takes for waiting.
        const FIRST: [Work; 4] = [Work::ServeQueues, Work::ScanDatabases, Work::ServeMany, Work::ScanHolders];
        if self.come_first(&FIRST) || self.some_are_leaving(now) {
            return self.search.is_some() || !self.search_again.is_empty();
        }
        let mut search = match self.search.take() {
            Some(search) => search,
            None => {
                let mut earlier = self.search_again.range(..self.last_searched);
                let next = earlier.next_back().or(self.search_again.last()).copied();
                let Some(request) = next else { return false };
                self.search_again.remove(&request);
                self.last_searched = request;
                let Some(waiter) = self.waitlist.get(request) else { return true };
                Search::around(waiter)
            }
        };
        match search.run(&self.view(now), store, SEARCH_STEPS) {
            deadlock::Outcome::NoCycle | deadlock::Outcome::NotYet => {}
            // There may be another.
            deadlock::Outcome::Broken => self.search_around(search.start()),
            deadlock::Outcome::Cycle(cycle) => {
                self.counters.deadlocks += 1;
                let error = cycle.told_to_youngest(&self.waitlist);
                self.finish(cycle.youngest.0, WaitResult::Failed(error));
                // There may be another.
                self.search_around(search.start());
            }
        }
        if !search.is_over() || search.forget_some(SEARCH_STEPS) {
            self.search = Some(search);
        }
        true
    }
}
