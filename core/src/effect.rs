// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a decision changes, as a value.
//!
//! An effect is what is applied to the primary's lock, logged, and sent to replicas. It speaks in
//! absolute time, never depends on a clock where it is applied, and is idempotent: applied to the
//! lock it led to, it changes nobody's hold. Of a large crowd that has ended it then drops some more. (The same
//! stance as Redis's stream commands, which propagate `XCLAIM` with an absolute time instead of the `XREADGROUP` that
//! caused it.)

use crate::mode::Mode;

/// One change of one lock.
///
/// First holders whose deadlines are at or before `at_ms` are dropped, the earliest deadline first, among equal ones
/// the lowest fence, and [`DROPPED_AT_ONCE`](crate::limits::DROPPED_AT_ONCE) at most. Then the change is made. The
/// dropping is part of the effect so that a primary and its replicas agree to the byte: nobody tidies up by a clock of
/// their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect<'a> {
    /// When the effect was decided, in Unix milliseconds. 0 drops nobody.
    pub at_ms: u64,
    /// What happens to the lock.
    pub change: Change<'a>,
}

impl Effect<'_> {
    /// Whether it comes from a rewritten log, which gives the key the expiry that it had, or none, behind it.
    #[must_use]
    pub fn is_rewritten(&self) -> bool {
        self.at_ms == 0 && matches!(self.change, Change::Hold { .. })
    }
}

/// What an effect does to a lock, after expired holders have gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// This token now holds the lock in this mode, exactly as given, and nobody else does in a way
    /// that excludes it: a writer replaces every other holder, a reader replaces a writer.
    Hold {
        /// The mode of the hold and, with it, of the lock.
        mode: Mode,
        /// The owner.
        token: &'a [u8],
        /// The fence of the hold.
        fence: u64,
        /// When the hold began, in Unix milliseconds.
        since_ms: u64,
        /// When it ends, in Unix milliseconds.
        deadline_ms: u64,
        /// The owner's metadata; empty for none.
        meta: &'a [u8],
    },
    /// This token's hold, if there is one, now ends at `deadline_ms`.
    Extend {
        /// The owner.
        token: &'a [u8],
        /// When the hold ends, in Unix milliseconds.
        deadline_ms: u64,
    },
    /// This token's hold, if there is one, has ended.
    Release {
        /// The owner.
        token: &'a [u8],
    },
}

/// What subscribers are told about an effect. It is not part of the effect: replicas are not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A new hold for write.
    Lock,
    /// A new hold for read.
    Rlock,
    /// A hold for write was released.
    Unlock,
    /// A hold for read was released.
    Runlock,
    /// A hold has a new deadline (and perhaps new metadata) and is otherwise the same.
    Extend,
    /// A reader became the writer.
    Upgrade,
    /// The writer became a reader.
    Downgrade,
}
