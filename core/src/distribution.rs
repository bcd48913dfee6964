// SPDX-License-Identifier: MIT OR Apache-2.0

//! How durations are distributed, in constant memory.

use hdrhistogram::Histogram;

/// Durations in milliseconds, up to a year; longer ones count as a year. Each is kept to two significant
/// digits at least, so a quantile is exact up to 127 ms and at most 1 % too great above. (G. Tene's HdrHistogram.)
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    recorded: Histogram<u64>,
    max_ms: u64,
}

/// The longest duration that is told apart from longer ones, in milliseconds: a year.
const LONGEST_MS: u64 = 31_536_000_000;

impl Default for Distribution {
    fn default() -> Self {
        let recorded = Histogram::new_with_bounds(1, LONGEST_MS, 2).expect("constant bounds that fit");
        Self { recorded, max_ms: 0 }
    }
}

impl Distribution {
    pub(crate) fn record(&mut self, duration_ms: u64) {
        self.recorded.saturating_record(duration_ms.min(LONGEST_MS));
        self.max_ms = self.max_ms.max(duration_ms);
    }

    /// The duration in milliseconds that this part of all, from 0 to 1, took at most. 0 if there are none.
    #[must_use]
    pub fn quantile_ms(&self, part: f64) -> u64 {
        self.recorded.value_at_quantile(part).min(self.max_ms)
    }

    /// The longest duration, in milliseconds. 0 if there are none.
    #[must_use]
    pub fn max_ms(&self) -> u64 {
        self.max_ms
    }
}
