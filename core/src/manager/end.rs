// SPDX-License-Identifier: MIT OR Apache-2.0

//! The end of an acquisition, whatever has become of it: its requests are withdrawn, its holds are released, and what
//! it sent earlier and arrives later is refused.

use std::collections::BTreeSet;
use std::iter;

use super::lock_manager::LockManager;
use super::operation::{Open, Operation};
use crate::error::LockError;
use crate::ids::{HoldRef, LockIdRef, RequestId};
use crate::outside::LockStore;
use crate::queue::QueueId;
use crate::request::WaitResult;
use crate::revoked_tokens::RevokedTokens;

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

    /// Cancels each request of `token` for these locks, alone or among others: its wait ends as if its time had run
    /// out. How many there were.
    fn withdraw_all<'n>(&mut self, locks: impl Iterator<Item = LockIdRef<'n>>, token: &[u8]) -> usize {
        let Some(own) = self.waitlist.token_id(token) else { return 0 };
        let queues: BTreeSet<QueueId> = locks.filter_map(|lock| self.waitlist.queue_at(lock)).collect();
        let of_token = self.waitlist.requests_of(own);
        let stands_there = |request: &RequestId| {
            let waiter = self.waitlist.get(*request);
            waiter.is_some_and(|waiter| waiter.queues.iter().any(|queue| queues.contains(queue)))
        };
        let requests: Vec<RequestId> = of_token.filter(stands_there).collect();
        self.counters.cancels += requests.len() as u64;
        requests.iter().for_each(|request| self.withdraw(*request));
        requests.len()
    }

    /// Takes a request out of its queues that was cancelled, or whose connection has closed, and answers it.
    pub(super) fn withdraw(&mut self, request: RequestId) {
        if let Some(waiter) = self.leave(request) {
            self.answer(request, waiter, WaitResult::TimedOut);
        }
    }
}
