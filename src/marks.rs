//! Notes of what happened outside of our commands.
//!
//! Keyspace notifications, flushes and closing connections reach us in the middle of other
//! commands, sometimes in the middle of our own, where nothing may be written and the desk may be
//! busy. So they only leave a note here, and the office's timer reads them.

use std::cell::{Cell, RefCell};

/// A note.
pub enum Mark {
    /// This key appeared, went, or has another expiry.
    Key(i32, Box<[u8]>),
    /// A lock came under this name by `RESTORE`.
    Arrived(i32, Box<[u8]>),
    /// Something befell all keys of this database, or of every one.
    Database(Option<i32>),
}

thread_local! {
    static MARKS: RefCell<Vec<Mark>> = const { RefCell::new(Vec::new()) };
    static ANYBODY_WAITS: Cell<bool> = const { Cell::new(false) };
    static OURS: Cell<bool> = const { Cell::new(false) };
}

/// Says whether keys need watching. While nobody waits, a notification costs one look at this.
pub fn watch(anybody_waits: bool) {
    ANYBODY_WAITS.set(anybody_waits);
}

/// Whether a change of a key needs a note: somebody waits, and the change is not our own doing.
pub fn are_wanted() -> bool {
    ANYBODY_WAITS.get() && !OURS.get()
}

/// Whether the server is removing or adding a key because we told it to.
pub fn are_ours() -> bool {
    OURS.get()
}

/// Runs a change of ours, which needs no note.
pub fn as_ours<R>(change: impl FnOnce() -> R) -> R {
    struct Ours;
    impl Drop for Ours {
        fn drop(&mut self) {
            OURS.set(false);
        }
    }
    OURS.set(true);
    let _until_the_end = Ours;
    change()
}

/// Leaves a note.
pub fn leave(mark: Mark) {
    MARKS.with_borrow_mut(|marks| marks.push(mark));
}

/// Whether there is no note.
pub fn are_none() -> bool {
    MARKS.with_borrow(Vec::is_empty)
}

/// All notes since the last call, oldest first.
pub fn take() -> Vec<Mark> {
    MARKS.take()
}
