// SPDX-License-Identifier: MIT OR Apache-2.0

//! The steps of serving: the one place where waiting requests are granted. `rounds` says when each is taken.

use std::rc::Rc;

use smallvec::SmallVec;

use super::acquire::Standing;
use super::lock_manager::LockManager;
use super::operation::{Open, Operation};
use crate::error::LockError;
use crate::ids::{HoldRef, LockIdRef, RequestId};
use crate::lock::Admission;
use crate::outside::{Clients, LockStore, NotGranted};
use crate::queue::{Leaves, QueueId, Waiter};
use crate::request::WaitResult;
use crate::timestamp::Timestamp;

impl LockManager {
    /// Ends the next wait that fails or has been long enough. False if there is none.
    pub(super) fn end_next_wait(&mut self, now: Timestamp) -> bool {
        if let Some((waitlist, error)) = self.failing.front_mut() {
            let failed =
                waitlist.first_request().and_then(|request| Some((request, waitlist.remove(request)?)));
            match failed {
                Some((request, waiter)) => {
                    let result = WaitResult::Failed(error.clone());
                    self.answer(request, waiter, result);
                }
                None => drop(self.failing.pop_front()),
            }
            return true;
        }
        let Some(request) = self.waitlist.next_give_up(now.monotonic_ms()) else { return false };
        self.finish(request, WaitResult::TimedOut);
        true
    }

    /// Takes out the next request of those that leave. False if there is none.
    pub(super) fn leave_next(&mut self) -> bool {
        let Some(request) = self.waitlist.pop_leaving() else { return false };
        if let Some(why) = self.waitlist.get(request).and_then(|waiter| self.waitlist.leaves(request, waiter))
        {
            self.take_out(request, why);
        }
        true
    }

    fn take_out(&mut self, request: RequestId, why: Leaves) {
        match why {
            Leaves::NoSubscriber => self.counters.no_subscriber += u64::from(self.abandon(request)),
            Leaves::ConnectionClosed => self.withdraw(request),
        }
    }

    /// Ends the next hold of a connection that has closed, on all its names.
    pub(super) fn end_next_hold_of_closed(&mut self, store: &mut impl LockStore, now: Timestamp) {
        let Some((fence, hold)) = self.ephemeral.next_ended() else { return };
        let (db, token, names) = (hold.db, hold.token.clone(), hold.names.clone());
        let names: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
        let mut open = Open::new(Operation::new(store, now, db, &names));
        let hold = HoldRef { token: &token, fence: Some(fence) };
        for at in 0..open.len() {
            if !self.drop_hold(&mut open, at, hold, None).is_ok_and(|was_held| was_held) {
                // It has ended in another way; or this node does not serve its key, and it ends by its ttl.
                self.ephemeral.end(fence, open.id(at));
            }
        }
    }

    /// Looks at an entry of a hold that ends with a connection and should have ended by its deadline.
    pub(super) fn check_next_ephemeral(&mut self, store: &mut impl LockStore, now: Timestamp) {
        let Some((fence, hold)) = self.ephemeral.next_check(now.unix_ms()) else { return };
        let live = hold.names.iter().find_map(|name| {
            let own = store.peek(LockIdRef { db: hold.db, name })?.holder(&hold.token, now.unix_ms())?;
            (own.fence == fence).then_some(own.deadline_ms)
        });
        match live {
            Some(deadline_ms) => self.ephemeral.check_again_after(fence, now.unix_ms(), deadline_ms),
            None => drop(self.ephemeral.remove(fence)),
        }
    }

