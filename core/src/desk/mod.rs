//! Every operation, from request to answer.
//!
//! The desk owns what is not stored with a lock: the fencing counter, the queue, and the grants
//! whose clients have not been told yet. A request travels through it in one direction: it looks at
//! the locks it names, decides, applies effects, and then serves whoever waited for that
//! ([`Desk::settle`]), all before it answers. Locks are reached through a [`Space`] only.
//!
//! # What always holds
//!
//! * Whenever an operation has returned, the first in each queue cannot be served, or a mark, a wake
//!   or a mourned grant that [`Desk::drive`] will work off says that it has to be looked at again.
//! * A request is granted on all its names in one operation or on none.
//! * Nobody overtakes: a new hold is given to a request at the front of each of its queues, or to a
//!   newcomer where nobody waits. What a token holds already it may refresh at any time.

mod request;
mod settle;
mod untold;

use std::mem;
use std::rc::Rc;

use smallvec::SmallVec;

pub use request::{Answer, Ask, Outcome, Parting, Patience, Refusal};

use crate::deadlock;
use crate::effect::{Change, Effect, Event};
use crate::fence::{Fences, Moment};
use crate::lock::{Mode, Standing, Want};
use crate::queue::{Place, PlaceRef, Ticket, Waiter, Waitlist};
pub use crate::space::{Seen, Space};
use crate::space::{hold_at, lock_at};
use untold::UntoldGrants;

/// What has happened at this desk since the server started. Nothing here costs a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that were given a new hold. A refresh is not counted.
    pub grants: u64,
    /// Requests answered 0 because they did not want to wait.
    pub refusals: u64,
    /// Of `grants`, those that waited for it.
    pub handoffs: u64,
    /// Holds that were released by their owners.
    pub releases: u64,
    /// Requests that waited in vain.
    pub wait_timeouts: u64,
    /// Requests refused because to wait would have closed a cycle.
    pub deadlocks: u64,
    /// How long all requests that were granted had waited, together.
    pub wait_ms_total: u64,
    /// How long the most patient of them had waited.
    pub wait_ms_max: u64,
    /// The most requests that ever waited at a time.
    pub waiters_max: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Desk {
    /// The source of fences.
    pub fences: Fences,
    /// What has happened so far.
    pub counters: Counters,
    /// How many requests may wait at a time.
    pub max_waiters: usize,
    /// No new hold is given before this moment, in Unix milliseconds.
    pub closed_until_ms: u64,
    waitlist: Waitlist,
    untold: UntoldGrants,
    mourned: Vec<Ticket>,
    marked: Vec<Place>,
    answers: Vec<(Ticket, Answer)>,
}

impl Default for Desk {
    fn default() -> Self {
        Self {
            fences: Fences::default(),
            counters: Counters::default(),
            max_waiters: usize::MAX,
            closed_until_ms: 0,
            waitlist: Waitlist::default(),
            untold: UntoldGrants::default(),
            mourned: Vec::new(),
            marked: Vec::new(),
            answers: Vec::new(),
        }
    }
}

impl Desk {
    /// Who waits.
    #[must_use]
    pub fn waitlist(&self) -> &Waitlist {
        &self.waitlist
    }

    /// Asks for a hold, of one name or of several.
    ///
    /// # Errors
    /// [`Refusal`] when the request makes no sense now, or may not wait.
    pub fn acquire(
        &mut self,
        space: &mut impl Space,
        now: Moment,
        ask: &Ask<'_>,
    ) -> Result<Outcome, Refusal> {
        let places = ask.names.iter().map(|name| PlaceRef { db: ask.db, name });
        let mut standings = SmallVec::<[Standing; 1]>::with_capacity(ask.names.len());
        for place in places.clone() {
            standings.push(self.standing_of_newcomer(space, now, place, ask)?);
        }
        if !standings.iter().any(Standing::is_blocked) {
            places.clone().for_each(|place| self.confirm(place, ask.token));
            let fence = self.grant(space, now, ask, &standings);
            self.settle_at(space, now, places);
            return Ok(Outcome::Granted(fence));
        }
        let gives_up_ms = match ask.patience {
            Patience::None if now.ms() < self.closed_until_ms => {
                return Err(Refusal::Grace(self.closed_until_ms - now.ms()));
            }
            Patience::None => {
                self.counters.refusals += 1;
                return Ok(Outcome::Refused);
            }
            Patience::Ms(ms) => Some(now.ms().saturating_add(ms)),
            Patience::Endless => None,
        };
        self.park(space, now, ask, gives_up_ms).map(Outcome::Parked)
    }

    /// Takes back a request that has just been parked: its client cannot wait.
    pub fn withdraw(&mut self, ticket: Ticket) {
        if let Some(waiter) = self.waitlist.remove(ticket) {
            self.marked.extend(waiter.places);
        }
    }

