//! Short names for what the tables speak of: queues, tokens.

use std::rc::Rc;

/// The number of a queue, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct QueueId(pub(super) u64);

impl QueueId {
    /// Before every number that is given.
    pub(crate) const FIRST: Self = Self(0);
    /// After every number that is given.
    pub(crate) const LAST: Self = Self(u64::MAX);

    /// A number for a set of queues, the same in whichever order; other sets seldom have it. (The multiplier is that
    /// of Fibonacci hashing.)
    pub(crate) fn sum_of(queues: impl Iterator<Item = Self>) -> u64 {
        const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;
        let mixed = |queue: Self| queue.0.wrapping_mul(MULTIPLIER).rotate_left(29).wrapping_mul(MULTIPLIER);
        queues.fold(0, |sum, queue| sum.wrapping_add(mixed(queue)))
    }
}

/// Names a token while it waits: where its bytes are, which all its requests share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TokenId(usize);

impl TokenId {
    /// After every one that there is. The default is before them.
    pub(crate) const LAST: Self = Self(usize::MAX);

    pub(crate) fn of(token: &Rc<[u8]>) -> Self {
        Self(Rc::as_ptr(token).addr())
    }
}
