//! The end of an acquisition, whatever has become of it: its requests are withdrawn, its holds are released, and what it
//! sent earlier and arrives later is refused.

use std::iter;

use super::lock_manager::LockManager;
use super::operation::{Open, Operation};
use crate::error::LockError;
use crate::ids::{HoldRef, LockIdRef, RequestId};
use crate::request::WaitResult;
use crate::revoked_tokens::RevokedTokens;
use crate::store::LockStore;
use crate::time::Timestamp;

impl LockManager {
    /// Ends all that the token wants of these locks, and revokes it there for `ms`. On how many of them it held, now or
    /// when an earlier copy of the command ended it, while the token was revoked.
    ///
    /// # Errors
    /// [`LockError::WrongType`], [`LockError::NotServed`]: then nothing has changed.
    pub fn end(
        &mut self,
        operation: Operation<'_, impl LockStore>,
        token: &[u8],
        ms: u64,
    ) -> Result<usize, LockError> {
        let mut open = self.open(operation, token);
        for at in 0..open.len() {
            open.lock(at)?;
        }
        self.withdraw_all(open.ids(), token);
        let mut released = 0;
        for at in 0..open.len() {
            let is_released = self.drop_hold(&mut open, at, HoldRef::of(token), None)?;
            let counts = self.revoked_tokens.revoke(open.id(at), token, open.now(), ms, is_released);
            released += usize::from(counts);
        }
        Ok(released)
    }

    /// Revokes the token for this lock, and cancels its requests there.
    pub fn cancel_and_revoke(&mut self, now: Timestamp, lock: LockIdRef<'_>, token: &[u8], ms: u64) -> usize {
        self.revoked_tokens.revoke(lock, token, now, ms, false);
        self.cancel(lock, token)
    }

    /// Cancels each request of `token` for this lock, alone or among others. How many there were.
    pub fn cancel(&mut self, lock: LockIdRef<'_>, token: &[u8]) -> usize {
        self.withdraw_all(iter::once(lock), token)
    }

    /// The revoked tokens.
    #[must_use]
    pub fn revoked_tokens(&self) -> &RevokedTokens {
        &self.revoked_tokens
    }

    /// Refuses a request that is no refresh if its token is revoked for one of its names.
    pub(super) fn check_not_revoked(
        &mut self,
        open: &Open<'_, impl LockStore>,
        token: &[u8],
    ) -> Result<(), LockError> {
        let left_ms = |lock| self.revoked_tokens.left_ms(lock, token, open.now());
        let Some(left_ms) = open.ids().filter_map(left_ms).max() else { return Ok(()) };
        self.counters.revoked_requests += 1;
        Err(LockError::Revoked(left_ms))
    }

    /// Cancels each request of `token` for these locks, alone or among others: from now on it is not granted, and its
    /// wait ends as if its time had run out. How many there were. They leave their queues at once if they stand in
    /// few, else in slices.
    fn withdraw_all<'n>(&mut self, locks: impl Iterator<Item = LockIdRef<'n>>, token: &[u8]) -> usize {
        if self.waitlist.is_empty() {
            return 0;
        }
        let mut count = 0;
        for lock in locks {
            let Some(queue) = self.waitlist.queue_at(lock) else { continue };
            let requests: Vec<RequestId> = self.waitlist.of_token_at(queue, token, None).collect();
            count += requests.into_iter().filter(|request| self.waitlist.cancel(*request)).count();
        }
        self.counters.cancels += count as u64;
        let mut left = self.bounds.left_at_once;
        while let Some(request) = self.waitlist.first_cancelled()
            && let Some(waiter) = self.waitlist.get(request)
            && let Some(rest) = left.checked_sub(waiter.queues.len())
        {
            left = rest;
            self.withdraw(request);
        }
        count
    }

    /// Takes a request out of its queues that was cancelled, or whose connection has closed, and answers it.
    pub(super) fn withdraw(&mut self, request: RequestId) {
        if let Some(waiter) = self.leave(request) {
            self.answer(request, waiter, WaitResult::TimedOut);
        }
    }
}
