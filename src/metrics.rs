//! What `INFO slock` shows. Counting costs no scan.

use std::cell::{Cell, RefCell};

use crate::office;
use crate::server::{self, Section};

thread_local! {
    static DECIDES: Cell<bool> = const { Cell::new(true) };
    static EXPIRATIONS: Cell<u64> = const { Cell::new(0) };
    static EVICTIONS: Cell<u64> = const { Cell::new(0) };
    /// The lock that the server removed last: if an eviction is announced next, it was this one.
    static REMOVED: RefCell<Option<(i32, Box<[u8]>)>> = const { RefCell::new(None) };
}

/// Says whether this server decides what becomes of locks, or only follows: then expirations are counted
/// where it is decided.
pub fn decides(decides: bool) {
    DECIDES.set(decides);
    server::count_freed(decides);
}

/// Counts holders whose deadline had passed when an effect dropped them. Those that were still in a lock
/// when it went are counted where it is freed.
pub fn count_expirations(holders: usize) {
    if DECIDES.get() {
        EXPIRATIONS.set(EXPIRATIONS.get() + holders as u64);
    }
}

/// Remembers a lock that the server removed, not we.
pub fn note_removal(db: i32, name: &[u8]) {
    REMOVED.set(Some((db, name.into())));
}

/// Counts an evicted key, if it was a lock.
pub fn count_eviction(db: i32, name: &[u8]) {
    if REMOVED.take().is_some_and(|(of, removed)| of == db && *removed == *name) {
        EVICTIONS.set(EVICTIONS.get() + 1);
    }
}

/// Writes the section.
pub fn write(section: &Section) {
    let (counters, waiters, last_fence) =
        office::consult(|desk| (desk.counters, desk.waitlist().len() as u64, desk.fences.last()));
    section.field(c"locks", u64::try_from(server::stored_locks()).unwrap_or(0));
    section.field(c"waiters", waiters);
    section.field(c"waiters_max", counters.waiters_max);
    section.field(c"grants", counters.grants);
    section.field(c"refusals", counters.refusals);
    section.field(c"handoffs", counters.handoffs);
    section.field(c"releases", counters.releases);
    section.field(c"expirations", EXPIRATIONS.get() + server::freed_ended_holders());
    section.field(c"wait_timeouts", counters.wait_timeouts);
    section.field(c"deadlocks", counters.deadlocks);
    section.field(c"evicted_locks", EVICTIONS.get());
    section.field(c"wait_ms_total", counters.wait_ms_total);
    section.field(c"wait_ms_max", counters.wait_ms_max);
    section.field(c"last_fence", last_fence);
}
