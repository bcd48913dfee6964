//! The operations that commands ask for, and what the manager keeps between them. The one that grants waiting
//! requests is in `serve`.

use std::collections::{BTreeSet, VecDeque};
use std::mem;
use std::rc::Rc;

use smallvec::SmallVec;

use super::ephemeral::EphemeralHolds;
use super::request::{AcquireOutcome, AcquireRequest, WaitPolicy, WaitResult};
use crate::deadlock;
use crate::effect::{Change, Effect, Event};
use crate::error::LockError;
use crate::fence::Fences;
use crate::ids::{ConnectionId, LockIdRef, RequestId};
use crate::limits::NUMBER_MAX;
use crate::lock::{Admission, Holder, Lock};
use crate::mode::{Mode, Want};
use crate::queue::{NewWaiter, QueueId, Waitlist};
use crate::store::{LockStore, Lookup};
use crate::time::Timestamp;

/// What has happened since the server started. Nothing here costs a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that were given a new hold. A refresh is not counted.
    pub grants: u64,
    /// Requests answered 0 because they did not want to wait.
    pub refusals: u64,
    /// Of `grants`, those that waited for it.
    pub handoffs: u64,
    /// Holds that were released by their owners or ended with their connections.
    pub releases: u64,
    /// Requests that waited in vain.
    pub wait_timeouts: u64,
    /// Requests refused because to wait would have closed a cycle.
    pub deadlocks: u64,
    /// How long all requests that were granted had waited, together.
    pub wait_ms_total: u64,
    /// How long the one of them that waited longest had waited.
    pub wait_ms_max: u64,
    /// The most requests that ever waited at a time.
    pub waiters_max: u64,
}

/// What a manager had to forget; to drop it may take more than a moment.
#[derive(Debug)]
pub struct Forgotten {
    _holds: EphemeralHolds,
}

/// Whether one request can be granted at each of its names.
pub(super) type Admissions = SmallVec<[Admission; 1]>;

/// See the [module](super).
#[derive(Debug)]
pub struct LockManager {
    /// The source of fences.
    pub fences: Fences,
    /// What has happened so far.
    pub counters: Counters,
    /// How many requests may wait at a time.
    pub max_waiters: usize,
    /// No new hold is given before this moment of the monotonic clock, in milliseconds.
    pub(super) grace_until_ms: u64,
    pub(super) waitlist: Waitlist,
    pub(super) ephemeral: EphemeralHolds,
    /// Holds of closed connections up to here could not be ended; they are skipped until the next try.
    pub(super) not_served_up_to: Option<(ConnectionId, u64)>,
    /// When to begin it again, on the monotonic clock, after some could not be ended.
    pub(super) retry_ended_ms: Option<u64>,
    /// Queues to look at, the first that changed first. Each stands here once.
    pub(super) dirty: VecDeque<QueueId>,
    /// Databases all of whose queues have to be looked at.
    pub(super) dirty_databases: VecDeque<(i32, Scan)>,
    /// Requests to look at wherever they stand: for several names, or of a token that was just granted.
    pub(super) revisit: BTreeSet<RequestId>,
    /// Requests up to this one are sent away with this error.
    pub(super) resigned: Option<(RequestId, LockError)>,
    /// Steps of [`LockManager::serve_queues`] so far.
    pub(super) steps: usize,
    pub(super) results: Vec<(RequestId, WaitResult)>,
}

/// How far a look at all queues of a database has come.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The last name that was looked at.
    pub(super) done: Option<Rc<[u8]>>,
    /// The database has changed again since the look began.
    pub(super) again: bool,
}

impl Default for LockManager {
    fn default() -> Self {
        Self {
            fences: Fences::default(),
            counters: Counters::default(),
            max_waiters: usize::MAX,
            grace_until_ms: 0,
            waitlist: Waitlist::default(),
            ephemeral: EphemeralHolds::default(),
            not_served_up_to: None,
            retry_ended_ms: None,
            dirty: VecDeque::new(),
            dirty_databases: VecDeque::new(),
            revisit: BTreeSet::new(),
            resigned: None,
            steps: 0,
            results: Vec::new(),
        }
    }
}

impl LockManager {
    /// Who waits.
    #[must_use]
    pub fn waitlist(&self) -> &Waitlist {
        &self.waitlist
    }

    /// From now on no new hold is given before this moment of the monotonic clock, in milliseconds.
    pub fn set_grace(&mut self, until_ms: u64) {
        self.grace_until_ms = until_ms;
        self.database_changed(None);
    }

