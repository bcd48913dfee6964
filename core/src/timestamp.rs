// SPDX-License-Identifier: MIT OR Apache-2.0

//! The moment at which a decision is made. Imports nothing else.

/// One reading of both clocks, with which a whole decision is made.
///
/// Deadlines of holds and fences go by the wall clock, which servers share and which may be set.
/// Durations (how long a request waits, how long a start is followed by a grace period) go by the
/// monotonic clock, which only this process knows and nobody sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp {
    unix_us: u64,
    monotonic_ms: u64,
}

impl Timestamp {
    /// The wall clock in microseconds since the Unix epoch, and the monotonic clock in milliseconds.
    #[must_use]
    pub const fn new(unix_us: u64, monotonic_ms: u64) -> Self {
        Self { unix_us, monotonic_ms }
    }

    /// Milliseconds since the Unix epoch, rounded down: the unit of deadlines.
    #[must_use]
    pub const fn unix_ms(self) -> u64 {
        self.unix_us / 1000
    }

    /// Microseconds since the Unix epoch: the unit that fences start from.
    #[must_use]
    pub const fn unix_us(self) -> u64 {
        self.unix_us
    }

    /// Milliseconds of the monotonic clock, since some moment in the past.
    #[must_use]
    pub const fn monotonic_ms(self) -> u64 {
        self.monotonic_ms
    }
}
