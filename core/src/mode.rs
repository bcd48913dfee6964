// SPDX-License-Identifier: MIT OR Apache-2.0

//! How a lock is held, and what a request wants of it. Imports nothing else.

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Shared with other readers.
    Read,
    /// By one holder alone.
    Write,
}

/// What a request wants of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Want {
    /// A hold in this mode.
    Hold(Mode),
    /// To turn a hold for read into the hold for write.
    Upgrade,
}