    /// Asks for a hold, of one name or of several.
    ///
    /// # Errors
    /// [`LockError`] when the request makes no sense now, or may not wait.
    pub fn acquire(
        &mut self,
        store: &mut impl LockStore,
        now: Timestamp,
        request: &AcquireRequest<'_>,
    ) -> Result<AcquireOutcome, LockError> {
        let (db, names) = (request.db, request.names);
        store.open(db, names);
        self.end_closed_holds(store, now, db, names, request.token);
        let mut admissions = Admissions::with_capacity(names.len());
        for (at, name) in names.iter().enumerate() {
            // An upgrade does not queue behind others: they cannot be served before it anyway.
            let is_next = request.want == Want::Upgrade
                || self.waitlist.is_empty()
                || self.waitlist.queue_at(LockIdRef { db, name }).is_none();
            admissions.push(self.admission(store, at, now, request.token, request.want, is_next)?);
        }
        if !admissions.iter().any(Admission::is_blocked) {
            let fence = self.grant(store, now, request, &admissions)?;
            self.mark_all(db, names);
            return Ok(AcquireOutcome::Granted(fence));
        }
        let gives_up_ms = match request.wait {
            WaitPolicy::NoWait if now.monotonic_ms() < self.grace_until_ms => {
                return Err(LockError::Grace(self.grace_until_ms - now.monotonic_ms()));
            }
            WaitPolicy::NoWait => {
                self.counters.refusals += 1;
                return Ok(AcquireOutcome::Refused);
            }
            WaitPolicy::Timeout(ms) => Some(now.monotonic_ms().saturating_add(ms)),
            WaitPolicy::Forever => None,
        };
        self.enqueue(store, now, request, gives_up_ms).map(AcquireOutcome::Waiting)
    }