    pub(super) fn serve_next_queue(
        &mut self,
        store: &mut impl LockStore,
        clients: &mut impl Clients,
        now: Timestamp,
    ) {
        if self.grace_until_ms.is_some() && self.grace_left_ms(now).is_none() {
            self.set_grace(None);
            return;
        }
        if let Some(queue) = self.waitlist.pop_wake(now.unix_ms()) {
            self.signal(queue);
        }
        let Some(queue) = self.tasks.ready.pop_front() else { return };
        self.waitlist.set_ready(queue, false);
        if let Some(front) = self.waitlist.front(queue) {
            if !self.waitlist.get(front).is_some_and(Waiter::is_for_many) {
                self.attempt(store, clients, now, front);
            } else if !self.has_to_wait_at(store, now, queue, front) {
                self.tasks.revisit.insert(front);
            }
        }
    }

    /// Whether this request for many names, the first in this queue, has to wait here. Then none of the others has to
    /// be opened, and it is noted when time alone lets it in.
    fn has_to_wait_at(
        &mut self,
        store: &mut impl LockStore,
        now: Timestamp,
        queue: QueueId,
        request: RequestId,
    ) -> bool {
        let Some(lock) = self.waitlist.lock_of(queue).cloned() else { return false };
        let Some(token) = self.waitlist.get(request).map(|waiter| waiter.token.clone()) else { return false };
        let names = [&*lock.name];
        let open = self.open(Operation::new(store, now, lock.db, &names), &token);
        let Some(waiter) = self.waitlist.get(request) else { return false };
        let Ok(Admission::Blocked { until_ms }) = self.admission(&open, 0, &waiter.claim(), true) else {
            return false;
        };
        self.waitlist.set_wake(queue, wake_ms(&open, 0, until_ms));
        true
    }

    /// Looks at the next request that was put aside.
    pub(super) fn serve_next_revisit(
        &mut self,
        store: &mut impl LockStore,
        clients: &mut impl Clients,
        now: Timestamp,
    ) {
        let Some(request) = self.tasks.revisit.pop_first() else { return };
        self.attempt(store, clients, now, request);
    }

    /// Grants a waiting request if it can be granted, ends its wait if it never can be, and notes when to
    /// look at it again if it has to go on waiting.
    fn attempt(
        &mut self,
        store: &mut impl LockStore,
        clients: &mut impl Clients,
        now: Timestamp,
        request: RequestId,
    ) {
        let Some(waiter) = self.waitlist.get(request) else { return };
        if let Some(why) = self.waitlist.leaves(request, waiter) {
            return self.take_out(request, why);
        }
        if waiter.gives_up_ms.is_some_and(|at_ms| at_ms <= now.monotonic_ms()) {
            return self.finish(request, WaitResult::TimedOut);
        }
        let (db, token) = (waiter.db, waiter.token.clone());
        let names: SmallVec<[Rc<[u8]>; 1]> = self.waitlist.names_of(waiter).cloned().collect();
        let names: SmallVec<[&[u8]; 1]> = names.iter().map(|name| &**name).collect();
        let mut open = self.open(Operation::new(store, now, db, &names), &token);
        match self.assess(&open, request) {
            Ok(None) => self.look_again_when_due(&open, request),
            Err(error) => self.finish(request, WaitResult::Failed(error)),
            Ok(Some(standing)) => {
                let Some(waiter) = self.waitlist.get(request) else { return };
                match clients.may_be_granted(waiter, open.names()) {
                    Ok(()) => self.serve(&mut open, request, standing),
                    Err(NotGranted::Failed(error)) => self.finish(request, WaitResult::Failed(error)),
                    Err(NotGranted::NoSubscriber) => {
                        let channel = waiter.channel.clone();
                        channel.iter().for_each(|channel| self.waitlist.close_channel(channel));
                        self.take_out(request, Leaves::NoSubscriber);
                    }
                }
            }
        }
    }

    /// How it stands at its names, if it can be granted at all of them.
    fn assess(
        &self,
        open: &Open<'_, impl LockStore>,
        request: RequestId,
    ) -> Result<Option<Standing>, LockError> {
        let Some(waiter) = self.waitlist.get(request) else { return Ok(None) };
        let mut standing = Standing::NOWHERE;
        for (at, queue) in waiter.queues.iter().enumerate() {
            let is_next = self.waitlist.front(*queue) == Some(request);
            standing.add(self.admission(open, at, &waiter.claim(), is_next)?);
        }
        Ok(Some(standing).filter(|standing| !standing.is_blocked))
    }

