// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the rest of the module wants to be told.

use std::sync::OnceLock;

use slock_core::{Lock, LockIdRef};

use super::ctx::Ctx;
use super::reply::Section;

/// The server's name for a blocked client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HandleKey(pub(super) usize);

/// What is told. Nothing may be written or replicated from within: a change made inside a notification is logged before
/// the command that caused it.
pub trait Told: Sync {
    /// This fence was met in stored data.
    fn fence_seen(&self, fence: u64);
    /// Whether a lock that comes from outside, by `RESTORE` or `MIGRATE`, can be a real one.
    fn is_plausible(&self, lock: &Lock) -> bool;
    /// A lock is about to appear under this name, from a payload (`RESTORE`, or a file that is loaded) or as a copy.
    fn lock_appears(&self, lock: LockIdRef<'_>);
    /// A lock has left its name: deleted, expired, evicted, overwritten, moved or renamed.
    fn lock_removed(&self, lock: LockIdRef<'_>);
    /// A key was evicted, after its value was removed.
    fn key_evicted(&self, key: LockIdRef<'_>);
    /// All keys of a database have gone, or of every database.
    fn flushed(&self);
    /// Two databases have changed places.
    fn swapped(&self);
    /// The server has become a replica, or a primary.
    fn role_changed(&self, is_replica: bool);
    /// The server begins to load a data set, or has ended, also in vain.
    fn loading(&self, ctx: Ctx<'_>, has_begun: bool);
    /// `CONFIG SET` has changed settings of the server's.
    fn configured(&self);
    /// A connection closes.
    fn disconnected(&self, connection: u64);
    /// This client does not wait any more: somebody has unblocked it, or it has gone.
    fn wait_ended(&self, client: HandleKey, is_unblocked: bool);
    /// Called `hz` times a second.
    fn cron(&self);
    /// Writes the section of `INFO`.
    fn write_info(&self, section: &Section);
}

/// Set once, at load, before the server is asked to call anything.
static TOLD: OnceLock<&'static dyn Told> = OnceLock::new();

pub(super) fn set_told(told: &'static dyn Told) {
    TOLD.get_or_init(|| told);
}

pub(super) fn told() -> &'static dyn Told {
    *TOLD.get().expect("it is set at load")
}
