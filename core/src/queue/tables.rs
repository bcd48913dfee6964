// SPDX-License-Identifier: MIT OR Apache-2.0

//! Look-up tables of those who wait, by what ends or changes their waits; and short names for queues and tokens.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use crate::ids::{ConnectionId, RequestId, UserName};

/// When time alone changes something.
#[derive(Debug, Default)]
pub(super) struct Moments {
    /// When requests stop waiting, on the monotonic clock.
    pub(super) give_ups: BTreeSet<(u64, RequestId)>,
    /// When the first of a queue may be let in, on the wall clock.
    pub(super) wakes: BTreeSet<(u64, QueueId)>,
}

/// The requests that are answered on channels.
#[derive(Debug, Default)]
pub(super) struct Channels {
    /// By channel.
    pub(super) requests: BTreeMap<Rc<[u8]>, BTreeSet<RequestId>>,
    /// Of these, those that end with the connection that asked.
    pub(super) bound: BTreeMap<ConnectionId, BTreeSet<RequestId>>,
    /// Requests of channels without a subscriber and of closed connections; some may have left since.
    pub(super) leaving: VecDeque<BTreeSet<RequestId>>,
}

/// How many there are.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Of all requests.
    pub(super) all: usize,
    /// Of each user.
    pub(super) of_user: BTreeMap<UserName, usize>,
}

/// Why a request leaves that is answered on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// The channel has no subscriber.
    NoSubscriber,
    /// It ends with a connection, which has closed.
    ConnectionClosed,
}

/// The number of a queue, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct QueueId(pub(super) u64);

impl QueueId {
    /// Before every number that is given.
    pub(crate) const FIRST: Self = Self(0);
}

/// Names a token while it waits: where its bytes are, which all its requests share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TokenId(usize);

impl TokenId {
    pub(crate) fn of(token: &Rc<[u8]>) -> Self {
        Self(Rc::as_ptr(token).addr())
    }
}
