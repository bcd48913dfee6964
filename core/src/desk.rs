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

use std::collections::VecDeque;
use std::fmt::{self, Display, Formatter};
use std::mem;
use std::rc::Rc;

use hashbrown::HashMap;

use crate::deadlock::{self, Step};
use crate::effect::{Change, Effect, Event};
use crate::fence::{Fences, Moment};
use crate::lock::{Holder, Lock, Mode, Standing, Want};
use crate::queue::{Place, PlaceRef, Ticket, Waiter, Waitlist};

/// Where the locks are.
pub trait Space {
    /// What stands under this name.
    fn look(&mut self, place: PlaceRef<'_>) -> Seen<'_>;

    /// Makes an effect on a lock last, and makes it known. A `Hold` makes the lock if there is none;
    /// a lock that is left without holders goes.
    fn apply(&mut self, place: PlaceRef<'_>, effect: &Effect<'_>, event: Event);

    /// When the lock under this name goes by itself, in Unix milliseconds, if that is known to be
    /// before its last deadline: somebody has set the key's expiry.
    fn collected_ms(&mut self, _place: PlaceRef<'_>) -> Option<u64> {
        None
    }

    /// The token has a new hold here, which ends with this connection too, or with none. An upgrade,
    /// a downgrade and a refresh are the same hold in this respect: the connection that acquired it
    /// is the one that counts.
    fn bind(&mut self, _place: PlaceRef<'_>, _token: &[u8], _connection: Option<u64>) {}
}

/// What a name leads to.
#[derive(Debug)]
pub enum Seen<'a> {
    /// A lock, or nothing, which is as good as a free lock.
    Lock(Option<&'a Lock>),
    /// A value of another type.
    OtherType,
    /// Another node of the cluster has the name now.
    Elsewhere,
}

/// A request for a hold.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The database.
    pub db: i32,
    /// The keys, each once. All of them or none is granted.
    pub names: &'a [&'a [u8]],
    /// Who asks.
    pub token: &'a [u8],
    /// What for. An upgrade names one key.
    pub want: Want,
    /// How long the hold shall last, from the grant on.
    pub ttl_ms: u64,
    /// The metadata of the hold. `None` keeps what a refreshed or upgraded hold has.
    pub meta: Option<&'a [u8]>,
    /// What to do if it cannot be granted at once.
    pub patience: Patience,
    /// The connection with which the hold shall end, if it shall.
    pub connection: Option<u64>,
}

/// How long a request is willing to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Not at all.
    None,
    /// For this many milliseconds.
    Ms(u64),
    /// Without limit.
    Endless,
}

/// What became of a request for a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds, with this fence.
    Granted(u64),
    /// It cannot have it now and did not want to wait.
    Refused,
    /// It waits. Its [`Answer`] comes from [`Desk::take_answers`].
    Parked(Ticket),
}

/// The answer to a request that waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It holds, with this fence. Say so with [`Desk::told`], or take it back with [`Desk::leave`].
    Granted(u64),
    /// It has waited as long as it wanted to.
    TimedOut,
    /// It can no longer be granted.
    Refused(Refusal),
}

/// Why a request cannot be granted however long it waits. `Display` gives the error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The key holds another type.
    WrongType,
    /// The key's slot is on its way to another node, or has arrived there.
    Elsewhere,
    /// The token holds the lock in this mode, and asked for the other.
    OtherMode(Mode),
    /// The token was to upgrade or downgrade a hold that it does not have.
    NotHeld,
    /// To wait would close a cycle of owners that wait for each other.
    Deadlock(Vec<Step>),
    /// So many requests wait already.
    QueueFull(usize),
    /// No new hold is given before this many milliseconds have passed.
    Grace(u64),
    /// The server has become a replica.
    NotPrimary,
}

impl Display for Refusal {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongType => out.write_str("WRONGTYPE Operation against a key holding the wrong kind of value"),
            Self::Elsewhere => out.write_str("TRYAGAIN The key's slot is moving or has moved to another node"),
            Self::OtherMode(Mode::Read) => {
                out.write_str("WRONGMODE The token holds this lock for read; SLOCK.UPGRADE makes it the writer")
            }
            Self::OtherMode(Mode::Write) => {
                out.write_str("WRONGMODE The token holds this lock for write; SLOCK.DOWNGRADE makes it a reader")
            }
            Self::NotHeld => out.write_str("NOTHELD The token does not hold this lock"),
            Self::Deadlock(steps) => write_cycle(out, steps),
            Self::QueueFull(limit) => {
                write!(out, "QUEUEFULL {limit} requests wait already, which is what slock.max-waiters allows")
            }
            Self::Grace(left_ms) => write!(
                out,
                "GRACE No new hold for another {left_ms} ms: the server has just started (slock.restart-grace-ms)"
            ),
            Self::NotPrimary => {
                out.write_str("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)")
            }
        }
    }
}

