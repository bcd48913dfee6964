//! What becomes of a hold once it is given: released, extended, downgraded, or ended with its connection.

use super::lock_manager::LockManager;
use super::lookup::{hold_at, lock_at};
use crate::effect::{Change, Effect, Event};
use crate::error::LockError;
use crate::ids::LockIdRef;
use crate::limits::NUMBER_MAX;
use crate::mode::Mode;
use crate::store::{LockStore, Lookup};
use crate::time::Timestamp;

impl LockManager {
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
        self.open(store, now, lock.db, &[lock.name], token);
        self.drop_hold(store, 0, now, lock, token, mode)
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
        self.open(store, now, db, names, token);
        for at in 0..names.len() {
            lock_at(store, at)?;
        }
        let mut released = 0;
        for (at, name) in names.iter().enumerate() {
            let was_held = self.drop_hold(store, at, now, LockIdRef { db, name }, token, None)?;
            released += usize::from(was_held);
        }
        Ok(released)
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
        self.open(store, now, db, names, token);
        let mut all_held = true;
        for at in 0..names.len() {
            all_held &= hold_at(store, at, token, now)?.is_some();
        }
        if !all_held {
            return Ok(false);
        }
        let change = Change::Extend { token, deadline_ms: deadline_ms(now, ttl_ms)? };
        for (at, name) in names.iter().enumerate() {
            self.commit(store, at, now, LockIdRef { db, name }, change, Event::Extend);
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
        self.open(store, now, lock.db, &[lock.name], token);
        let held = lock_at(store, 0)?.ok_or(LockError::NotHeld)?;
        let own = held.holder(token, now.unix_ms()).ok_or(LockError::NotHeld)?;
        let deadline_ms = deadline_ms(now, ttl_ms)?;
        let fence = match held.mode() {
            Mode::Read => {
                let fence = own.fence;
                let change = Change::Extend { token, deadline_ms };
                self.commit(store, 0, now, lock, change, Event::Extend);
                fence
            }
            Mode::Write => {
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
            let own = hold_at(store, at, token, now).ok().flatten();
            let lock = LockIdRef { db, name };
            if own.is_some_and(|own| self.ephemeral.has_ended(own.fence, lock)) {
                // It is there, as was just seen.
                let _ = self.drop_hold(store, at, now, lock, token, None);
            }
        }
    }

    /// Ends the hold of `token` at this position, if it has one in `mode` (in any, if `None`). Whether it had.
    pub(super) fn drop_hold(
        &mut self,
        store: &mut impl LockStore,
        at: usize,
        now: Timestamp,
        lock: LockIdRef<'_>,
        token: &[u8],
        mode: Option<Mode>,
    ) -> Result<bool, LockError> {
        let held = lock_at(store, at)?.filter(|held| mode.is_none_or(|mode| mode == held.mode()));
        let own = held.and_then(|held| Some((held.mode(), held.holder(token, now.unix_ms())?)));
        let Some((mode, own)) = own else { return Ok(false) };
        let (fence, held_ms) = (own.fence, now.unix_ms().saturating_sub(own.since_ms));
        let event = if mode == Mode::Read { Event::Runlock } else { Event::Unlock };
        self.counters.holds.record(held_ms);
        self.commit(store, at, now, lock, Change::Release { token }, event);
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
        self.hold_changes(id, &change);
        store.commit(at, &Effect { at_ms, change }, event);
        if !self.waitlist.is_empty()
            && let Some(queue) = self.waitlist.queue_at(id)
        {
            self.waitlist.note_holders(queue, lock_at(store, at).ok().flatten());
        }
    }
}

pub(super) fn deadline_ms(now: Timestamp, ttl_ms: u64) -> Result<u64, LockError> {
    let deadline_ms = now.unix_ms().saturating_add(ttl_ms);
    if deadline_ms <= NUMBER_MAX { Ok(deadline_ms) } else { Err(LockError::OutOfRange) }
}
