// SPDX-License-Identifier: MIT OR Apache-2.0

//! One lock's queue.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use super::tables::TokenId;
use crate::ids::{LockId, RequestId};
use crate::mode::{Mode, Want};

/// One lock's queue, never empty.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) lock: LockId,
    /// Waiting upgrades, before everybody else. All of one token: a second token's is a deadlock.
    upgrades: BTreeSet<RequestId>,
    /// Of everybody else, those that want to write,
    writers: BTreeSet<RequestId>,
    /// and those that want to read.
    readers: BTreeSet<RequestId>,
    /// Of all, those through which waiting can lead out of this queue: they ask for several locks, or
    /// their token waits in another request too. The search for deadlocks looks at no others.
    multi_queue: BTreeMap<RequestId, TokenId>,
    /// The same by token.
    multi_queue_by_token: BTreeSet<(TokenId, RequestId)>,
    /// When the first in the queue may be let in by the mere passing of time, in Unix milliseconds.
    pub(super) wake_ms: Option<u64>,
    /// Whether something has changed since the first in the queue was looked at.
    pub(super) is_ready: bool,
}

impl Queue {
    pub(super) fn new(lock: LockId) -> Self {
        Self {
            lock,
            upgrades: BTreeSet::new(),
            writers: BTreeSet::new(),
            readers: BTreeSet::new(),
            multi_queue: BTreeMap::new(),
            multi_queue_by_token: BTreeSet::new(),
            wake_ms: None,
            is_ready: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.upgrades.is_empty() && self.writers.is_empty() && self.readers.is_empty()
    }

    pub(super) fn front(&self) -> Option<RequestId> {
        self.upgrades.first().copied().or_else(|| self.first_arrival())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = RequestId> + '_ {
        let (mut writers, mut readers) = (self.writers.iter().peekable(), self.readers.iter().peekable());
        let arrivals = iter::from_fn(move || match (writers.peek(), readers.peek()) {
            (Some(writer), Some(reader)) if writer < reader => writers.next(),
            (_, Some(_)) => readers.next(),
            (_, None) => writers.next(),
        });
        self.upgrades.iter().chain(arrivals).copied()
    }

    fn first_arrival(&self) -> Option<RequestId> {
        self.writers.first().into_iter().chain(self.readers.first()).min().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.upgrades.len() + self.writers.len() + self.readers.len()
    }

    pub(super) fn push(&mut self, request: RequestId, want: Want) {
        self.those_who(want).insert(request);
    }

    /// Whether it was a multi-queue request.
    pub(super) fn remove(&mut self, request: RequestId, want: Want, token: TokenId) -> bool {
        self.those_who(want).remove(&request);
        self.set_multi_queue(request, token, false)
    }

    fn those_who(&mut self, want: Want) -> &mut BTreeSet<RequestId> {
        match want {
            Want::Upgrade => &mut self.upgrades,
            Want::Hold(Mode::Write) => &mut self.writers,
            Want::Hold(Mode::Read) => &mut self.readers,
        }
    }

    /// Whether it was one.
    pub(super) fn set_multi_queue(
        &mut self,
        request: RequestId,
        token: TokenId,
        is_multi_queue: bool,
    ) -> bool {
        if is_multi_queue {
            self.multi_queue_by_token.insert((token, request));
            self.multi_queue.insert(request, token).is_some()
        } else {
            let was_one = self.multi_queue.remove(&request).is_some();
            was_one && self.multi_queue_by_token.remove(&(token, request))
        }
    }

    pub(super) fn writers_len(&self) -> usize {
        self.upgrades.len() + self.writers.len()
    }

    /// The request that has waited here longest.
    pub(super) fn longest(&self) -> Option<RequestId> {
        self.upgrades.first().copied().into_iter().chain(self.first_arrival()).min()
    }

    /// Those of them that are of this token.
    pub(crate) fn multi_queue_of(&self, token: TokenId) -> impl Iterator<Item = RequestId> + use<'_> {
        let all = (token, RequestId::FIRST)..=(token, RequestId::LAST);
        self.multi_queue_by_token.range(all).map(|(_, request)| *request)
    }

    /// A waiting upgrade. All are of one token.
    pub(crate) fn upgrade(&self) -> Option<RequestId> {
        self.upgrades.first().copied()
    }

    /// Whether another multi-queue request of this token is served before this one of its.
    pub(crate) fn has_own_ahead(&self, token: TokenId, request: RequestId) -> bool {
        let upgrade = self.upgrades.first().filter(|first| self.multi_queue.get(first) == Some(&token));
        if self.upgrades.contains(&request) {
            upgrade.is_some_and(|first| *first < request)
        } else {
            upgrade.is_some() || self.multi_queue_of(token).next().is_some_and(|first| first < request)
        }
    }

    /// Whether `first`, which stands here, is served before `second`, which stands here too.
    pub(crate) fn is_ahead(&self, first: RequestId, second: RequestId) -> bool {
        let rank = |request: RequestId| (!self.upgrades.contains(&request), request);
        rank(first) < rank(second)
    }

    /// Whether anybody who wants to write is served before `request`.
    pub(crate) fn has_writer_ahead(&self, request: RequestId) -> bool {
        let ahead = |set: &BTreeSet<RequestId>| set.first().is_some_and(|first| *first < request);
        if self.upgrades.contains(&request) {
            ahead(&self.upgrades)
        } else {
            !self.upgrades.is_empty() || ahead(&self.writers)
        }
    }

    /// Whether anybody who wants to write stands between two others.
    pub(crate) fn has_writer_between(&self, first: RequestId, second: RequestId) -> bool {
        self.writers.range(first..second).next().is_some()
    }

    /// The last that wants to write among those who came before `request`. Upgrades, which stand before
    /// everybody, are not counted.
    pub(crate) fn last_writer_before(&self, request: RequestId) -> Option<RequestId> {
        self.writers.range(..request).next_back().copied()
    }

    /// A multi-queue one among the upgrades, which stands for all: they are of one token.
    pub(crate) fn multi_queue_upgrade(&self) -> Option<RequestId> {
        self.upgrades.first().filter(|request| self.multi_queue.contains_key(request)).copied()
    }

    /// The multi-queue requests, other than upgrades, that came from `from` to before `to`; the last first.
    pub(crate) fn multi_queue_arrivals(
        &self,
        from: RequestId,
        to: RequestId,
    ) -> impl Iterator<Item = RequestId> {
        let between = self.multi_queue.range(from..to).rev();
        between.map(|(request, _)| *request).filter(|request| !self.upgrades.contains(request))
    }
}
