// SPDX-License-Identifier: MIT OR Apache-2.0

//! Asking for a hold: granted at once, refused, or enqueued.

use smallvec::SmallVec;

use super::hold::deadline_ms;
use super::lock_manager::LockManager;
use super::operation::{Open, Operation};
use crate::deadlock;
use crate::effect::{Change, Event};
use crate::error::LockError;
use crate::ids::{HoldRef, RequestId, UserName};
use crate::lock::{Admission, Holder, Lock};
use crate::mode::{Mode, Want};
use crate::outside::LockStore;
use crate::queue::{QueueId, Waiter};
use crate::request::{AcquireOutcome, Claim, ReplyTo, Request, WaitPolicy, WaitResult};
use crate::timestamp::Timestamp;

/// How a request stands at all of its names together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// Others are in the way at one of them at least.
    pub(super) is_blocked: bool,
    /// The fence of a hold that the token has at one of them, in the mode that it wants.
    held: Option<u64>,
    /// Whether it has none other, and that one at all of them.
    is_one_hold: bool,
}

impl Standing {
    /// Before any name was looked at.
    pub(super) const NOWHERE: Self = Self { is_blocked: false, held: None, is_one_hold: true };

    /// Takes the next name into account.
    #[inline(always)]
    pub(super) fn add(&mut self, admission: Admission) {
        match admission {
            Admission::Held { fence } => {
                self.is_one_hold &= *self.held.get_or_insert(fence) == fence;
            }
            other => {
                self.is_one_hold = false;
                self.is_blocked |= other.is_blocked();
            }
        }
    }

    /// The fence of the one hold that the token has on all these names, if that is what it has.
    pub(super) fn same_hold(&self) -> Option<u64> {
        self.held.filter(|_| self.is_one_hold)
    }
}

impl LockManager {
    /// Asks for a hold, of one name or of several.
    ///
    /// # Errors
    /// [`LockError`] when the request makes no sense now, or may not wait.
    pub fn acquire(
        &mut self,
        operation: Operation<'_, impl LockStore>,
        request: &Request<'_>,
    ) -> Result<AcquireOutcome, LockError> {
        let claim = &request.claim;
        let mut open = self.open(operation, claim.token);
        let now = open.now();
        if request.wait == WaitPolicy::OnlyRefresh {
            return self.refresh(&mut open, claim);
        }
        let mut standing = Standing::NOWHERE;
        for at in 0..open.len() {
            // An upgrade does not queue behind others: they cannot be served before it anyway. But the same on a
            // channel is answered there.
            let is_next = (claim.terms.want == Want::Upgrade && self.same_waiting(&open, request).is_none())
                || self.waitlist.is_empty()
                || self.waitlist.queue_at(open.id(at)).is_none();
            standing.add(self.admission(&open, at, claim, is_next)?);
        }
        if standing.same_hold().is_none() {
            self.check_not_revoked(&open, claim.token)?;
        }
        if !standing.is_blocked {
            let fence = self.grant(&mut open, claim, standing)?;
            if standing.same_hold().is_none() {
                self.signal_all(&open);
            }
            return Ok(AcquireOutcome::Granted(fence));
        }
        let gives_up_ms = match request.wait {
            WaitPolicy::OnlyRefresh | WaitPolicy::NoWait => {
                if let Some(left_ms) = self.grace_left_ms(now) {
                    return Err(LockError::Grace(left_ms));
                }
                self.counters.refusals += 1;
                return Ok(AcquireOutcome::Refused);
            }
            WaitPolicy::Timeout(ms) => Some(now.monotonic_ms().saturating_add(ms)),
            WaitPolicy::Forever => None,
        };
        self.enqueue(&mut open, request, gives_up_ms).map(AcquireOutcome::Waiting)
    }

    /// Refreshes the one hold that the token has on all these names in this mode, if that is what it has.
    #[inline(never)]
    fn refresh(
        &mut self,
        open: &mut Open<'_, impl LockStore>,
        claim: &Claim<'_>,
    ) -> Result<AcquireOutcome, LockError> {
        let mut standing = Standing::NOWHERE;
        for at in 0..open.len() {
            standing.add(of_lock(open.lock(at)?, open.now(), claim));
        }
        if standing.same_hold().is_none() {
            return Ok(AcquireOutcome::Refused);
        }
        self.grant(open, claim, standing).map(AcquireOutcome::Granted)
    }

    /// The client of this request has gone, or cannot wait: it leaves, without an answer. False if it does not wait.
    /// Touches no lock, so that it can be called wherever the server says so.
    pub fn abandon(&mut self, request: RequestId) -> bool {
        self.leave(request).is_some()
    }

    pub(super) fn leave(&mut self, request: RequestId) -> Option<Waiter> {
        let led = self.queues_led_by(request);
        let Some(waiter) = self.waitlist.remove(request) else {
            return self.failing.iter_mut().find_map(|(waitlist, _)| waitlist.remove(request));
        };
        led.into_iter().for_each(|queue| self.signal(queue));
        Some(waiter)
    }