/// Names who waits for whom, where: at most eight steps, names cut to 64 bytes.
fn write_cycle(out: &mut Formatter<'_>, steps: &[Step]) -> fmt::Result {
    const STEPS_SHOWN: usize = 8;
    const BYTES_SHOWN: usize = 64;
    let shown = |bytes: &[u8]| {
        let cut = &bytes[..bytes.len().min(BYTES_SHOWN)];
        format!("\"{}{}\"", cut.escape_ascii(), if cut.len() < bytes.len() { "..." } else { "" })
    };
    out.write_str("DEADLOCK Waiting would close a cycle: ")?;
    for (at, step) in steps.iter().take(STEPS_SHOWN).enumerate() {
        let next = &steps[(at + 1) % steps.len()];
        let comma = if at > 0 { ", " } else { "" };
        write!(
            out,
            "{comma}{} waits at {} for {}",
            shown(&step.token),
            shown(&step.place.name),
            shown(&next.token)
        )?;
    }
    if steps.len() > STEPS_SHOWN {
        write!(out, ", and {} more", steps.len() - STEPS_SHOWN)?;
    }
    Ok(())
}

/// What became of a request whose client has gone; see [`Desk::leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// It no longer waits.
    Left,
    /// It had been granted and not told: the grant will be taken back.
    Mourned,
    /// It had been answered, or never was.
    Unknown,
}

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

/// A grant to a client that has not been told yet.
#[derive(Debug)]
struct Untold {
    /// Rises from grant to grant: a later one of the same token may be built on an earlier one.
    serial: u64,
    token: Rc<[u8]>,
    fence: u64,
    deadline_ms: u64,
    /// For each name, the hold that the token had there before, if any.
    before: Vec<(Place, Option<(Mode, Holder)>)>,
}

/// Something that has to be looked at again.
#[derive(Debug)]
enum Work {
    /// The front of this name's queue.
    Place(Place),
    /// This request, wherever it stands.
    Ticket(Ticket),
}

/// How a waiting request stands with all its locks.
enum Assessment {
    Clear(Vec<Standing>),
    Blocked,
    Hopeless(Refusal),
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
    untold: HashMap<Ticket, Untold>,
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
            untold: HashMap::new(),
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
        let mut blocked = false;
        if let [name] = ask.names {
            // The common case, without an allocation.
            let place = PlaceRef { db: ask.db, name };
            let standing = self.standing_of_newcomer(space, now, place, ask)?;
            if !matches!(standing, Standing::Blocked { .. }) {
                self.confirm(place, ask.token);
                let fence = self.grant(space, now, ask, &[standing]);
                self.settle_at(space, now, place);
                return Ok(Outcome::Granted(fence));
            }
            blocked = true;
        }
        let mut standings = Vec::new();
        if !blocked {
            for place in places.clone() {
                let standing = self.standing_of_newcomer(space, now, place, ask)?;
                blocked |= matches!(standing, Standing::Blocked { .. });
                standings.push(standing);
            }
        }
        if !blocked {
            places.clone().for_each(|place| self.confirm(place, ask.token));
            let fence = self.grant(space, now, ask, &standings);
            places.for_each(|place| self.settle_at(space, now, place));
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
            self.settle_at(space, now, place);
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
            if self.drop_hold(space, now, PlaceRef { db, name }, token, None)? {
                released.push(*name);
            }
        }
        for name in &released {
            self.settle_at(space, now, PlaceRef { db, name });
        }
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
        for name in names {
            self.settle_at(space, now, PlaceRef { db, name });
        }
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
        self.settle_at(space, now, place);
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

    /// The client of a granted request has been told. So its owner knows of the hold, whichever other
    /// requests were answered with the same fence.
    pub fn told(&mut self, ticket: Ticket) {
        if let Some(told) = self.untold.remove(&ticket) {
            self.untold.retain(|_, other| other.token != told.token || other.fence != told.fence);
        }
    }