    /// Ends a hold of `token`, if it has one in `mode` (in any, if `None`). True if it had.
    ///
    /// # Errors
    /// [`Refusal::WrongType`], [`Refusal::Elsewhere`].
    pub fn release(
        &mut self,
        space: &mut impl Space,
        now: Moment,
        place: PlaceRef<'_>,
        token: &[u8],
        mode: Option<Mode>,
    ) -> Result<bool, Refusal> {
        let released = self.drop_hold(space, now, place, token, mode)?;
        if released {
            self.settle_at(space, now, [place]);
        }
        Ok(released)
    }

    /// Ends the holds of `token` on all these names, in whichever mode. How many there were.
    ///
    /// # Errors
    /// [`Refusal::WrongType`], [`Refusal::Elsewhere`]: then nothing was released.
    pub fn release_all(
        &mut self,
        space: &mut impl Space,
        now: Moment,
        db: i32,
        names: &[&[u8]],
        token: &[u8],
    ) -> Result<usize, Refusal> {
        for name in names {
            lock_at(space, PlaceRef { db, name })?;
        }
        let mut released = Vec::new();
        for name in names {
            let place = PlaceRef { db, name };
            if self.drop_hold(space, now, place, token, None)? {
                released.push(place);
            }
        }
        self.settle_at(space, now, released.iter().copied());
        Ok(released.len())
    }

    /// Moves the deadlines of all these holds of `token` to `ttl_ms` from now. False, and nothing
    /// changed, if it lacks one of them.
    ///
    /// # Errors
    /// [`Refusal::WrongType`], [`Refusal::Elsewhere`].
    pub fn extend(
        &mut self,
        space: &mut impl Space,
        now: Moment,
        db: i32,
        names: &[&[u8]],
        token: &[u8],
        ttl_ms: u64,
    ) -> Result<bool, Refusal> {
        let mut all_held = true;
        for name in names {
            let lock = lock_at(space, PlaceRef { db, name })?;
            all_held &= lock.is_some_and(|lock| lock.holder(token, now.ms()).is_some());
        }
        if !all_held {
            return Ok(false);
        }
        let change = Change::Extend { token, deadline_ms: now.ms() + ttl_ms };
        for name in names {
            let place = PlaceRef { db, name };
            self.confirm(place, token);
            space.apply(place, &Effect { at_ms: now.ms(), change }, Event::Extend);
        }
        self.settle_at(space, now, names.iter().map(|name| PlaceRef { db, name }));
        Ok(true)
    }

    /// Turns the writer into a reader, with a new fence, and lets in the readers at the front of the
    /// queue. A reader is refreshed.
    ///
    /// # Errors
    /// [`Refusal::NotHeld`], [`Refusal::WrongType`], [`Refusal::Elsewhere`].
    pub fn downgrade(
        &mut self,
        space: &mut impl Space,
        now: Moment,
        place: PlaceRef<'_>,
        token: &[u8],
        ttl_ms: u64,
    ) -> Result<u64, Refusal> {
        let lock = lock_at(space, place)?.ok_or(Refusal::NotHeld)?;
        let own = lock.holder(token, now.ms()).ok_or(Refusal::NotHeld)?;
        let deadline_ms = now.ms() + ttl_ms;
        let fence = match lock.mode() {
            Mode::Read => {
                let fence = own.fence;
                self.confirm(place, token);
                let change = Change::Extend { token, deadline_ms };
                space.apply(place, &Effect { at_ms: now.ms(), change }, Event::Extend);
                fence
            }
            Mode::Write => {
                let (fence, meta) = (self.fences.next(now), own.meta.clone());
                self.confirm(place, token);
                let change = Change::Hold {
                    mode: Mode::Read,
                    token,
                    fence,
                    since_ms: now.ms(),
                    deadline_ms,
                    meta: &meta,
                };
                space.apply(place, &Effect { at_ms: now.ms(), change }, Event::Downgrade);
                self.counters.grants += 1;
                fence
            }
        };
        self.settle_at(space, now, [place]);
        Ok(fence)
    }

    /// The answers to waiting requests since the last call.
    pub fn take_answers(&mut self) -> Vec<(Ticket, Answer)> {
        mem::take(&mut self.answers)
    }

    /// Whether there are answers to take.
    #[must_use]
    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    fn standing_of_newcomer(
        &self,
        space: &mut impl Space,
        now: Moment,
        place: PlaceRef<'_>,
        ask: &Ask<'_>,
    ) -> Result<Standing, Refusal> {
        // An upgrade does not queue behind others: they cannot be served before it anyway.
        let is_next = ask.want == Want::Upgrade || self.waitlist.len_at(place) == 0;
        self.standing(space, now, place, ask.token, ask.want, is_next)
    }

