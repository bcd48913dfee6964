// SPDX-License-Identifier: MIT OR Apache-2.0

//! Who and where: names of locks, numbers of requests, tokens and connections. Imports nothing else.

use std::rc::Rc;

/// The name of a lock: a key in one of the server's databases. Sorted by database first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId {
    /// The number of the database.
    pub db: i32,
    /// The key.
    pub name: Rc<[u8]>,
}

/// A borrowed [`LockId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockIdRef<'a> {
    /// The number of the database.
    pub db: i32,
    /// The key.
    pub name: &'a [u8],
}

impl LockId {
    /// This name, borrowed.
    #[must_use]
    pub fn as_ref(&self) -> LockIdRef<'_> {
        LockIdRef { db: self.db, name: &self.name }
    }
}

impl From<LockIdRef<'_>> for LockId {
    fn from(id: LockIdRef<'_>) -> Self {
        Self { db: id.db, name: id.name.into() }
    }
}

/// Which hold of a lock is meant: the token's. With a fence only the one that has it: a command that comes late
/// then finds nothing where the token holds again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldRef<'a> {
    /// Who holds.
    pub token: &'a [u8],
    /// The fence of the hold; `None` for any.
    pub fence: Option<u64>,
}

impl<'a> HoldRef<'a> {
    /// Whichever hold the token has.
    #[must_use]
    pub const fn of(token: &'a [u8]) -> Self {
        Self { token, fence: None }
    }

    /// Whether the hold with this fence is meant.
    #[must_use]
    pub fn means(&self, fence: u64) -> bool {
        self.fence.is_none_or(|own| own == fence)
    }
}

/// The number of a waiting request in order of arrival, unique while the server runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(crate) u64);

impl RequestId {
    /// Before every number that is given.
    pub(crate) const FIRST: Self = Self(0);
    /// After every number that is given.
    pub(crate) const LAST: Self = Self(u64::MAX);
}

/// The server's number of a client's connection.
pub type ConnectionId = u64;

/// The name of a user; `None` for who comes from no connection and may do everything.
pub type UserName = Option<Rc<[u8]>>;
