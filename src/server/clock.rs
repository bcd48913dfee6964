//! The clocks: the wall clock, which deadlines and fences go by, and the monotonic one, which durations go
//! by.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use slock_core::Timestamp;

static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The time now by both clocks. Read once for each decision.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix_us = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
    // So that no moment is 0.
    let monotonic_ms = 1 + u64::try_from(STARTED.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
    Timestamp::new(unix_us, monotonic_ms)
}
