//! What `INFO slock` shows. It costs no scan.

use slock_core::LockManager;

use crate::server::{self, Section};
use crate::state::Metrics;

/// Writes the section.
pub fn write(section: &Section, metrics: &Metrics, manager: &LockManager) {
    let counters = &manager.counters;
    section.field(c"locks", u64::try_from(server::stored_locks()).unwrap_or(0));
    section.field(c"waiters", manager.waitlist().len() as u64);
    section.field(c"waiters_max", counters.waiters_max);
    section.field(c"grants", counters.grants);
    section.field(c"refusals", counters.refusals);
    section.field(c"handoffs", counters.handoffs);
    section.field(c"releases", counters.releases);
    section.field(c"expirations", metrics.expirations());
    section.field(c"wait_timeouts", counters.wait_timeouts);
    section.field(c"deadlocks", counters.deadlocks);
    section.field(c"evicted_locks", metrics.evictions());
    section.field(c"wait_ms_total", counters.wait_ms_total);
    section.field(c"wait_ms_max", counters.wait_ms_max);
    section.field(c"last_fence", manager.fences.last());
}
