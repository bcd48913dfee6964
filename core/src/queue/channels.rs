//! Requests that are answered on channels: which stand where, and which are asked again.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::rc::Rc;

use super::{QueueId, Waiter, Waitlist};
use crate::ids::{ConnectionId, LockIdRef, RequestId, UserName};
use crate::request::{ReplyTo, Request};

impl Waitlist {
    /// The name of a channel, as the others that are answered there share it, and the tag.
    pub(super) fn destination<'a>(&self, reply_to: ReplyTo<'a>) -> (Option<Rc<[u8]>>, &'a [u8]) {
        let ReplyTo::Channel { channel, tag } = reply_to else { return (None, &[]) };
        let known = self.channels.get_key_value(channel).map(|(name, _)| name.clone());
        (Some(known.unwrap_or_else(|| channel.into())), tag)
    }

    pub(super) fn index_channel(&mut self, request: RequestId, waiter: &Waiter) {
        let Some(channel) = &waiter.channel else { return };
        self.channels.entry(channel.clone()).or_default().insert(request);
        if waiter.terms.is_ephemeral {
            self.bound.insert((waiter.terms.client, request));
        }
    }

    pub(super) fn unindex_channel(&mut self, request: RequestId, waiter: &Waiter) {
        let Some(channel) = &waiter.channel else { return };
        self.bound.remove(&(waiter.terms.client, request));
        if let Some(requests) = self.channels.get_mut(channel) {
            requests.remove(&request);
            if requests.is_empty() {
                self.channels.remove(channel);
            }
        }
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
            self.give_ups.remove(&(at_ms, request));
        }
        self.give_ups.extend(gives_up_ms.map(|at_ms| (at_ms, request)));
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
        self.channels.range::<[u8], _>((from, Bound::Unbounded)).map(|(channel, _)| channel)
    }

    /// Nobody listens to this channel any more.
    pub(crate) fn close_channel(&mut self, channel: &[u8]) {
        if let Some(requests) = self.channels.remove(channel) {
            self.unheard.push_back(requests);
        }
    }

    /// Whether there are requests of channels that nobody listens to.
    pub(crate) fn has_unheard(&self) -> bool {
        !self.unheard.is_empty()
    }

    /// The next request of a channel that nobody listens to, unless it has left or is answered elsewhere by now.
    pub(crate) fn pop_unheard(&mut self) -> Option<RequestId> {
        let requests = self.unheard.front_mut()?;
        let request = requests.pop_first();
        if requests.is_empty() {
            self.unheard.pop_front();
        }
        request
    }

    /// Whether somebody listens to the channel of this request, as far as is known. Who asks on a channel of the same
    /// name after it was closed asks on another one.
    pub(crate) fn is_heard(&self, waiter: &Waiter) -> bool {
        waiter.channel.as_ref().is_none_or(|channel| {
            self.channels.get_key_value(channel).is_some_and(|(open, _)| Rc::ptr_eq(open, channel))
        })
    }

    /// The first request that ends with this connection and is answered on a channel.
    pub(crate) fn first_bound_to(&self, connection: ConnectionId) -> Option<RequestId> {
        let all = (connection, RequestId::FIRST)..=(connection, RequestId::LAST);
        self.bound.range(all).next().map(|(_, request)| *request)
    }
}
