// SPDX-License-Identifier: MIT OR Apache-2.0

//! The requests that wait, in order of arrival.
//!
//! A queue belongs to a name, not to a lock: it exists while somebody waits there, whether or not
//! the key does. One request may stand in many queues, one for each name it asks for. Its
//! [`RequestId`], drawn from one counter for the whole server, is its place in all of them, so that
//! two requests that share two names stand in the same order in both and can never wait for each
//! other.
//!
//! # Fairness
//!
//! Requests leave from the front, in order of arrival, and a request that comes while a queue is not
//! empty goes behind it. Only a waiting upgrade stands before the others: it reads already, so nobody
//! behind it could be served before it anyway. So neither readers nor writers starve. (Strict FIFO
//! hand-off is what tokio's `batch_semaphore` does and what parking_lot calls a fair unlock.)
//!
//! This module keeps the order and the look-up tables, each step in logarithmic time. Tables are trees,
//! which grow by a node at a time: no request pays for the growth of a table. (Only the list of those that leave
//! is in one piece: it has 24 bytes for each channel or connection.) It decides nothing; `manager` does.

mod channels;
mod one_queue;
mod places;
mod tables;

#[cfg(test)]
#[path = "../tests/waitlist_described.rs"]
pub(crate) mod describe;
#[cfg(test)]
#[path = "../tests/waitlist_invariants.rs"]
mod invariants;

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::mem;
use std::ops::Bound;
use std::rc::Rc;

use smallvec::SmallVec;

use crate::ids::{LockId, LockIdRef, RequestId, UserName};
use crate::limits::NAMES_MAX;
use crate::mode::{Mode, Want};
use crate::request::{Claim, Request, Terms};

pub(crate) use one_queue::Queue;
use tables::{Channels, Moments, Places};
pub(crate) use tables::{Leaves, QueueId, TokenId};

/// A request that waits.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// The database of the locks asked for.
    pub db: i32,
    /// Who asks.
    pub token: Rc<[u8]>,
    /// The metadata of the hold, if the request brought any.
    pub meta: Option<Box<[u8]>>,
    /// What is wanted.
    pub terms: Terms,
    /// The user. All requests of a user share the name.
    pub user: UserName,
    /// The channel on which it is answered, if not its client is.
    pub channel: Option<Rc<[u8]>>,
    /// What it is known by on the channel.
    pub tag: Box<[u8]>,
    /// When the request came, on the monotonic clock.
    pub arrived_ms: u64,
    /// When it stops waiting, on the monotonic clock; `None` for never.
    pub gives_up_ms: Option<u64>,
    /// The queues of the locks asked for, in the order of the request; all or none is granted.
    pub(crate) queues: Box<[QueueId]>,
}

impl Waiter {
    pub(crate) fn token_id(&self) -> TokenId {
        TokenId::of(&self.token)
    }

    /// What it asks for.
    pub(crate) fn claim(&self) -> Claim<'_> {
        Claim { token: &self.token, meta: self.meta.as_deref(), terms: self.terms }
    }

    /// Whether readers can be served beside it: it asks for one lock, for read.
    pub(crate) fn is_lone_reader(&self) -> bool {
        self.terms.want == Want::Hold(Mode::Read) && self.queues.len() == 1
    }

    pub(crate) fn wants_write(&self) -> bool {
        self.terms.want != Want::Hold(Mode::Read)
    }

    /// Whether it asks for several locks.
    pub(crate) fn is_for_many(&self) -> bool {
        self.queues.len() > 1
    }
}

/// Who waits for one lock, in short.
#[derive(Debug)]
pub struct QueueSummary<'a> {
    /// Where a list goes on behind it.
    pub cursor: u64,
    /// The lock.
    pub lock: LockIdRef<'a>,
    /// How many wait.
    pub waiters: usize,
    /// Of them, how many want to write.
    pub writers: usize,
    /// Since when the one that has waited longest waits, on the monotonic clock.
    pub longest_since_ms: u64,
    /// Who is next.
    pub next: &'a [u8],
}

/// All requests that wait on this server.
#[derive(Debug, Default)]
pub struct Waitlist {
    waiters: BTreeMap<RequestId, Box<Waiter>>,
    queues: BTreeMap<QueueId, Box<Queue>>,
    /// By database and name.
    queue_ids: BTreeMap<i32, BTreeMap<Rc<[u8]>, QueueId>>,
    /// Each token, while any of its requests waits (a map, because a set cannot find and add in one step),
    tokens: BTreeMap<Rc<[u8]>, ()>,
    /// and these requests.
    by_token: BTreeSet<(TokenId, RequestId)>,
    moments: Moments,
    /// Each queue with the request that has waited there longest, by database.
    longest: BTreeMap<i32, BTreeSet<(RequestId, QueueId)>>,
    channels: Channels,
    places: Places,
    /// How many numbers of requests and queues were given.
    drawn: u64,
}