    /// The queues in which this request is the first.
    fn queues_led_by(&self, request: RequestId) -> SmallVec<[QueueId; 1]> {
        let queues = self.waitlist.get(request).map(|waiter| waiter.queues.iter()).unwrap_or_default();
        queues.copied().filter(|queue| self.waitlist.front(*queue) == Some(request)).collect()
    }

    /// Ends the wait of a request without a grant.
    pub(super) fn finish(&mut self, request: RequestId, result: WaitResult) {
        let Some(waiter) = self.leave(request) else { return };
        self.counters.wait_timeouts += u64::from(result == WaitResult::TimedOut);
        self.answer(request, waiter, result);
    }

    /// Ends the wait of a request as if its time had run out. False if it does not wait.
    pub fn time_out(&mut self, request: RequestId) -> bool {
        let waited = self.abandon(request);
        self.counters.wait_timeouts += u64::from(waited);
        waited
    }

    /// How a request stands at one name, all considered: the lock, the queue and the grace period.
    #[inline(always)]
    pub(super) fn admission(
        &self,
        open: &Open<'_, impl LockStore>,
        at: usize,
        claim: &Claim<'_>,
        is_next: bool,
    ) -> Result<Admission, LockError> {
        let (lock, now) = (open.lock(at)?, open.now());
        match of_lock(lock, now, claim) {
            Admission::WrongMode(mode) => Err(LockError::WrongMode(mode)),
            Admission::NotHeld => Err(LockError::NotHeld),
            Admission::Free if !is_next => Ok(Admission::Blocked { until_ms: u64::MAX }),
            Admission::Free if self.grace_left_ms(now).is_some() => {
                // Before then, only the end of the token's own hold changes something: an upgrade's.
                let own = lock.and_then(|lock| lock.holder(claim.token, now.unix_ms()));
                Ok(Admission::Blocked { until_ms: own.map_or(u64::MAX, |own| own.deadline_ms) })
            }
            other => Ok(other),
        }
    }

    /// Gives the hold, on all names, to a request that is not blocked. On an error nothing new is held.
    #[inline(always)]
    pub(super) fn grant(
        &mut self,
        open: &mut Open<'_, impl LockStore>,
        claim: &Claim<'_>,
        standing: Standing,
    ) -> Result<u64, LockError> {
        let now = open.now();
        let deadline_ms = deadline_ms(now, claim.terms.ttl_ms)?;
        let same_hold = standing.same_hold();
        let fence = match same_hold {
            Some(fence) => fence,
            None => self.fences.next(now).ok_or(LockError::OutOfRange)?,
        };
        let may_hold = standing.held.is_some() || claim.terms.want == Want::Upgrade;
        for at in 0..open.len() {
            if may_hold {
                self.grant_to_holder(open, at, claim, fence, deadline_ms);
            } else {
                let (mode, event) = mode_and_event(claim.terms.want);
                let (token, since_ms) = (claim.token, now.unix_ms());
                let meta = claim.meta.unwrap_or_default();
                let change = Change::Hold { mode, token, fence, since_ms, deadline_ms, meta };
                self.commit(open, at, change, event);
            }
        }
        if same_hold.is_none() {
            self.counters.grants += 1;
            if claim.terms.is_ephemeral && claim.terms.client != 0 && claim.terms.want != Want::Upgrade {
                self.ephemeral.bind(open, claim, fence);
            }
        }
        Ok(fence)
    }

    /// Gives the hold with this fence at one name, where the token may hold the lock already. What it holds does not
    /// end earlier for it, and keeps its metadata unless the request brings others.
    #[inline(never)]
    fn grant_to_holder(
        &mut self,
        open: &mut Open<'_, impl LockStore>,
        at: usize,
        claim: &Claim<'_>,
        fence: u64,
        deadline_ms: u64,
    ) {
        let (token, now_ms) = (claim.token, open.now().unix_ms());
        let own = open.hold(at, HoldRef::of(token)).ok().flatten();
        let is_refresh = own.is_some_and(|own| own.fence == fence);
        if is_refresh && claim.meta.is_none() {
            return self.prolong(open, at, token, deadline_ms);
        }
        let kept = own.cloned();
        let kept = kept.as_ref();
        let (mode, event) = mode_and_event(claim.terms.want);
        let event = if is_refresh { Event::Extend } else { event };
        let since_ms = kept.filter(|_| is_refresh).map_or(now_ms, Holder::since_ms);
        let meta = claim.meta.or(kept.map(Holder::meta)).unwrap_or_default();
        let deadline_ms = kept.map_or(deadline_ms, |own| own.deadline_ms.max(deadline_ms));
        let change = Change::Hold { mode, token, fence, since_ms, deadline_ms, meta };
        self.commit(open, at, change, event);
        if let (Want::Upgrade, Some(own), false) = (claim.terms.want, kept, is_refresh) {
            self.ephemeral.change_fence(own.fence, fence, open.id(at), now_ms);
        }
    }

