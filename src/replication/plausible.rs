//! Which fences and deadlines are believed that come from outside, by `RESTORE` or a client's `APPLY`.

use crate::server::now;
use crate::state::STATE;

/// How far ahead of the clock a fence or a deadline may be that comes from outside: ten years. All
/// further fences are given above such a fence, and must not run out of numbers; a lock that has it must
/// stay loadable.
const AHEAD_MAX_MS: u64 = 10 * 365 * 24 * 3600 * 1000;

/// A replica that takes writes cannot tell a `RESTORE` of its primary from one of a client. So much further
/// ahead may its numbers be, since the primary has judged them by another clock.
const OTHER_CLOCK_MS: u64 = 24 * 3600 * 1000;

/// Whether a fence that comes from outside can be a real one.
pub fn fence_is_plausible(fence: u64) -> bool {
    fence <= latest_ms().saturating_mul(1000)
}

/// Whether a deadline that comes from outside can be a real one: no lock lives for ever.
pub fn deadline_is_plausible(deadline_ms: u64) -> bool {
    deadline_ms <= latest_ms()
}

fn latest_ms() -> u64 {
    let now_ms = now().unix_ms();
    if STATE.is_replica.get() {
        // The primary's fences tell its clock.
        now_ms.max(STATE.last_fence.get() / 1000) + AHEAD_MAX_MS + OTHER_CLOCK_MS
    } else {
        now_ms + AHEAD_MAX_MS
    }
}
