//! The clocks: the wall clock, which deadlines and fences go by, and the monotonic one, which durations go
//! by.

use slock_core::Timestamp;

/// The time now by both clocks. Read once for each decision.
pub fn now() -> Timestamp {
    let (wall, monotonic) = (read(libc::CLOCK_REALTIME), read(libc::CLOCK_MONOTONIC));
    let unix_us = wall.0 * 1_000_000 + wall.1 / 1000;
    Timestamp::new(unix_us, milliseconds(monotonic))
}

/// The time now by the monotonic clock alone, in milliseconds.
pub fn monotonic_ms() -> u64 {
    milliseconds(read(libc::CLOCK_MONOTONIC))
}

/// So that no moment is 0.
fn milliseconds((seconds, nanoseconds): (u64, u64)) -> u64 {
    1 + seconds * 1000 + nanoseconds / 1_000_000
}

/// Seconds and nanoseconds. (A wall clock before 1970 reads as 1970.)
fn read(clock: libc::clockid_t) -> (u64, u64) {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time`, which outlives it. It cannot fail: both clocks exist.
    unsafe { libc::clock_gettime(clock, &mut time) };
    (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0))
}