impl Waitlist {
    /// How many requests wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Since when the request waits that has waited longest, on the monotonic clock.
    #[must_use]
    pub fn oldest_since_ms(&self) -> Option<u64> {
        self.waiters.first_key_value().map(|(_, waiter)| waiter.arrived_ms)
    }

    /// The request with this number, while it waits.
    #[must_use]
    pub fn get(&self, request: RequestId) -> Option<&Waiter> {
        self.waiters.get(&request).map(|waiter| &**waiter)
    }

    /// How many wait for this lock.
    #[must_use]
    pub fn len_at(&self, lock: LockIdRef<'_>) -> usize {
        self.queue_at(lock).map_or(0, |queue| self.queues[&queue].len())
    }

    /// Those who wait for this lock, the next to be served first.
    pub fn at<'a>(&'a self, lock: LockIdRef<'_>) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        let queue = self.queue_at(lock).map(|queue| &self.queues[&queue]);
        queue.into_iter().flat_map(|queue| queue.iter()).map(|request| &*self.waiters[&request])
    }

    /// The names that this request asks for.
    pub(crate) fn names_of<'a>(&'a self, waiter: &'a Waiter) -> impl Iterator<Item = &'a Rc<[u8]>> {
        waiter.queues.iter().map(|queue| &self.queues[queue].lock.name)
    }

    pub(crate) fn first_request(&self) -> Option<RequestId> {
        self.waiters.first_key_value().map(|(request, _)| *request)
    }

    /// Takes all requests out at once, with their queues. The numbers go on.
    pub(crate) fn take(&mut self) -> Self {
        let drawn = self.drawn;
        mem::replace(self, Self { drawn, ..Self::default() })
    }

    /// The queue of this lock, if anybody waits for it.
    pub(crate) fn queue_at(&self, lock: LockIdRef<'_>) -> Option<QueueId> {
        self.queue_ids.get(&lock.db)?.get(lock.name).copied()
    }

    /// The lock that this queue is for, while anybody waits there.
    pub(crate) fn lock_of(&self, queue: QueueId) -> Option<&LockId> {
        self.queues.get(&queue).map(|queue| &queue.lock)
    }

    pub(crate) fn front(&self, queue: QueueId) -> Option<RequestId> {
        self.queues.get(&queue).and_then(|queue| queue.front())
    }

    /// The queues after this one, in the order in which they came into being.
    pub(crate) fn queues_after(&self, after: Option<QueueId>) -> impl Iterator<Item = (QueueId, &Queue)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.queues.range((from, Bound::Unbounded)).map(|(id, queue)| (*id, &**queue))
    }

    /// Puts a request at the end of every queue it asks for, or before them if it is an upgrade.
    pub(crate) fn push<'n>(
        &mut self,
        locks: impl Iterator<Item = LockIdRef<'n>>,
        new: &Request<'_>,
        user: UserName,
        arrived_ms: u64,
        gives_up_ms: Option<u64>,
    ) -> RequestId {
        let (request, claim) = (RequestId(self.draw()), new.claim);
        let entry = self.tokens.entry(claim.token.into());
        let (token, waits) = (entry.key().clone(), matches!(entry, Entry::Occupied(_)));
        entry.or_default();
        let older = waits.then(|| self.requests_of(TokenId::of(&token)).take(2));
        let older: SmallVec<[RequestId; 2]> = older.into_iter().flatten().collect();
        self.by_token.insert((TokenId::of(&token), request));
        let mut db = 0;
        let queues: Box<[QueueId]> = locks
            .map(|lock| {
                db = lock.db;
                self.queue_for(lock)
            })
            .collect();
        for id in &queues {
            if let Some(queue) = self.queues.get_mut(id) {
                if queue.is_empty() {
                    self.longest.entry(db).or_default().insert((request, *id));
                }
                queue.push(request, claim.terms.want);
            }
        }
        if let Some(at_ms) = gives_up_ms {
            self.moments.give_ups.insert((at_ms, request));
        }
        let (channel, tag) = self.destination(new.reply_to);
        let is_for_many = queues.len() > 1;
        let waiter = Waiter {
            db,
            token,
            meta: claim.meta.map(Into::into),
            terms: claim.terms,
            user: self.add_places(user, queues.len()),
            channel,
            tag: tag.into(),
            arrived_ms,
            gives_up_ms,
            queues,
        };
        self.index_channel(request, &waiter);
        self.waiters.insert(request, Box::new(waiter));
        if !older.is_empty() || is_for_many {
            self.set_multi_queue(request);
        }
        // The second request of a token makes the first one multi-queue; further ones find it so.
        if let [first] = older[..] {
            self.set_multi_queue(first);
        }
        request
    }

    /// Takes a request out of every queue it stands in. The queues are those it stood in; they may be gone.
    pub(crate) fn remove(&mut self, request: RequestId) -> Option<Waiter> {
        let waiter = *self.waiters.remove(&request)?;
        let mut is_multi_queue = false;
        for id in &waiter.queues {
            let Some(queue) = self.queues.get_mut(id) else { continue };
            is_multi_queue |= queue.remove(request, waiter.terms.want, waiter.token_id());
            if let Some(of_db) = self.longest.get_mut(&waiter.db)
                && of_db.remove(&(request, *id))
            {
                of_db.extend(queue.longest().map(|request| (request, *id)));
                if of_db.is_empty() {
                    self.longest.remove(&waiter.db);
                }
            }
            if queue.is_empty() {
                self.remove_queue(*id);
            }
        }
        self.unindex_channel(request, &waiter);
        if let Some(at_ms) = waiter.gives_up_ms {
            self.moments.give_ups.remove(&(at_ms, request));
        }
        self.by_token.remove(&(waiter.token_id(), request));
        // One of several requests of a token is a multi-queue one.
        let rest = is_multi_queue.then(|| self.requests_of(waiter.token_id()).take(2));
        let rest: SmallVec<[RequestId; 2]> = rest.into_iter().flatten().collect();
        match rest[..] {
            [] => drop(self.tokens.remove(&waiter.token)),
            [last] => self.set_multi_queue(last),
            _ => {}
        }
        self.remove_places(&waiter.user, waiter.queues.len());
        Some(waiter)
    }

    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    fn queue_for(&mut self, lock: LockIdRef<'_>) -> QueueId {
        if let Some(queue) = self.queue_at(lock) {
            return queue;
        }
        let (id, lock) = (QueueId(self.draw()), LockId::from(lock));
        self.queue_ids.entry(lock.db).or_default().insert(lock.name.clone(), id);
        self.queues.insert(id, Box::new(Queue::new(lock)));
        id
    }

    fn remove_queue(&mut self, id: QueueId) {
        let Some(queue) = self.queues.remove(&id) else { return };
        if let Some(at_ms) = queue.wake_ms {
            self.moments.wakes.remove(&(at_ms, id));
        }
        if let Some(of_db) = self.queue_ids.get_mut(&queue.lock.db) {
            of_db.remove(&queue.lock.name);
            if of_db.is_empty() {
                self.queue_ids.remove(&queue.lock.db);
            }
        }
    }

    /// Says when the first in this queue may be let in by the passing of time alone: in Unix milliseconds.
    pub(crate) fn set_wake(&mut self, id: QueueId, at_ms: Option<u64>) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if queue.wake_ms == at_ms {
            return;
        }
        if let Some(old_ms) = queue.wake_ms {
            self.moments.wakes.remove(&(old_ms, id));
        }
        if let Some(new_ms) = at_ms {
            self.moments.wakes.insert((new_ms, id));
        }
        queue.wake_ms = at_ms;
    }

    /// Notes whether the first in a queue has to be looked at. False if nobody waits there or it was noted already.
    pub(crate) fn set_ready(&mut self, id: QueueId, is_ready: bool) -> bool {
        let Some(queue) = self.queues.get_mut(&id) else { return false };
        mem::replace(&mut queue.is_ready, is_ready) != is_ready
    }

    /// When the passing of time may next let somebody in, in Unix milliseconds.
    pub(crate) fn next_wake_ms(&self) -> Option<u64> {
        self.moments.wakes.first().map(|(at_ms, _)| *at_ms)
    }

    /// When the next request gives up, on the monotonic clock.
    pub(crate) fn next_give_up_ms(&self) -> Option<u64> {
        self.moments.give_ups.first().map(|(at_ms, _)| *at_ms)
    }

    pub(crate) fn pop_wake(&mut self, now_unix_ms: u64) -> Option<QueueId> {
        let (at_ms, id) = *self.moments.wakes.first()?;
        if at_ms > now_unix_ms {
            return None;
        }
        self.moments.wakes.pop_first();
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.wake_ms = None;
        }
        Some(id)
    }

    pub(crate) fn next_give_up(&self, now_monotonic_ms: u64) -> Option<RequestId> {
        self.moments
            .give_ups
            .first()
            .filter(|(at_ms, _)| *at_ms <= now_monotonic_ms)
            .map(|(_, request)| *request)
    }

    /// The queues of this database, the one with the longest wait first: those after a cursor, which is 0 or that of a
    /// queue that was listed before. A queue that exists all the time is listed, whatever becomes of others meanwhile:
    /// its longest wait is never that of an earlier request than before.
    pub fn queues_by_longest_wait(&self, db: i32, after: u64) -> impl Iterator<Item = QueueSummary<'_>> {
        // A cursor is a request, and how many of the queues were listed in which that one has waited longest.
        const REQUEST: u64 = NAMES_MAX as u64 + 1;
        let from = (RequestId(after / REQUEST), QueueId::FIRST);
        let (mut request, mut nth) = (RequestId::FIRST, 0);
        let rest = self.longest.get(&db).into_iter().flat_map(move |of_db| of_db.range(from..));
        let numbered = rest.map(move |(longest, id)| {
            nth = if *longest == request { nth + 1 } else { 1 };
            request = *longest;
            (longest, id, longest.0 * REQUEST + nth)
        });
        numbered.skip_while(move |(.., cursor)| *cursor <= after).filter_map(|(longest, id, cursor)| {
            let queue = self.queues.get(id)?;
            Some(QueueSummary {
                cursor,
                lock: queue.lock.as_ref(),
                waiters: queue.len(),
                writers: queue.writers_len(),
                longest_since_ms: self.get(*longest)?.arrived_ms,
                next: &self.get(queue.front()?)?.token,
            })
        })
    }

    /// The requests of this token that stand in this queue, the oldest first.
    pub(crate) fn of_token_at(
        &self,
        id: QueueId,
        token: TokenId,
    ) -> impl Iterator<Item = RequestId> + use<'_> {
        // Where a token has several requests, each is found in each of its queues.
        let mut own = self.requests_of(token);
        let (first, second) = (own.next(), own.next());
        let several = second.and_then(|_| self.queues.get(&id)).map(|queue| queue.multi_queue_of(token));
        let only = first.filter(|first| second.is_none() && self.waiters[first].queues.contains(&id));
        several.into_iter().flatten().chain(only)
    }

    /// How many tokens have requests that wait.
    pub(crate) fn tokens_len(&self) -> usize {
        self.tokens.len()
    }

    /// The tokens after this one, in their order; all if none is given.
    pub(crate) fn tokens_after(&self, after: Option<&[u8]>) -> impl Iterator<Item = &Rc<[u8]>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.tokens.range::<[u8], _>((from, Bound::Unbounded)).map(|(token, ())| token)
    }

    /// This token as it is kept here, if any request of it waits.
    pub(crate) fn token(&self, token: &[u8]) -> Option<&Rc<[u8]>> {
        self.tokens.get_key_value(token).map(|(token, ())| token)
    }

    /// Whether this token has several requests.
    pub(crate) fn has_several(&self, token: TokenId) -> bool {
        self.requests_of(token).nth(1).is_some()
    }

    /// The requests of this token, the oldest first.
    pub(crate) fn requests_of(&self, token: TokenId) -> impl Iterator<Item = RequestId> + '_ {
        let all = (token, RequestId::FIRST)..=(token, RequestId::LAST);
        self.by_token.range(all).map(|(_, request)| *request)
    }

    pub(crate) fn token_id(&self, token: &[u8]) -> Option<TokenId> {
        self.token(token).map(TokenId::of)
    }

    pub(crate) fn queue(&self, queue: QueueId) -> Option<&Queue> {
        self.queues.get(&queue).map(|queue| &**queue)
    }

    /// Marks a request, in each of its queues, as leading out of them or not.
    fn set_multi_queue(&mut self, request: RequestId) {
        let Some(waiter) = self.waiters.get(&request) else { return };
        let token = waiter.token_id();
        let is_multi_queue = waiter.is_for_many() || self.has_several(token);
        for id in &waiter.queues {
            if let Some(queue) = self.queues.get_mut(id) {
                queue.set_multi_queue(request, token, is_multi_queue);
            }
        }
    }
}
