//! The wall clock, which deadlines and fences go by.

use std::time::{SystemTime, UNIX_EPOCH};

use slock_core::Moment;

/// The time now. Read once for each decision.
pub fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment::from_unix_us(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