    /// The client of a request has gone, or no longer wants it. Touches no lock, so that it can be
    /// called wherever the server says so; [`Desk::drive`] does what follows from it.
    pub fn leave(&mut self, ticket: Ticket) -> Parting {
        if let Some(waiter) = self.waitlist.remove(ticket) {
            self.marked.extend(waiter.places);
            Parting::Left
        } else if self.untold.contains_key(&ticket) {
            self.mourned.push(ticket);
            Parting::Mourned
        } else {
            Parting::Unknown
        }
    }

    /// Something happened to this key that did not go through the desk. [`Desk::drive`] looks.
    pub fn mark(&mut self, place: PlaceRef<'_>) {
        if self.waitlist.len_at(place) > 0 {
            self.marked.push(place.into());
        }
    }

    /// Something happened to all keys of this database, or of every one, outside of the desk.
    pub fn mark_database(&mut self, db: Option<i32>) {
        let places = self.waitlist.places().filter(|place| db.is_none_or(|db| place.db == db));
        self.marked.extend(places.cloned());
    }

    /// Whether [`Desk::drive`] has work that does not wait for time to pass.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.marked.is_empty() || !self.mourned.is_empty()
    }

    /// When [`Desk::drive`] has to be called next, in Unix milliseconds, if nothing happens.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<u64> {
        self.waitlist.next_due_ms()
    }

    /// Does what no command asked for: takes back the grants of clients that have gone, serves
    /// queues whose locks opened by themselves, and answers requests that have waited long enough.
    pub fn drive(&mut self, space: &mut impl Space, now: Moment) {
        for ticket in mem::take(&mut self.mourned) {
            self.take_back(space, now, ticket);
        }
        let mut work: VecDeque<Work> = mem::take(&mut self.marked).into_iter().map(Work::Place).collect();
        while let Some(place) = self.waitlist.pop_wake(now.ms()) {
            work.push_back(Work::Place(place));
        }
        self.settle(space, now, work);
        self.end_waits(now);
        let work = mem::take(&mut self.marked).into_iter().map(Work::Place).collect();
        self.settle(space, now, work);
        if self.untold.is_empty() {
            // A crowd that has gone leaves no memory behind.
            self.untold = HashMap::new();
        }
    }

    /// Answers the requests that have waited long enough, and leaves those behind them to
    /// [`Desk::drive`]. This much can be done while no lock may be changed.
    pub fn end_waits(&mut self, now: Moment) {
        while let Some(ticket) = self.waitlist.next_give_up(now.ms()) {
            self.counters.wait_timeouts += 1;
            let freed = self.dismiss(ticket, Answer::TimedOut);
            self.marked.extend(freed);
        }
    }

    /// Ends the wait of a request as if its time had run out. False if it does not wait.
    pub fn give_up(&mut self, ticket: Ticket) -> bool {
        let waits = self.leave(ticket) == Parting::Left;
        self.counters.wait_timeouts += u64::from(waits);
        waits
    }

    /// Sends everybody away who waits, and forgets what was to be done: this server no longer
    /// decides.
    pub fn dismiss_all(&mut self, refusal: &Refusal) {
        for ticket in self.waitlist.tickets() {
            self.dismiss(ticket, Answer::Refused(refusal.clone()));
        }
        self.marked.clear();
        self.mourned.clear();
        self.untold.clear();
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
        let standing = match lock_at(space, place)? {
            Some(lock) => lock.standing(token, want, now.ms()),
            None if want == Want::Upgrade => Standing::NotHeld,
            None => Standing::Free,
        };
        match standing {
            Standing::OtherMode(mode) => Err(Refusal::OtherMode(mode)),
            Standing::NotHeld => Err(Refusal::NotHeld),
            Standing::Free if !is_next => Ok(Standing::Blocked { until_ms: u64::MAX }),
            Standing::Free if now.ms() < self.closed_until_ms => {
                Ok(Standing::Blocked { until_ms: self.closed_until_ms })
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
            places: places.clone(),
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
        let fronts = places.into_iter().filter(|place| self.waitlist.front(place.as_ref()) == Some(ticket));
        let work = fronts.map(Work::Place).collect();
        self.settle(space, now, work);
        Ok(ticket)
    }

    fn drop_hold(
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

    /// Serves whoever waits at this name and can now be served.
    fn settle_at(&mut self, space: &mut impl Space, now: Moment, place: PlaceRef<'_>) {
        if self.waitlist.len_at(place) > 0 {
            self.settle(space, now, VecDeque::from([Work::Place(place.into())]));
        }
    }

    /// Works through the queues that something has changed for, and those that change in turn.
    ///
    /// The cost is that of the requests served, whatever the number of those that go on waiting: at
    /// each name only the front is looked at, until one cannot be served.
    fn settle(&mut self, space: &mut impl Space, now: Moment, mut work: VecDeque<Work>) {
        while let Some(item) = work.pop_front() {
            match item {
                Work::Place(place) => {
                    while let Some(ticket) = self.waitlist.front(place.as_ref()) {
                        match self.assess(space, now, ticket) {
                            Assessment::Clear(standings) => {
                                work.extend(self.serve(space, now, ticket, &standings))
                            }
                            Assessment::Hopeless(refusal) => {
                                let freed = self.dismiss(ticket, Answer::Refused(refusal));
                                work.extend(freed.into_iter().map(Work::Place));
                            }
                            Assessment::Blocked => {
                                let wake_ms = self.opens_ms(space, now, &place, ticket);
                                self.waitlist.set_wake(&place, wake_ms);
                                break;
                            }
                        }
                    }
                }
                Work::Ticket(ticket) => match self.assess(space, now, ticket) {
                    Assessment::Clear(standings) => work.extend(self.serve(space, now, ticket, &standings)),
                    Assessment::Hopeless(refusal) => {
                        let freed = self.dismiss(ticket, Answer::Refused(refusal));
                        work.extend(freed.into_iter().map(Work::Place));
                    }
                    Assessment::Blocked => {}
                },
            }
        }
    }

    fn assess(&self, space: &mut impl Space, now: Moment, ticket: Ticket) -> Assessment {
        let Some(waiter) = self.waitlist.get(ticket) else { return Assessment::Blocked };
        let mut standings = Vec::with_capacity(waiter.places.len());
        let mut blocked = false;
        for place in &waiter.places {
            let is_next = self.waitlist.front(place.as_ref()) == Some(ticket);
            match self.standing(space, now, place.as_ref(), &waiter.token, waiter.want, is_next) {
                Ok(Standing::Blocked { .. }) => blocked = true,
                Ok(standing) => standings.push(standing),
                Err(refusal) => return Assessment::Hopeless(refusal),
            }
        }
        if blocked { Assessment::Blocked } else { Assessment::Clear(standings) }
    }

    /// When the request at the front of this place is let in by the lock, if nobody acts.
    fn opens_ms(&self, space: &mut impl Space, now: Moment, place: &Place, ticket: Ticket) -> Option<u64> {
        let waiter = self.waitlist.get(ticket)?;
        match self.standing(space, now, place.as_ref(), &waiter.token, waiter.want, true) {
            Ok(Standing::Blocked { until_ms }) => {
                Some(space.collected_ms(place.as_ref()).map_or(until_ms, |gone_ms| gone_ms.min(until_ms)))
            }
            _ => None,
        }
    }

    /// Grants a request that waited. What has to be looked at again because of it.
    fn serve(
        &mut self,
        space: &mut impl Space,
        now: Moment,
        ticket: Ticket,
        standings: &[Standing],
    ) -> Vec<Work> {
        let Some(waiter) = self.waitlist.remove(ticket) else { return Vec::new() };
        let names: Vec<&[u8]> = waiter.places.iter().map(|place| &*place.name).collect();
        let ask = Ask {
            db: waiter.places[0].db,
            names: &names,
            token: &waiter.token,
            want: waiter.want,
            ttl_ms: waiter.ttl_ms,
            meta: waiter.meta.as_deref(),
            patience: Patience::None,
            connection: waiter.connection,
        };
        let before = waiter
            .places
            .iter()
            .map(|place| (place.clone(), hold_at(space, place.as_ref(), &waiter.token, now)))
            .collect();
        let fence = self.grant(space, now, &ask, standings);
        let waited_ms = now.ms().saturating_sub(waiter.arrived_ms);
        self.counters.handoffs += 1;
        self.counters.wait_ms_total += waited_ms;
        self.counters.wait_ms_max = self.counters.wait_ms_max.max(waited_ms);
        let deadline_ms = now.ms() + waiter.ttl_ms;
        let (serial, token) = (self.counters.handoffs, waiter.token.clone());
        self.untold.insert(ticket, Untold { serial, token, fence, deadline_ms, before });
        self.answers.push((ticket, Answer::Granted(fence)));
        // Others of this token now hold what they wait for, or can never have it. A refresh is one of
        // those others.
        let is_new = standings.iter().any(|standing| !matches!(standing, Standing::Held { .. }));
        let siblings = waiter
            .places
            .iter()
            .filter(|_| is_new)
            .flat_map(|place| self.waitlist.of_token_at(&waiter.token, place.as_ref()))
            .map(Work::Ticket);
        siblings.chain(waiter.places.iter().cloned().map(Work::Place)).collect()
    }

    /// Answers a request that waits and takes it out. The names it stood at.
    fn dismiss(&mut self, ticket: Ticket, answer: Answer) -> Box<[Place]> {
        let Some(waiter) = self.waitlist.remove(ticket) else { return Box::default() };
        self.answers.push((ticket, answer));
        waiter.places
    }

    /// The token has used this hold since it was granted, so it knows of it: it is not taken back.
    fn confirm(&mut self, place: PlaceRef<'_>, token: &[u8]) {
        if !self.untold.is_empty() {
            self.untold.retain(|_, grant| {
                *grant.token != *token || grant.before.iter().all(|(granted, _)| granted.as_ref() != place)
            });
        }
    }

    /// Undoes a grant whose client never heard of it, where the hold is still as it was granted.
    fn take_back(&mut self, space: &mut impl Space, now: Moment, ticket: Ticket) {
        let Some(grant) = self.untold.remove(&ticket) else { return };
        let mut work = VecDeque::new();
        for (place, before) in grant.before {
            // A later grant to the same token refreshed this one: what was before this is now before it.
            let refresh = self
                .untold
                .values_mut()
                .filter(|later| later.serial > grant.serial && later.token == grant.token)
                .filter_map(|later| {
                    let (_, on) = later.before.iter_mut().find(|(at, _)| *at == place)?;
                    let is_built_on_it = on.as_ref().is_some_and(|(_, own)| own.fence == grant.fence);
                    is_built_on_it.then_some((later.serial, on))
                })
                .min_by_key(|(serial, _)| *serial);
            if let Some((_, on)) = refresh {
                *on = before;
                continue;
            }
            let untouched = hold_at(space, place.as_ref(), &grant.token, now)
                .is_some_and(|(_, own)| own.fence == grant.fence && own.deadline_ms == grant.deadline_ms);
            if !untouched {
                continue;
            }
            let token = &*grant.token;
            let (change, event) = match &before {
                Some((mode, own)) if own.is_live(now.ms()) => (
                    Change::Hold {
                        mode: *mode,
                        token,
                        fence: own.fence,
                        since_ms: own.since_ms,
                        deadline_ms: own.deadline_ms,
                        meta: &own.meta,
                    },
                    if *mode == Mode::Read { Event::Downgrade } else { Event::Extend },
                ),
                _ => (
                    Change::Release { token },
                    match lock_at(space, place.as_ref()) {
                        Ok(Some(lock)) if lock.mode() == Mode::Read => Event::Runlock,
                        _ => Event::Unlock,
                    },
                ),
            };
            space.apply(place.as_ref(), &Effect { at_ms: now.ms(), change }, event);
            work.push_back(Work::Place(place));
        }
        self.settle(space, now, work);
    }
}

/// The lock under this name, if the name can have one.
fn lock_at<'s>(space: &'s mut impl Space, place: PlaceRef<'_>) -> Result<Option<&'s Lock>, Refusal> {
    match space.look(place) {
        Seen::Lock(lock) => Ok(lock),
        Seen::OtherType => Err(Refusal::WrongType),
        Seen::Elsewhere => Err(Refusal::Elsewhere),
    }
}

/// The hold that the token has in force here, and its mode.
fn hold_at(space: &mut impl Space, place: PlaceRef<'_>, token: &[u8], now: Moment) -> Option<(Mode, Holder)> {
    let lock = lock_at(space, place).ok()??;
    lock.holder(token, now.ms()).map(|own| (lock.mode(), own.clone()))
}