    /// Withdraws a waiting request: its client has gone, or cannot wait. False if it does not wait. Touches
    /// no lock, so that it can be called wherever the server says so.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        let Some(waiter) = self.waitlist.remove(request) else { return false };
        waiter.queues.iter().for_each(|queue| self.mark(*queue));
        true
    }

    /// Ends the wait of a request as if its time had run out. False if it does not wait.
    pub fn time_out(&mut self, request: RequestId) -> bool {
        let waited = self.cancel(request);
        self.counters.wait_timeouts += u64::from(waited);
        waited
    }

    /// Ends a hold of `token`, if it has one in `mode` (in any, if `None`). True if it had.
    ///
    /// # Errors
    /// [`LockError::WrongType`], [`LockError::NotServed`].
    pub fn release(
        &mut self,
        store: &mut impl LockStore,
        now: Timestamp,
        lock: LockIdRef<'_>,
        token: &[u8],
        mode: Option<Mode>,
    ) -> Result<bool, LockError> {
        store.open(lock.db, &[lock.name]);
        self.end_closed_holds(store, now, lock.db, &[lock.name], token);
        let released = match lock_at(store, 0)? {
            Some(held) if mode.is_none_or(|mode| mode == held.mode()) => {
                held.holder(token, now.unix_ms()).map(|own| own.fence)
            }
            _ => None,
        };
        if let Some(fence) = released {
            self.drop_hold(store, 0, now, lock, token, fence);
        }
        Ok(released.is_some())
    }

    /// Ends the holds of `token` on all these names, in whichever mode. How many there were.
    ///
    /// # Errors
    /// [`LockError::WrongType`], [`LockError::NotServed`]: then nothing was released.
    pub fn release_all(
        &mut self,
        store: &mut impl LockStore,
        now: Timestamp,
        db: i32,
        names: &[&[u8]],
        token: &[u8],
    ) -> Result<usize, LockError> {
        store.open(db, names);
        self.end_closed_holds(store, now, db, names, token);
        let mut held = Vec::new();
        for (at, name) in names.iter().enumerate() {
            if let Some(own) = hold_at(store, at, token, now)? {
                held.push((at, LockIdRef { db, name }, own.fence));
            }
        }
        for (at, lock, fence) in &held {
            self.drop_hold(store, *at, now, *lock, token, *fence);
        }
        Ok(held.len())
    }

    /// Moves the deadlines of all these holds of `token` to `ttl_ms` from now. False, and nothing
    /// changed, if it lacks one of them.
    ///
    /// # Errors
    /// [`LockError::WrongType`], [`LockError::NotServed`], [`LockError::OutOfRange`].
    pub fn extend(
        &mut self,
        store: &mut impl LockStore,
        now: Timestamp,
        db: i32,
        names: &[&[u8]],
        token: &[u8],
        ttl_ms: u64,
    ) -> Result<bool, LockError> {
        store.open(db, names);
        self.end_closed_holds(store, now, db, names, token);
        let mut all_held = true;
        for at in 0..names.len() {
            all_held &= hold_at(store, at, token, now)?.is_some();
        }
        if !all_held {
            return Ok(false);
        }
        let change = Change::Extend { token, deadline_ms: deadline_ms(now, ttl_ms)? };
        for (at, name) in names.iter().enumerate() {
            self.apply(store, at, now, LockIdRef { db, name }, change, Event::Extend);
        }
        self.mark_all(db, names);
        Ok(true)
    }

    /// Turns the writer into a reader, with a new fence. A reader is refreshed.
    ///
    /// # Errors
    /// [`LockError::NotHeld`], [`LockError::WrongType`], [`LockError::NotServed`],
    /// [`LockError::OutOfRange`].
    pub fn downgrade(
        &mut self,
        store: &mut impl LockStore,
        now: Timestamp,
        lock: LockIdRef<'_>,
        token: &[u8],
        ttl_ms: u64,
    ) -> Result<u64, LockError> {
        store.open(lock.db, &[lock.name]);
        self.end_closed_holds(store, now, lock.db, &[lock.name], token);
        let held = lock_at(store, 0)?.ok_or(LockError::NotHeld)?;
        let own = held.holder(token, now.unix_ms()).ok_or(LockError::NotHeld)?;
        let deadline_ms = deadline_ms(now, ttl_ms)?;
        let fence = match held.mode() {
            Mode::Read => {
                let fence = own.fence;
                let change = Change::Extend { token, deadline_ms };
                self.apply(store, 0, now, lock, change, Event::Extend);
                fence
            }
            Mode::Write => {
                let (old, meta) = (own.fence, own.meta.clone());
                let fence = self.fences.next(now).ok_or(LockError::OutOfRange)?;
                let since_ms = now.unix_ms();
                let change =
                    Change::Hold { mode: Mode::Read, token, fence, since_ms, deadline_ms, meta: &meta };
                self.apply(store, 0, now, lock, change, Event::Downgrade);
                self.ephemeral.change_fence(old, fence, lock, now.unix_ms());
                self.counters.grants += 1;
                fence
            }
        };
        self.mark_all(lock.db, &[lock.name]);
        Ok(fence)
    }

    /// Something happened to this key that did not go through the manager.
    pub fn key_changed(&mut self, lock: LockIdRef<'_>) {
        if let Some(queue) = self.waitlist.queue_at(lock) {
            self.mark(queue);
        }
    }

    /// Something happened to all keys of this database, or of every one, outside of the manager.
    pub fn database_changed(&mut self, db: Option<i32>) {
        let changed = self.waitlist.databases().filter(|of| db.is_none_or(|db| db == *of));
        for db in changed {
            match self.dirty_databases.iter_mut().find(|(of, _)| *of == db) {
                Some((_, scan)) => scan.again = scan.done.is_some(),
                None => self.dirty_databases.push_back((db, Scan::default())),
            }
        }
    }

    /// Two databases have changed places.
    pub fn databases_swapped(&mut self, first: i32, second: i32) {
        self.ephemeral.swap_databases(first, second);
        self.database_changed(Some(first));
        self.database_changed(Some(second));
    }

    /// This connection has closed. Its holds end in [`LockManager::serve_queues`], and until then count as
    /// held for everybody but their owner.
    pub fn connection_closed(&mut self, connection: ConnectionId) {
        if self.ephemeral.close(connection) {
            self.not_served_up_to = None;
            self.retry_ended_ms = None;
        }
    }

    /// This server no longer decides: what becomes of holds is the primary's to say. Everybody who waits is
    /// sent away with this error, by [`LockManager::serve_queues`] or [`LockManager::end_waits`]. What is
    /// forgotten is for the caller to drop.
    #[must_use]
    pub fn resign(&mut self, error: LockError) -> Forgotten {
        self.resigned = self.waitlist.last_request().map(|last| (last, error));
        self.not_served_up_to = None;
        self.retry_ended_ms = None;
        self.dirty.clear();
        self.dirty_databases.clear();
        self.revisit.clear();
        Forgotten { _holds: self.ephemeral.clear() }
    }

    /// Whether somebody is still to be sent away; see [`LockManager::resign`].
    #[must_use]
    pub fn is_resigning(&self) -> bool {
        self.resigned.is_some()
    }

    /// How waits have ended since the last call.
    pub fn take_results(&mut self) -> Vec<(RequestId, WaitResult)> {
        mem::take(&mut self.results)
    }

    /// Whether there are results to take.
    #[must_use]
    pub fn has_results(&self) -> bool {
        !self.results.is_empty()
    }

    pub(super) fn mark(&mut self, queue: QueueId) {
        if self.waitlist.set_dirty(queue, true) {
            self.dirty.push_back(queue);
        }
    }

    fn mark_all(&mut self, db: i32, names: &[&[u8]]) {
        if self.waitlist.is_empty() {
            return;
        }
        for name in names {
            self.key_changed(LockIdRef { db, name });
        }
    }

    /// How a request stands at one name, all considered: the lock, the queue and the grace period.
    pub(super) fn admission(
        &self,
        store: &impl LockStore,
        at: usize,
        now: Timestamp,
        token: &[u8],
        want: Want,
        is_next: bool,
    ) -> Result<Admission, LockError> {
        let lock = lock_at(store, at)?;
        let admission = match lock {
            Some(lock) => lock.admission(token, want, now.unix_ms()),
            None if want == Want::Upgrade => Admission::NotHeld,
            None => Admission::Free,
        };
        match admission {
            Admission::WrongMode(mode) => Err(LockError::WrongMode(mode)),
            Admission::NotHeld => Err(LockError::NotHeld),
            Admission::Free if !is_next => Ok(Admission::Blocked { until_ms: u64::MAX }),
            Admission::Free if now.monotonic_ms() < self.grace_until_ms => {
                // Before then, only the end of the token's own hold changes something: an upgrade's.
                let own = lock.and_then(|lock| lock.holder(token, now.unix_ms()));
                Ok(Admission::Blocked { until_ms: own.map_or(u64::MAX, |own| own.deadline_ms) })
            }
            other => Ok(other),
        }
    }

    /// Gives the hold, on all names. The admissions say that it can be given. On an error nothing has
    /// changed.
    pub(super) fn grant(
        &mut self,
        store: &mut impl LockStore,
        now: Timestamp,
        request: &AcquireRequest<'_>,
        admissions: &[Admission],
    ) -> Result<u64, LockError> {
        let deadline_ms = deadline_ms(now, request.ttl_ms)?;
        let same_hold = same_hold(admissions);
        let fence = match same_hold {
            Some(fence) => fence,
            None => self.fences.next(now).ok_or(LockError::OutOfRange)?,
        };
        let token = request.token;
        let (mode, event) = match request.want {
            Want::Hold(Mode::Write) => (Mode::Write, Event::Lock),
            Want::Hold(Mode::Read) => (Mode::Read, Event::Rlock),
            Want::Upgrade => (Mode::Write, Event::Upgrade),
        };
        for (at, (name, admission)) in request.names.iter().zip(admissions).enumerate() {
            let lock = LockIdRef { db: request.db, name };
            if same_hold.is_some() && request.meta.is_none() {
                let change = Change::Extend { token, deadline_ms };
                self.apply(store, at, now, lock, change, Event::Extend);
                continue;
            }
            let holds_already = matches!(admission, Admission::Held { .. }) || request.want == Want::Upgrade;
            let own = hold_at(store, at, token, now).ok().flatten();
            let kept = own.filter(|_| holds_already).cloned();
            let since_ms = match &kept {
                Some(own) if same_hold.is_some() => own.since_ms,
                _ => now.unix_ms(),
            };
            let meta = request.meta.unwrap_or_else(|| kept.as_ref().map_or(&[], |own| &own.meta));
            let change = Change::Hold { mode, token, fence, since_ms, deadline_ms, meta };
            let event = if same_hold.is_some() { Event::Extend } else { event };
            self.apply(store, at, now, lock, change, event);
            if let (Want::Upgrade, Some(own), None) = (request.want, &kept, same_hold) {
                self.ephemeral.change_fence(own.fence, fence, lock, now.unix_ms());
            }
        }
        if same_hold.is_none() {
            self.counters.grants += 1;
            if let Some(connection) = request.connection.filter(|_| request.want != Want::Upgrade) {
                self.ephemeral.bind(fence, connection, request, now.unix_ms());
            }
        }
        Ok(fence)
    }

    fn enqueue(
        &mut self,
        store: &mut impl LockStore,
        now: Timestamp,
        request: &AcquireRequest<'_>,
        gives_up_ms: Option<u64>,
    ) -> Result<RequestId, LockError> {
        if self.waitlist.len() >= self.max_waiters {
            return Err(LockError::QueueFull(self.max_waiters));
        }
        let id = self.waitlist.push(&NewWaiter {
            db: request.db,
            names: request.names,
            token: request.token,
            want: request.want,
            ttl_ms: request.ttl_ms,
            meta: request.meta,
            connection: request.connection,
            arrived_ms: now.monotonic_ms(),
            gives_up_ms,
        });
        let has_ended = |fence, lock: LockIdRef<'_>| self.ephemeral.has_ended(fence, lock);
        if let Some(cycle) = deadlock::cycle(id, &self.waitlist, store, now.unix_ms(), &has_ended) {
            self.waitlist.remove(id);
            self.counters.deadlocks += 1;
            return Err(LockError::Deadlock(cycle));
        }
        self.counters.waiters_max = self.counters.waiters_max.max(self.waitlist.len() as u64);
        // That it cannot be served now was found just before.
        self.look_again_when_due(store, now, id);
        Ok(id)
    }

    /// Ends what the token holds here by a connection that has closed: the owner itself does not find it
    /// held, or it would refresh what is about to end.
    pub(super) fn end_closed_holds(
        &mut self,
        store: &mut impl LockStore,
        now: Timestamp,
        db: i32,
        names: &[&[u8]],
        token: &[u8],
    ) {
        if !self.ephemeral.has_work() {
            return;
        }
        for (at, name) in names.iter().enumerate() {
            let own = hold_at(store, at, token, now).ok().flatten();
            let lock = LockIdRef { db, name };
            if let Some(fence) =
                own.map(|own| own.fence).filter(|fence| self.ephemeral.has_ended(*fence, lock))
            {
                self.drop_hold(store, at, now, lock, token, fence);
            }
        }
    }

    pub(super) fn drop_hold(
        &mut self,
        store: &mut impl LockStore,
        at: usize,
        now: Timestamp,
        lock: LockIdRef<'_>,
        token: &[u8],
        fence: u64,
    ) {
        let event = match store.get(at) {
            Lookup::Lock(Some(held)) if held.mode() == Mode::Read => Event::Runlock,
            _ => Event::Unlock,
        };
        self.apply(store, at, now, lock, Change::Release { token }, event);
        self.ephemeral.end(fence, lock);
        self.counters.releases += 1;
        self.mark_all(lock.db, &[lock.name]);
    }

    /// Dates an effect and applies it. What it drops because its time was up ends with no connection any
    /// more.
    fn apply(
        &mut self,
        store: &mut impl LockStore,
        at: usize,
        now: Timestamp,
        id: LockIdRef<'_>,
        change: Change<'_>,
        event: Event,
    ) {
        let mut at_ms = now.unix_ms();
        if let Lookup::Lock(Some(lock)) = store.get(at) {
            at_ms = lock.effect_ms(at_ms);
            if !self.ephemeral.is_empty() {
                lock.ended(at_ms).for_each(|gone| self.ephemeral.end(gone.fence, id));
            }
        }
        store.apply(at, &Effect { at_ms, change }, event);
    }
}

