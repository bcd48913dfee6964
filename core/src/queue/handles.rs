// SPDX-License-Identifier: MIT OR Apache-2.0

//! Short names for what the tables speak of: queues, tokens.

use std::rc::Rc;

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