    /// For a blocked request whose names are open: wherever it is at the front, notes when the lock lets it
    /// in if nobody acts.
    pub(super) fn look_again_when_due(&mut self, open: &Open<'_, impl LockStore>, request: RequestId) {
        let Some(waiter) = self.waitlist.get(request) else { return };
        let mut wakes = SmallVec::<[(QueueId, Option<u64>); 1]>::new();
        for (at, queue) in waiter.queues.iter().enumerate() {
            if self.waitlist.front(*queue) != Some(request) {
                continue;
            }
            let wake_ms = match self.admission(open, at, &waiter.claim(), true) {
                Ok(Admission::Blocked { until_ms }) => wake_ms(open, at, until_ms),
                _ => None,
            };
            wakes.push((*queue, wake_ms));
        }
        for (queue, wake_ms) in wakes {
            self.waitlist.set_wake(queue, wake_ms);
        }
    }

    /// Grants a request whose names are open and that is not blocked.
    fn serve(&mut self, open: &mut Open<'_, impl LockStore>, request: RequestId, standing: Standing) {
        let (same_hold, now) = (standing.same_hold(), open.now());
        let Some(waiter) = self.waitlist.remove(request) else { return };
        let granted = self.grant(open, &waiter.claim(), standing);
        if same_hold.is_none() {
            self.look_at_others_of_owner(&waiter);
        }
        // A refresh is the answer to a request of a token that holds by now; only a new hold counts.
        if granted.is_ok() && same_hold.is_none() {
            let waited_ms = now.monotonic_ms().saturating_sub(waiter.arrived_ms);
            self.counters.handoffs += 1;
            self.counters.wait_ms_total += waited_ms;
            self.counters.waits.record(waited_ms);
        }
        let result = granted.map_or_else(WaitResult::Failed, WaitResult::Granted);
        match waiter.queues[..] {
            [queue] => self.look_at_next(open, queue),
            _ => waiter.queues.iter().for_each(|queue| self.signal(*queue)),
        }
        self.answer(request, waiter, result);
    }

    /// The request at the front of this queue, whose one name is open: if it has to wait, as mostly behind a new
    /// writer, that is found here, and no further step has to open the lock again.
    fn look_at_next(&mut self, open: &Open<'_, impl LockStore>, queue: QueueId) {
        let Some(front) = self.waitlist.front(queue) else { return };
        let Some(next) = self.waitlist.get(front).filter(|next| !next.is_for_many()) else {
            return self.signal(queue);
        };
        match self.admission(open, 0, &next.claim(), true) {
            Ok(Admission::Blocked { until_ms }) => self.waitlist.set_wake(queue, wake_ms(open, 0, until_ms)),
            _ => self.signal(queue),
        }
    }

    /// Has the other requests of the token of this one looked at, which wait for some of the same names: they hold it
    /// now, or can never have it.
    fn look_at_others_of_owner(&mut self, granted: &Waiter) {
        let of_owner = |queue: &QueueId| self.waitlist.of_token_at(*queue, granted.token_id());
        self.tasks.revisit.extend(granted.queues.iter().flat_map(of_owner));
    }
}

/// When to look again at a lock that lets nobody in before this moment unless somebody acts, in Unix milliseconds.
fn wake_ms(open: &Open<'_, impl LockStore>, at: usize, until_ms: u64) -> Option<u64> {
    // A key is collected when its expiry has passed, not when it has come.
    let collected_ms = open.expires_ms(at).map_or(until_ms, |at_ms| at_ms + 1);
    Some(collected_ms.min(until_ms)).filter(|at_ms| *at_ms != u64::MAX)
}
