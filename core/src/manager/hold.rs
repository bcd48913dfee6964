//! What becomes of a hold once it is given: released, extended, downgraded, or ended with its connection.

use super::lock_manager::LockManager;
use super::lookup::{hold_at, lock_at};
use super::request::Extension;
use crate::effect::{Change, Effect, Event};
use crate::error::LockError;
use crate::ids::{HoldRef, LockIdRef};
use crate::limits::NUMBER_MAX;
use crate::lock::Lock;
use crate::mode::Mode;
use crate::store::{LockStore, Lookup};
use crate::time::Timestamp;

impl LockManager {
    /// Ends this hold, if it is one in `mode` (in any, if `None`). True if it was.
    ///
    /// # Errors
    /// [`LockError::WrongType`], [`LockError::NotServed`].
    pub fn release(
        &mut self,
        store: &mut impl LockStore,
        now: Timestamp,
        lock: LockIdRef<'_>,
        hold: HoldRef<'_>,
        mode: Option<Mode>,
    ) -> Result<bool, LockError> {
        self.open(store, now, lock.db, &[lock.name], hold.token);
        self.drop_hold(store, 0, now, lock, hold, mode)
    }

    /// Ends this hold on all these names, in whichever mode. On how many it was.
    ///
    /// # Errors
    /// [`LockError::WrongType`], [`LockError::NotServed`]: then nothing was released.
    pub fn release_all(
        &mut self,
        store: &mut impl LockStore,
        now: Timestamp,
        db: i32,
        names: &[&[u8]],
        hold: HoldRef<'_>,
    ) -> Result<usize, LockError> {
        self.open(store, now, db, names, hold.token);
        for at in 0..names.len() {
            lock_at(store, at)?;
        }
        let mut released = 0;
        for (at, name) in names.iter().enumerate() {
            let was_held = self.drop_hold(store, at, now, LockIdRef { db, name }, hold, None)?;
            released += usize::from(was_held);
        }
        Ok(released)
    }

    /// Moves the deadlines of this hold on all these names. False, and nothing changed, if it lacks one of them.
    ///
    /// # Errors
    /// [`LockError::WrongType`], [`LockError::NotServed`], [`LockError::OutOfRange`].
    pub fn extend(
        &mut self,
        store: &mut impl LockStore,
        now: Timestamp,
        db: i32,
        names: &[&[u8]],
        hold: HoldRef<'_>,
        extension: Extension,
    ) -> Result<bool, LockError> {
        let token = hold.token;
        self.open(store, now, db, names, token);
        let mut all_held = true;
        for at in 0..names.len() {
            all_held &= hold_at(store, at, hold, now)?.is_some();
        }
        if !all_held {
            return Ok(false);
        }
        let (Extension::To(ttl_ms) | Extension::AtLeastTo(ttl_ms)) = extension;
        let deadline_ms = deadline_ms(now, ttl_ms)?;
        for (at, name) in names.iter().enumerate() {
            let lock = LockIdRef { db, name };
            match extension {
                Extension::To(_) => {
                    let change = Change::Extend { token, deadline_ms };
                    self.commit(store, at, now, lock, change, Event::Extend);
                }
                Extension::AtLeastTo(_) => self.prolong(store, at, now, lock, token, deadline_ms),
            }
        }
        self.mark_all(db, names);
        Ok(true)
    }

    /// Turns the writer into a reader, with a new fence, if it is the hold that is meant. A reader is refreshed,
    /// whatever its fence. It does not end earlier for it.
    ///
    /// # Errors
    /// [`LockError::NotHeld`], [`LockError::WrongType`], [`LockError::NotServed`],
    /// [`LockError::OutOfRange`].
    pub fn downgrade(
        &mut self,
        store: &mut impl LockStore,
        now: Timestamp,
        lock: LockIdRef<'_>,
        hold: HoldRef<'_>,
        ttl_ms: u64,
    ) -> Result<u64, LockError> {
        let token = hold.token;
        self.open(store, now, lock.db, &[lock.name], token);
        let held = lock_at(store, 0)?.ok_or(LockError::NotHeld)?;
        let own = held.holder(token, now.unix_ms()).ok_or(LockError::NotHeld)?;
        let fence = match held.mode() {
            Mode::Read => {
                let (fence, deadline_ms) = (own.fence, deadline_ms(now, ttl_ms)?);
                self.prolong(store, 0, now, lock, token, deadline_ms);
                fence
            }
            Mode::Write if !hold.means(own.fence) => return Err(LockError::NotHeld),
            Mode::Write => {
                let deadline_ms = deadline_ms(now, ttl_ms)?.max(own.deadline_ms);
                let (old, meta) = (own.fence, own.meta.clone());
                let fence = self.fences.next(now).ok_or(LockError::OutOfRange)?;
                let since_ms = now.unix_ms();
                let change =
                    Change::Hold { mode: Mode::Read, token, fence, since_ms, deadline_ms, meta: &meta };
                self.commit(store, 0, now, lock, change, Event::Downgrade);
                self.ephemeral.change_fence(old, fence, lock, now.unix_ms());
                self.counters.grants += 1;
                fence
            }
        };
        self.mark_all(lock.db, &[lock.name]);
        Ok(fence)
    }

