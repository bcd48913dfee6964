// SPDX-License-Identifier: MIT OR Apache-2.0

//! What becomes of a hold once it is given: released, extended, downgraded, or ended with its connection.

use super::lock_manager::LockManager;
use super::operation::{Open, Operation};
use crate::effect::{Change, Effect, Event};
use crate::error::LockError;
use crate::ids::HoldRef;
use crate::limits::NUMBER_MAX;
use crate::mode::Mode;
use crate::outside::LockStore;
use crate::request::Extension;
use crate::timestamp::Timestamp;

impl LockManager {
    /// Ends this hold, if it is one in `mode` (in any, if `None`). On how many of the locks it was.
    ///
    /// # Errors
    /// [`LockError::WrongType`], [`LockError::NotServed`]: then nothing was released.
    pub fn release(
        &mut self,
        operation: Operation<'_, impl LockStore>,
        hold: HoldRef<'_>,
        mode: Option<Mode>,
    ) -> Result<usize, LockError> {
        let mut open = self.open(operation, hold.token);
        for at in 0..open.len() {
            open.lock(at)?;
        }
        let mut released = 0;
        for at in 0..open.len() {
            released += usize::from(self.drop_hold(&mut open, at, hold, mode)?);
        }
        Ok(released)
    }

    /// Moves the deadlines of this hold on all the locks. False, and nothing changed, if it lacks one of them.
    ///
    /// # Errors
    /// [`LockError::WrongType`], [`LockError::NotServed`], [`LockError::OutOfRange`].
    pub fn extend(
        &mut self,
        operation: Operation<'_, impl LockStore>,
        hold: HoldRef<'_>,
        extension: Extension,
    ) -> Result<bool, LockError> {
        let token = hold.token;
        let mut open = self.open(operation, token);
        let mut all_held = true;
        for at in 0..open.len() {
            all_held &= open.hold(at, hold)?.is_some();
        }
        if !all_held {
            return Ok(false);
        }
        let (Extension::To(ttl_ms) | Extension::AtLeastTo(ttl_ms)) = extension;
        let deadline_ms = deadline_ms(open.now(), ttl_ms)?;
        for at in 0..open.len() {
            match extension {
                Extension::To(_) => {
                    self.commit(&mut open, at, Change::Extend { token, deadline_ms }, Event::Extend);
                    self.signal_name(open.id(at));
                }
                Extension::AtLeastTo(_) => self.prolong(&mut open, at, token, deadline_ms),
            }
        }
        Ok(true)
    }

    /// Turns the writer of the one lock into a reader, with a new fence, if it is the hold that is meant. A reader is
    /// refreshed, whatever its fence. It does not end earlier for it.
    ///
    /// # Errors
    /// [`LockError::NotHeld`], [`LockError::WrongType`], [`LockError::NotServed`],
    /// [`LockError::OutOfRange`].
    pub fn downgrade(
        &mut self,
        operation: Operation<'_, impl LockStore>,
        hold: HoldRef<'_>,
        ttl_ms: u64,
    ) -> Result<u64, LockError> {
        let token = hold.token;
        let mut open = self.open(operation, token);
        let now = open.now();
        let held = open.lock(0)?.ok_or(LockError::NotHeld)?;
        let own = held.holder(token, now.unix_ms()).ok_or(LockError::NotHeld)?;
        let fence = match held.mode() {
            Mode::Read => {
                let (fence, deadline_ms) = (own.fence, deadline_ms(now, ttl_ms)?);
                self.prolong(&mut open, 0, token, deadline_ms);
                fence
            }
            Mode::Write if !hold.means(own.fence) => return Err(LockError::NotHeld),
            Mode::Write => {
                let deadline_ms = deadline_ms(now, ttl_ms)?.max(own.deadline_ms);
                let (old, meta) = (own.fence, own.meta().to_vec());
                let fence = self.fences.next(now).ok_or(LockError::OutOfRange)?;
                let since_ms = now.unix_ms();
                let change =
                    Change::Hold { mode: Mode::Read, token, fence, since_ms, deadline_ms, meta: &meta };
                self.commit(&mut open, 0, change, Event::Downgrade);
                self.ephemeral.change_fence(old, fence, open.id(0), now.unix_ms());
                self.counters.grants += 1;
                self.signal_all(&open);
                fence
            }
        };
        Ok(fence)
    }

