// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the rest of the module wants to be told: functions that are set once, at load.

use std::ffi::CStr;

use slock_core::{Lock, LockIdRef};

use super::ctx::Ctx;

/// Takes the change and the metadata of a command of a rewritten log.
pub type Emit<'a> = dyn FnMut(&[u8], &[u8]) + 'a;

/// What the rest of the module wants to know from the type's callbacks.
pub struct DatatypeHooks {
    /// This fence was met in stored data.
    pub fence_seen: fn(u64),
    /// Whether a lock that comes from outside, by `RESTORE` or `MIGRATE`, can be a real one.
    pub is_plausible: fn(&Lock) -> bool,
    /// A lock is about to appear under this name from a payload: `RESTORE`, or a file that is loaded.
    pub restored: fn(LockIdRef<'_>),
    /// A lock is about to appear under this name as a copy of another.
    pub copied: fn(LockIdRef<'_>),
    /// The last fence that was given or seen.
    pub last_fence: fn() -> u64,
    /// Calls the function with the change and metadata of each command that makes this lock, and that says this last
    /// fence.
    pub rewrite: fn(&Lock, Option<u64>, &mut Emit<'_>),
    /// A lock with these holders is freed, perhaps on another thread. It was not a release that emptied it. (Also one that
    /// `DEBUG RELOAD` drops and loads again.)
    pub freed: fn(&Lock),
    /// A lock has left its name: deleted, expired, evicted, overwritten, moved or renamed.
    pub removed: fn(LockIdRef<'_>),
}

/// What the module wants to be told.
pub struct EventHooks {
    /// A key was evicted, after its value was removed.
    pub key_evicted: fn(i32, &[u8]),
    /// All keys of a database have gone, or of every database.
    pub flushed: fn(Option<i32>),
    /// Two databases have changed places.
    pub swapped: fn(i32, i32),
    /// The server has another role.
    pub role_changed: fn(Role),
    /// The server begins to load a data set, or has ended.
    pub loading: fn(Ctx<'_>, Loading),
    /// `CONFIG SET` has changed the settings of these names.
    pub configured: fn(&[&CStr]),
    /// A connection closes.
    pub disconnected: fn(u64),
    /// Called `hz` times a second.
    pub cron: fn(),
    /// Somebody may begin or cease to listen to what is replicated.
    pub listeners_may_change: fn(),
}

/// What a server is to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It decides.
    Primary,
    /// It follows.
    Replica,
}

/// How far the loading of a data set is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loading {
    /// It begins.
    Began,
    /// It has ended, also in vain.
    Ended,
}