    /// How a request stands at one name, all considered: the lock, the queue and the grace period.
    fn standing(
        &self,
        space: &mut impl Space,
        now: Moment,
        place: PlaceRef<'_>,
        token: &[u8],
        want: Want,
        is_next: bool,
    ) -> Result<Standing, Refusal> {
        let lock = lock_at(space, place)?;
        let standing = match lock {
            Some(lock) => lock.standing(token, want, now.ms()),
            None if want == Want::Upgrade => Standing::NotHeld,
            None => Standing::Free,
        };
        match standing {
            Standing::OtherMode(mode) => Err(Refusal::OtherMode(mode)),
            Standing::NotHeld => Err(Refusal::NotHeld),
            Standing::Free if !is_next => Ok(Standing::Blocked { until_ms: u64::MAX }),
            Standing::Free if now.ms() < self.closed_until_ms => {
                // Before then, only the end of the token's own hold changes something: an upgrade's.
                let own = lock.and_then(|lock| lock.holder(token, now.ms()));
                let own_ends_ms = own.map_or(u64::MAX, |own| own.deadline_ms);
                Ok(Standing::Blocked { until_ms: self.closed_until_ms.min(own_ends_ms) })
            }
            other => Ok(other),
        }
    }

    /// Gives the hold, on all names. The standings say that it can be given.
    fn grant(&mut self, space: &mut impl Space, now: Moment, ask: &Ask<'_>, standings: &[Standing]) -> u64 {
        let same_hold = match standings {
            [Standing::Held { fence }, rest @ ..] => {
                rest.iter().all(|other| *other == Standing::Held { fence: *fence }).then_some(*fence)
            }
            _ => None,
        };
        let fence = same_hold.unwrap_or_else(|| self.fences.next(now));
        let (at_ms, deadline_ms) = (now.ms(), now.ms() + ask.ttl_ms);
        let (mode, event) = match ask.want {
            Want::Hold(Mode::Write) => (Mode::Write, Event::Lock),
            Want::Hold(Mode::Read) => (Mode::Read, Event::Rlock),
            Want::Upgrade => (Mode::Write, Event::Upgrade),
        };
        for (name, standing) in ask.names.iter().zip(standings) {
            let place = PlaceRef { db: ask.db, name };
            let holds_already = matches!(standing, Standing::Held { .. }) || ask.want == Want::Upgrade;
            if same_hold.is_some() && ask.meta.is_none() {
                let change = Change::Extend { token: ask.token, deadline_ms };
                space.apply(place, &Effect { at_ms, change }, Event::Extend);
                continue;
            }
            let kept =
                if holds_already { hold_at(space, place, ask.token, now).map(|(_, own)| own) } else { None };
            let since_ms = match &kept {
                Some(own) if same_hold.is_some() => own.since_ms,
                _ => at_ms,
            };
            let meta = ask.meta.unwrap_or_else(|| kept.as_ref().map_or(&[], |own| &own.meta));
            let change = Change::Hold { mode, token: ask.token, fence, since_ms, deadline_ms, meta };
            let event = if same_hold.is_some() { Event::Extend } else { event };
            space.apply(place, &Effect { at_ms, change }, event);
            if same_hold.is_none() && ask.want != Want::Upgrade {
                space.bind(place, ask.token, ask.connection);
            }
        }
        self.counters.grants += u64::from(same_hold.is_none());
        fence
    }

    fn park(
        &mut self,
        space: &mut impl Space,
        now: Moment,
        ask: &Ask<'_>,
        gives_up_ms: Option<u64>,
    ) -> Result<Ticket, Refusal> {
        if self.waitlist.len() >= self.max_waiters {
            return Err(Refusal::QueueFull(self.max_waiters));
        }
        let token: Rc<[u8]> = ask.token.into();
        let places: Box<[Place]> =
            ask.names.iter().map(|name| PlaceRef { db: ask.db, name }.into()).collect();
        let ticket = self.waitlist.push(Waiter {
            places,
            token: token.clone(),
            want: ask.want,
            ttl_ms: ask.ttl_ms,
            meta: ask.meta.map(Into::into),
            connection: ask.connection,
            arrived_ms: now.ms(),
            gives_up_ms,
        });
        if let Some(cycle) = deadlock::cycle(ticket, &self.waitlist, space, now) {
            self.waitlist.remove(ticket);
            self.counters.deadlocks += 1;
            return Err(Refusal::Deadlock(cycle));
        }
        self.counters.waiters_max = self.counters.waiters_max.max(self.waitlist.len() as u64);
        // That it cannot be served now was found just before.
        self.set_wakes(space, now, ticket);
        Ok(ticket)
    }

    /// [`Desk::release`] without serving those who wait, which has to follow ([`Desk::settle_at`]).
    ///
    /// # Errors
    /// [`Refusal::WrongType`], [`Refusal::Elsewhere`].
    pub fn drop_hold(
        &mut self,
        space: &mut impl Space,
        now: Moment,
        place: PlaceRef<'_>,
        token: &[u8],
        mode: Option<Mode>,
    ) -> Result<bool, Refusal> {
        let Some(lock) = lock_at(space, place)? else { return Ok(false) };
        let held = lock.mode();
        if lock.holder(token, now.ms()).is_none() || mode.is_some_and(|mode| mode != held) {
            return Ok(false);
        }
        self.confirm(place, token);
        let event = match held {
            Mode::Write => Event::Unlock,
            Mode::Read => Event::Runlock,
        };
        space.apply(place, &Effect { at_ms: now.ms(), change: Change::Release { token } }, event);
        self.counters.releases += 1;
        Ok(true)
    }
}