    /// Begins an operation of this token on these names. What it holds here by a connection that has closed
    /// ends first: the owner itself does not find it held, or it would refresh what is about to end.
    pub(super) fn open(
        &mut self,
        store: &mut impl LockStore,
        now: Timestamp,
        db: i32,
        names: &[&[u8]],
        token: &[u8],
    ) {
        store.open(db, names);
        if !self.ephemeral.has_work() {
            return;
        }
        for (at, name) in names.iter().enumerate() {
            let own = hold_at(store, at, HoldRef::of(token), now).ok().flatten();
            let lock = LockIdRef { db, name };
            if own.is_some_and(|own| self.ephemeral.has_ended(own.fence, lock)) {
                // It is there, as was just seen.
                let _ = self.drop_hold(store, at, now, lock, HoldRef::of(token), None);
            }
        }
    }

    /// Moves the deadline of the token's hold at this position, unless it is as late already: then nothing changes.
    pub(super) fn prolong(
        &mut self,
        store: &mut impl LockStore,
        at: usize,
        now: Timestamp,
        lock: LockIdRef<'_>,
        token: &[u8],
        deadline_ms: u64,
    ) {
        let own = hold_at(store, at, HoldRef::of(token), now).ok().flatten();
        if own.is_some_and(|own| own.deadline_ms < deadline_ms) {
            self.commit(store, at, now, lock, Change::Extend { token, deadline_ms }, Event::Extend);
        }
    }

    /// Ends this hold at this position, if it is one in `mode` (in any, if `None`). Whether it was.
    pub(super) fn drop_hold(
        &mut self,
        store: &mut impl LockStore,
        at: usize,
        now: Timestamp,
        lock: LockIdRef<'_>,
        hold: HoldRef<'_>,
        mode: Option<Mode>,
    ) -> Result<bool, LockError> {
        let held = lock_at(store, at)?.filter(|held| mode.is_none_or(|mode| mode == held.mode()));
        let Some(mode) = held.map(Lock::mode) else { return Ok(false) };
        let Some(own) = hold_at(store, at, hold, now)? else { return Ok(false) };
        let (fence, held_ms) = (own.fence, now.unix_ms().saturating_sub(own.since_ms));
        let event = if mode == Mode::Read { Event::Runlock } else { Event::Unlock };
        self.counters.holds.record(held_ms);
        self.commit(store, at, now, lock, Change::Release { token: hold.token }, event);
        self.ephemeral.end(fence, lock);
        self.counters.releases += 1;
        self.mark_all(lock.db, &[lock.name]);
        Ok(true)
    }

    /// Dates an effect and commits it. What it drops because its time was up ends with no connection any
    /// more.
    pub(super) fn commit(
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
        let queue = self.hold_changes(id, &change);
        store.commit(at, &Effect { at_ms, change }, event);
        // Who has left is noted until the next one comes: that is no harm.
        if let (Some(queue), Change::Hold { .. }) = (queue, change) {
            self.waitlist.note_holders(queue, lock_at(store, at).ok().flatten());
        }
    }
}

pub(super) fn deadline_ms(now: Timestamp, ttl_ms: u64) -> Result<u64, LockError> {
    let deadline_ms = now.unix_ms().saturating_add(ttl_ms);
    if deadline_ms <= NUMBER_MAX { Ok(deadline_ms) } else { Err(LockError::OutOfRange) }
}