    /// Begins an operation of this token. What it holds here by a connection that has closed ends first: the owner
    /// itself does not find it held, or it would refresh what is about to end.
    #[inline(always)]
    pub(super) fn open<'a, S: LockStore>(
        &mut self,
        operation: Operation<'a, S>,
        token: &[u8],
    ) -> Open<'a, S> {
        let mut open = Open::new(operation);
        if self.ephemeral.has_closed() {
            self.end_own_of_closed(&mut open, token);
        }
        open
    }

    #[cold]
    fn end_own_of_closed(&mut self, open: &mut Open<'_, impl LockStore>, token: &[u8]) {
        for at in 0..open.len() {
            let own = open.hold(at, HoldRef::of(token)).ok().flatten();
            if own.is_some_and(|own| self.ephemeral.has_ended(own.fence, open.id(at))) {
                // It is there, as was just seen.
                let _ = self.drop_hold(open, at, HoldRef::of(token), None);
            }
        }
    }

    /// Moves the deadline of the token's hold at this position, unless it is as late already: then nothing changes.
    pub(super) fn prolong(
        &mut self,
        open: &mut Open<'_, impl LockStore>,
        at: usize,
        token: &[u8],
        deadline_ms: u64,
    ) {
        let own = open.hold(at, HoldRef::of(token)).ok().flatten();
        if own.is_some_and(|own| own.deadline_ms < deadline_ms) {
            self.commit(open, at, Change::Extend { token, deadline_ms }, Event::Extend);
        }
    }

    /// Ends this hold at this position, if it is one in `mode` (in any, if `None`). Whether it was.
    #[inline(always)]
    pub(super) fn drop_hold(
        &mut self,
        open: &mut Open<'_, impl LockStore>,
        at: usize,
        hold: HoldRef<'_>,
        mode: Option<Mode>,
    ) -> Result<bool, LockError> {
        let now_ms = open.now().unix_ms();
        let Some(lock) = open.lock(at)? else { return Ok(false) };
        if mode.is_some_and(|mode| mode != lock.mode()) {
            return Ok(false);
        }
        let Some(own) = lock.holder(hold.token, now_ms).filter(|own| hold.means(own.fence)) else {
            return Ok(false);
        };
        let (fence, held_ms) = (own.fence, now_ms.saturating_sub(own.since_ms()));
        let event = if lock.mode() == Mode::Read { Event::Runlock } else { Event::Unlock };
        self.counters.holds.record(held_ms);
        self.commit(open, at, Change::Release { token: hold.token }, event);
        self.ephemeral.end(fence, open.id(at));
        self.counters.releases += 1;
        self.signal_name(open.id(at));
        Ok(true)
    }

    /// Commits an effect. What it drops because its time was up ends with no connection any more.
    #[inline(always)]
    pub(super) fn commit(
        &mut self,
        open: &mut Open<'_, impl LockStore>,
        at: usize,
        change: Change<'_>,
        event: Event,
    ) {
        let effect = Effect { at_ms: open.now().unix_ms(), change };
        if self.ephemeral.len() > 0
            && let Ok(Some(lock)) = open.lock(at)
        {
            lock.to_drop(effect.at_ms).for_each(|gone| self.ephemeral.end(gone.fence, open.id(at)));
        }
        open.store().commit(at, &effect, event);
    }
}

pub(super) fn deadline_ms(now: Timestamp, ttl_ms: u64) -> Result<u64, LockError> {
    let deadline_ms = now.unix_ms().saturating_add(ttl_ms);
    if deadline_ms <= NUMBER_MAX { Ok(deadline_ms) } else { Err(LockError::OutOfRange) }
}
