// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests that are answered on channels: which stand where, and which are asked again.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

use super::{Leaves, QueueId, Waiter, Waitlist};
use crate::ids::{ConnectionId, LockIdRef, RequestId, UserName};
use crate::request::{ReplyTo, Request};

impl Waitlist {
    /// The name of a channel, as the others that are answered there share it, and the tag.
    pub(super) fn destination<'a>(&self, reply_to: ReplyTo<'a>) -> (Option<Rc<[u8]>>, &'a [u8]) {
        let ReplyTo::Channel { channel, tag } = reply_to else { return (None, &[]) };
        let known = self.channels.requests.get_key_value(channel).map(|(name, _)| name.clone());
        (Some(known.unwrap_or_else(|| channel.into())), tag)
    }

    pub(super) fn index_channel(&mut self, request: RequestId, waiter: &Waiter) {
        let Some(channel) = &waiter.channel else { return };
        self.channels.requests.entry(channel.clone()).or_default().insert(request);
        if waiter.terms.is_ephemeral {
            self.channels.bound.entry(waiter.terms.client).or_default().insert(request);
        }
    }

    pub(super) fn unindex_channel(&mut self, request: RequestId, waiter: &Waiter) {
        let Some(channel) = &waiter.channel else { return };
        remove_from(&mut self.channels.requests, channel, request);
        remove_from(&mut self.channels.bound, &waiter.terms.client, request);
    }

    /// The request for the same locks, by the same token and in the same mode, that is answered on a channel.
    pub(crate) fn same_on_channel<'n>(
        &self,
        locks: impl Iterator<Item = LockIdRef<'n>>,
        new: &Request<'_>,
    ) -> Option<RequestId> {
        let token = self.token_id(new.claim.token)?;
        let queues: Option<BTreeSet<QueueId>> = locks.map(|lock| self.queue_at(lock)).collect();
        let queues = queues?;
        let is_same = |request: &RequestId| {
            let waiter = &self.waiters[request];
            waiter.channel.is_some()
                && waiter.terms.want == new.claim.terms.want
                && waiter.queues.len() == queues.len()
                && waiter.queues.iter().all(|queue| queues.contains(queue))
        };
        self.requests_of(token).find(is_same)
    }

    /// Gives a request that is answered on a channel what is new of it; its place it keeps.
    pub(crate) fn renew(
        &mut self,
        request: RequestId,
        new: &Request<'_>,
        user: UserName,
        gives_up_ms: Option<u64>,
    ) {
        let Some(mut waiter) = self.waiters.remove(&request) else { return };
        self.unindex_channel(request, &waiter);
        if let Some(at_ms) = std::mem::replace(&mut waiter.gives_up_ms, gives_up_ms) {
            self.moments.give_ups.remove(&(at_ms, request));
        }
        self.moments.give_ups.extend(gives_up_ms.map(|at_ms| (at_ms, request)));
        let user = self.add_places(user, waiter.queues.len());
        self.remove_places(&std::mem::replace(&mut waiter.user, user), waiter.queues.len());
        (waiter.terms, waiter.meta) = (new.claim.terms, new.claim.meta.map(Into::into));
        let (channel, tag) = self.destination(new.reply_to);
        (waiter.channel, waiter.tag) = (channel, tag.into());
        self.index_channel(request, &waiter);
        self.waiters.insert(request, waiter);
    }

    /// The channels on which requests are answered, in order, from after this one on.
    pub fn channels(&self, after: Option<&[u8]>) -> impl Iterator<Item = &Rc<[u8]>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.channels.requests.range::<[u8], _>((from, Bound::Unbounded)).map(|(channel, _)| channel)
    }

    /// The channel has no subscriber: its requests leave.
    pub(crate) fn close_channel(&mut self, channel: &[u8]) {
        self.channels.leaving.extend(self.channels.requests.remove(channel));
    }

    /// The connection has closed: requests that end with it leave, if they are answered on a channel.
    pub(crate) fn close_connection(&mut self, connection: ConnectionId) {
        self.channels.leaving.extend(self.channels.bound.remove(&connection));
    }

    /// Whether requests are to leave.
    pub(crate) fn has_leaving(&self) -> bool {
        !self.channels.leaving.is_empty()
    }

    /// The next request that is to leave, unless [`Waitlist::leaves`] does not say so any more.
    pub(crate) fn pop_leaving(&mut self) -> Option<RequestId> {
        let requests = self.channels.leaving.front_mut()?;
        let request = requests.pop_first();
        if requests.is_empty() {
            self.channels.leaving.pop_front();
        }
        request
    }

    /// Whether this request is to leave without a grant, and why. One that was sent again since may stay.
    pub(crate) fn leaves(&self, request: RequestId, waiter: &Waiter) -> Option<Leaves> {
        let channel = waiter.channel.as_ref()?;
        let is_in = |requests: Option<&BTreeSet<RequestId>>| {
            requests.is_some_and(|requests| requests.contains(&request))
        };
        if !is_in(self.channels.requests.get(channel)) {
            Some(Leaves::NoSubscriber)
        } else if waiter.terms.is_ephemeral && !is_in(self.channels.bound.get(&waiter.terms.client)) {
            Some(Leaves::ConnectionClosed)
        } else {
            None
        }
    }
}

fn remove_from<K: Ord + Borrow<Q>, Q: Ord + ?Sized>(
    sets: &mut BTreeMap<K, BTreeSet<RequestId>>,
    key: &Q,
    request: RequestId,
) {
    if let Some(requests) = sets.get_mut(key) {
        requests.remove(&request);
        if requests.is_empty() {
            sets.remove(key);
        }
    }
}
