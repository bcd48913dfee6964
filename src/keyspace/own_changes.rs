//! Who it was that changed a key: an operation of ours, or somebody while it was under way.
//!
//! The server calls us back for each change of a key, also where we made it; and to open a key can expire it, and then
//! a subscriber of another module may run commands and remove keys that an operation has open.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use slock_core::{LockId, LockIdRef};

use crate::server::Str;
use crate::state::STATE;

/// The key that the server is adding because we told it to. The buffer is kept. (What it removes because of that is a
/// lock without holders, which nobody is told of.)
#[derive(Default)]
struct OwnChange {
    is_under_way: bool,
    db: i32,
    name: Vec<u8>,
}

/// What went while an operation was under way, and not by its doing.
#[derive(Default)]
struct Removals {
    keys: Vec<LockId>,
    /// All keys of a database, or they changed places.
    all: bool,
}

thread_local! {
    static OWN_CHANGE: RefCell<OwnChange> = RefCell::default();
    static REMOVALS: RefCell<Removals> = RefCell::default();
}

static HAS_REMOVALS: AtomicBool = AtomicBool::new(false);

/// Whether the server is adding this key because we told it to.
pub fn is_own_change(lock: LockIdRef<'_>) -> bool {
    OWN_CHANGE.with_borrow(|own| own.is_under_way && own.db == lock.db && *own.name == *lock.name)
}

/// We add this key: what the server says of it is our own doing, until what this returns is dropped.
#[inline(always)]
pub(super) fn begin(db: i32, name: Str<'_>) -> Option<UnderWay> {
    STATE.hears_of_keys.get().then(|| {
        OWN_CHANGE.with_borrow_mut(|own| {
            own.name.clear();
            own.name.extend_from_slice(name.bytes());
            (own.db, own.is_under_way) = (db, true);
        });
        UnderWay
    })
}

/// See [`begin`].
pub(super) struct UnderWay;

impl Drop for UnderWay {
    fn drop(&mut self) {
        OWN_CHANGE.with_borrow_mut(|own| own.is_under_way = false);
    }
}

/// This key has gone while an operation was under way and not by its doing, or any may have, if none is named.
pub fn note_removal(lock: Option<LockIdRef<'_>>) {
    REMOVALS.with_borrow_mut(|removals| match lock {
        Some(lock) => removals.keys.push(lock.into()),
        None => removals.all = true,
    });
    HAS_REMOVALS.store(true, Relaxed);
}

/// Whether a key for which `is_open` says so has gone so since the last call.
#[inline(always)]
pub(super) fn take_removals(mut is_open: impl FnMut(LockIdRef<'_>) -> bool) -> bool {
    HAS_REMOVALS.load(Relaxed) && {
        HAS_REMOVALS.store(false, Relaxed);
        let removals = REMOVALS.take();
        removals.all || removals.keys.iter().any(|lock| is_open(lock.as_ref()))
    }
}