    #[inline(never)]
    fn enqueue(
        &mut self,
        open: &mut Open<'_, impl LockStore>,
        request: &Request<'_>,
        gives_up_ms: Option<u64>,
    ) -> Result<RequestId, LockError> {
        let (now, user) = (open.now(), (request.user)());
        let same = self.same_waiting(open, request);
        self.check_room(open.len(), request.claim.token, &user, same)?;
        if let Some(same) = same {
            self.waitlist.renew(same, request, user, gives_up_ms);
            // With another limit it may be let in.
            self.queues_led_by(same).into_iter().for_each(|queue| self.signal(queue));
            return Ok(same);
        }
        if let Some(error) = self.second_upgrade(open, &request.claim, &user) {
            self.counters.deadlocks += 1;
            return Err(error);
        }
        let id = self.waitlist.push(open.ids(), request, user, now.monotonic_ms(), gives_up_ms);
        let cycle = deadlock::closed_by(id, &self.waitlist, now.unix_ms(), open.store());
        // Perhaps it is a cycle by those only who are about to leave: it is looked for again.
        if let Some(cycle) = cycle.filter(|_| !self.some_are_leaving(now)) {
            let error = cycle.told(&self.waitlist);
            self.waitlist.remove(id);
            self.counters.deadlocks += 1;
            return Err(error);
        }
        self.counters.waiters_max = self.counters.waiters_max.max(self.waitlist.len() as u64);
        // That it cannot be served now was found just before.
        self.look_again_when_due(open, id);
        Ok(id)
    }

    /// Two readers of a lock that both wait to write wait for each other, whatever else they wait for.
    fn second_upgrade(
        &self,
        open: &Open<'_, impl LockStore>,
        claim: &Claim<'_>,
        told_to: &UserName,
    ) -> Option<LockError> {
        let queue = self.waitlist.queue_at(open.id(0)).filter(|_| claim.terms.want == Want::Upgrade)?;
        let first = self.waitlist.get(self.waitlist.queue(queue)?.upgrade()?)?;
        let is_live = open.hold(0, first.claim().hold()).is_ok_and(|own| own.is_some());
        if *first.token == *claim.token || !is_live || self.some_are_leaving(open.now()) {
            return None;
        }
        Some(deadlock::between_upgrades(open.id(0), claim.token, &first.token, told_to.clone()))
    }

    /// Checks that a user may have so many more places in queues with this token. One who asks for the same again has
    /// them.
    fn check_room(
        &self,
        places: usize,
        token: &[u8],
        user: &UserName,
        same: Option<RequestId>,
    ) -> Result<(), LockError> {
        let (waitlist, bounds) = (&self.waitlist, &self.bounds);
        let same = same.and_then(|same| waitlist.get(same));
        if same.is_some_and(|waiter| waiter.user == *user) {
            return Ok(());
        }
        let of_user = waitlist.places_of_user(user);
        // Mostly all that the user has are so few.
        let of_token = || waitlist.places_of_token(token, user);
        if of_user + places > bounds.places_of_token && of_token() + places > bounds.places_of_token {
            Err(LockError::TokenQueueFull(bounds.places_of_token))
        } else if same.is_none() && waitlist.places() + places > bounds.places {
            Err(LockError::QueueFull(bounds.places))
        } else if of_user + places > bounds.places_of_user {
            Err(LockError::UserQueueFull(bounds.places_of_user))
        } else {
            Ok(())
        }
    }

    /// The request that waits already and is asked again by this one.
    fn same_waiting(&self, open: &Open<'_, impl LockStore>, request: &Request<'_>) -> Option<RequestId> {
        match request.reply_to {
            ReplyTo::Client => None,
            ReplyTo::Channel { .. } => self.waitlist.same_on_channel(open.ids(), request),
        }
    }
}

/// How a request stands at one name as far as the lock goes.
fn of_lock(lock: Option<&Lock>, now: Timestamp, claim: &Claim<'_>) -> Admission {
    match lock {
        Some(lock) => lock.admission(claim.hold(), claim.terms.want, claim.terms.limit, now.unix_ms()),
        None if claim.terms.want == Want::Upgrade => Admission::NotHeld,
        None => Admission::Free,
    }
}

/// The mode of what a request is granted, and what subscribers are told of it.
fn mode_and_event(want: Want) -> (Mode, Event) {
    match want {
        Want::Hold(Mode::Write) => (Mode::Write, Event::Lock),
        Want::Hold(Mode::Read) => (Mode::Read, Event::Rlock),
        Want::Upgrade => (Mode::Write, Event::Upgrade),
    }
}
