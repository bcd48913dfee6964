// SPDX-License-Identifier: MIT OR Apache-2.0

//! What `INFO slock` shows. It costs no scan.

use std::ffi::CStr;

use slock_core::{Distribution, LockManager};

use crate::server::{self, Section};
use crate::state::STATE;

/// Writes the section.
pub fn write(section: &Section, manager: &LockManager) {
    let (counters, metrics) = (&manager.counters, &STATE.metrics);
    section.field(c"locks", u64::try_from(server::stored_locks()).unwrap_or(0));
    section.field(c"waiters", manager.waitlist().len() as u64);
    section.field(c"waiting_places", manager.waitlist().places() as u64);
    let now_ms = server::monotonic_ms();
    let oldest_ms =
        manager.waitlist().oldest_since_ms().map_or(0, |since_ms| now_ms.saturating_sub(since_ms));
    section.field(c"oldest_wait_ms", oldest_ms);
    section.field(c"waiting_users", manager.waitlist().users_len() as u64);
    section.field(c"waiters_max", counters.waiters_max);
    section.field(c"grants", counters.grants);
    section.field(c"refusals", counters.refusals);
    section.field(c"handoffs", counters.handoffs);
    section.field(c"releases", counters.releases);
    section.field(c"expirations", metrics.expirations.get());
    section.field(c"wait_timeouts", counters.wait_timeouts);
    section.field(c"wait_cancels", counters.cancels);
    section.field(c"revoked_requests", counters.revoked_requests);
    section.field(c"revoked_tokens_overwritten", manager.revoked_tokens().overwritten);
    section.field(c"no_subscriber", counters.no_subscriber);
    section.field(c"deadlocks", counters.deadlocks);
    section.field(c"evicted_locks", metrics.evictions.get());
    section.field(c"wait_ms_total", counters.wait_ms_total);
    section.field(c"wait_ms_max", counters.waits.max_ms());
    section.field_of_parts(c"wait_ms", &parts(&counters.waits));
    section.field_of_parts(c"hold_ms", &parts(&counters.holds));
    section.field(c"last_fence", manager.fences.last());
}

/// A distribution in the form of the server's own `latencystats`.
fn parts(durations: &Distribution) -> [(&'static CStr, u64); 4] {
    [
        (c"p50", durations.quantile_ms(0.5)),
        (c"p99", durations.quantile_ms(0.99)),
        (c"p99.9", durations.quantile_ms(0.999)),
        (c"max", durations.max_ms()),
    ]
}
