//! One lock's queue.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::rc::Rc;

use crate::ids::{LockId, RequestId};
use crate::mode::{Mode, Want};

/// The number of a queue, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct QueueId(pub(super) u64);

/// Names a token while it waits: where its bytes are, which all its requests share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TokenId(usize);

impl TokenId {
    pub(super) fn of(token: &Rc<[u8]>) -> Self {
        Self(Rc::as_ptr(token).addr())
    }
}

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
    multi_edge: BTreeMap<RequestId, TokenId>,
    /// The same by token.
    multi_edge_by_token: BTreeSet<(TokenId, RequestId)>,
    /// Those whose token has a hold on this lock; for requests for several locks only.
    own_holds: BTreeSet<RequestId>,
    /// When the first in the queue may be let in by the mere passing of time, in Unix milliseconds.
    pub(super) wake_ms: Option<u64>,
    /// Whether something has changed since the first in the queue was looked at.
    pub(super) is_dirty: bool,
    /// Whether something has happened to the key that did not go through the manager.
    pub(super) is_changed_outside: bool,
}

impl Queue {
    pub(super) fn new(lock: LockId) -> Self {
        Self {
            lock,
            upgrades: BTreeSet::new(),
            writers: BTreeSet::new(),
            readers: BTreeSet::new(),
            multi_edge: BTreeMap::new(),
            multi_edge_by_token: BTreeSet::new(),
            own_holds: BTreeSet::new(),
            wake_ms: None,
            is_dirty: false,
            is_changed_outside: false,
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

    pub(super) fn len(&self) -> usize {
        self.upgrades.len() + self.writers.len() + self.readers.len()
    }

    pub(super) fn push(&mut self, request: RequestId, want: Want) {
        match want {
            Want::Upgrade => self.upgrades.insert(request),
            Want::Hold(Mode::Write) => self.writers.insert(request),
            Want::Hold(Mode::Read) => self.readers.insert(request),
        };
    }

    pub(super) fn remove(&mut self, request: RequestId, token: TokenId) {
        self.upgrades.remove(&request);
        self.writers.remove(&request);
        self.readers.remove(&request);
        self.own_holds.remove(&request);
        self.set_multi_edge(request, token, false);
    }

    pub(super) fn set_multi_edge(&mut self, request: RequestId, token: TokenId, is_multi_edge: bool) {
        if is_multi_edge {
            self.multi_edge.insert(request, token);
            self.multi_edge_by_token.insert((token, request));
        } else if self.multi_edge.remove(&request).is_some() {
            self.multi_edge_by_token.remove(&(token, request));
        }
    }

    pub(super) fn writers_len(&self) -> usize {
        self.upgrades.len() + self.writers.len()
    }

    /// The request that has waited here longest.
    pub(super) fn longest(&self) -> Option<RequestId> {
        self.upgrades.first().copied().into_iter().chain(self.first_arrival()).min()
    }

    pub(super) fn set_own_hold(&mut self, request: RequestId, has_hold: bool) {
        if has_hold {
            self.own_holds.insert(request);
        } else {
            self.own_holds.remove(&request);
        }
    }

    /// The requests whose token had a hold on this lock when they were looked at last.
    pub(crate) fn own_holds(&self) -> impl Iterator<Item = RequestId> {
        self.own_holds.iter().copied()
    }

    /// Whether anybody leads out of this queue.
    pub(crate) fn has_multi_edge(&self) -> bool {
        !self.multi_edge.is_empty()
    }

    /// The multi-edge requests of this token.
    pub(crate) fn multi_edge_of(&self, token: TokenId) -> impl Iterator<Item = RequestId> + '_ {
        let all = (token, RequestId::FIRST)..=(token, RequestId::LAST);
        self.multi_edge_by_token.range(all).map(|(_, request)| *request)
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

    /// The multi-edge ones among the upgrades.
    pub(crate) fn multi_edge_upgrades(&self) -> impl Iterator<Item = (RequestId, TokenId)> {
        self.upgrades.iter().filter_map(|request| Some((*request, *self.multi_edge.get(request)?)))
    }

    /// The multi-edge requests, other than upgrades, that came from `from` to before `to`; the last first.
    pub(crate) fn multi_edge_arrivals(
        &self,
        from: RequestId,
        to: RequestId,
    ) -> impl Iterator<Item = (RequestId, TokenId)> {
        let between = self.multi_edge.range(from..to).rev();
        between.filter(|(request, _)| !self.upgrades.contains(request)).map(|(id, token)| (*id, *token))
    }
}