/// The fence of the one hold that the token has on all these names, if that is what it has.
pub(super) fn same_hold(admissions: &[Admission]) -> Option<u64> {
    match admissions {
        [Admission::Held { fence }, rest @ ..] => {
            rest.iter().all(|other| *other == Admission::Held { fence: *fence }).then_some(*fence)
        }
        _ => None,
    }
}

fn deadline_ms(now: Timestamp, ttl_ms: u64) -> Result<u64, LockError> {
    let deadline_ms = now.unix_ms().saturating_add(ttl_ms);
    if deadline_ms <= NUMBER_MAX { Ok(deadline_ms) } else { Err(LockError::OutOfRange) }
}

/// The lock at this position, if the name can have one.
fn lock_at(store: &impl LockStore, at: usize) -> Result<Option<&Lock>, LockError> {
    match store.get(at) {
        Lookup::Lock(lock) => Ok(lock),
        Lookup::OtherType => Err(LockError::WrongType),
        Lookup::NotServed => Err(LockError::NotServed),
    }
}

/// The hold that the token has in force at this position.
pub(super) fn hold_at<'s>(
    store: &'s impl LockStore,
    at: usize,
    token: &[u8],
    now: Timestamp,
) -> Result<Option<&'s Holder>, LockError> {
    Ok(lock_at(store, at)?.and_then(|lock| lock.holder(token, now.unix_ms())))
}
