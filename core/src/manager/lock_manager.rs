// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the manager keeps between operations, and what it is told.

use std::any::Any;
use std::collections::VecDeque;
use std::mem;

use super::counters::Counters;
use super::ephemeral::EphemeralHolds;
use super::operation::Open;
use super::tasks::Tasks;
use crate::error::LockError;
use crate::fence::Fences;
use crate::ids::{ConnectionId, LockIdRef, RequestId};
use crate::limits::PLACES_OF_TOKEN_MAX;
use crate::outside::LockStore;
use crate::queue::{QueueId, Waiter, Waitlist};
use crate::request::{Answer, WaitResult};
use crate::revoked_tokens::RevokedTokens;
use crate::timestamp::Timestamp;

/// How many places in queues there may be: a request for several names has one in each of them.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Of all requests that wait.
    pub places: usize,
    /// Of the requests of one user.
    pub places_of_user: usize,
    /// Of the requests of one token by one user.
    pub places_of_token: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { places: usize::MAX, places_of_user: usize::MAX, places_of_token: PLACES_OF_TOKEN_MAX }
    }
}

/// See the [module](super).
#[derive(Debug, Default)]
pub struct LockManager {
    /// The source of fences.
    pub fences: Fences,
    /// What has happened so far.
    pub counters: Counters,
    /// How many there may be.
    pub bounds: Bounds,
    /// No new hold is given before this moment of the monotonic clock, in milliseconds.
    pub(super) grace_until_ms: Option<u64>,
    pub(super) waitlist: Waitlist,
    pub(super) ephemeral: EphemeralHolds,
    pub(super) revoked_tokens: RevokedTokens,
    /// Requests that fail, because this server no longer decides, with their errors.
    pub(super) failing: VecDeque<(Waitlist, LockError)>,
    pub(super) tasks: Tasks,
    /// How waits have ended, the first that ended first.
    pub(super) answers: Vec<Answer>,
}

impl LockManager {
    /// Who waits.
    #[must_use]
    pub fn waitlist(&self) -> &Waitlist {
        &self.waitlist
    }

    /// From now on no new hold is given before this moment of the monotonic clock, in milliseconds.
    pub fn set_grace(&mut self, until_ms: Option<u64>) {
        // That it begins lets nobody in.
        let is_sooner =
            self.grace_until_ms.is_some_and(|old_ms| until_ms.is_none_or(|new_ms| new_ms < old_ms));
        self.grace_until_ms = until_ms;
        if is_sooner && !self.waitlist.is_empty() {
            self.tasks.look_at_all();
        }
    }

    /// Something happened to this key that did not go through the manager.
    pub fn key_changed(&mut self, lock: LockIdRef<'_>) {
        if let Some(queue) = self.waitlist.queue_at(lock) {
            self.signal(queue);
        }
    }

    /// The connection with which the hold with this fence, of this lock, ends, if with one.
    #[must_use]
    pub fn connection_of(&self, lock: LockIdRef<'_>, fence: u64) -> Option<ConnectionId> {
        self.ephemeral.connection_of(fence, lock)
    }

    /// Something happened to all keys of a database, or of every one, outside of the manager.
    pub fn databases_changed(&mut self) {
        if !self.waitlist.is_empty() {
            self.tasks.look_at_all();
        }
    }

    /// Two databases have changed places. EPHEMERAL holds end by their ttl from now on, as after a restart. What is
    /// forgotten is for the caller to drop if that takes more than a moment.
    #[must_use]
    pub fn databases_swapped(&mut self) -> Option<impl Any + Send + use<>> {
        self.databases_changed();
        Some(mem::take(&mut self.ephemeral)).filter(|forgotten| forgotten.len() > 1000)
    }

    /// This connection has closed. Requests that end with it leave, if they are answered on a channel. Its holds
    /// end in [`LockManager::serve_queues`], and until then count as held for everybody but their owner.
    pub fn connection_closed(&mut self, connection: ConnectionId) {
        self.ephemeral.close(connection);
        self.waitlist.close_connection(connection);
    }

    /// This server no longer decides: what becomes of holds is the primary's to say. All waits end with this error, in
    /// [`LockManager::serve_queues`] or [`LockManager::end_waits`]. What is forgotten is for the caller to drop.
    #[must_use]
    pub fn fail_waiters(&mut self, error: LockError) -> impl Any + Send + use<> {
        if !self.waitlist.is_empty() {
            self.failing.push_back((self.waitlist.take(), error));
        }
        (mem::take(&mut self.ephemeral), mem::take(&mut self.tasks))
    }

    /// Whether there is more to do after [`LockManager::fail_waiters`].
    #[must_use]
    pub fn is_failing_waiters(&self) -> bool {
        !self.failing.is_empty() || self.has_answers()
    }

    /// The channel has no subscriber: its requests leave, without an answer, in [`LockManager::serve_queues`] or
    /// [`LockManager::end_waits`].
    pub fn channel_closed(&mut self, channel: &[u8]) {
        self.waitlist.close_channel(channel);
    }

    /// How waits have ended, the first that ended first, of so many at most.
    pub fn take_answers(&mut self, most: usize) -> Vec<Answer> {
        let rest = self.answers.split_off(self.answers.len().min(most));
        mem::replace(&mut self.answers, rest)
    }

    /// Whether there are answers to take.
    #[must_use]
    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    pub(super) fn answer(&mut self, request: RequestId, waiter: Waiter, result: WaitResult) {
        let channel = waiter.channel.map(|channel| (channel, waiter.tag));
        self.answers.push(Answer { request, user: waiter.user, channel, result });
    }

    /// For how many milliseconds from now no new hold is given, if for any.
    pub(super) fn grace_left_ms(&self, now: Timestamp) -> Option<u64> {
        let left_ms = self.grace_until_ms?.saturating_sub(now.monotonic_ms());
        (left_ms > 0).then_some(left_ms)
    }

    /// Has the first request of this queue looked at. That is due where a hold begins, ends or is to end earlier, and
    /// where the first request leaves or changes: nothing else lets anybody in. A hold that is to end later is seen
    /// when the moment comes at which it would have ended.
    pub(super) fn signal(&mut self, queue: QueueId) {
        if self.waitlist.set_ready(queue, true) {
            self.tasks.ready.push_back(queue);
        }
    }

    #[inline(always)]
    pub(super) fn signal_name(&mut self, lock: LockIdRef<'_>) {
        if !self.waitlist.is_empty()
            && let Some(queue) = self.waitlist.queue_at(lock)
        {
            self.signal(queue);
        }
    }

    pub(super) fn signal_all(&mut self, open: &Open<'_, impl LockStore>) {
        if !self.waitlist.is_empty() {
            open.ids().for_each(|lock| self.signal_name(lock));
        }
    }
}
