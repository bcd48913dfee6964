// SPDX-License-Identifier: MIT OR Apache-2.0

//! How long operations took, and how that is told.

use std::time::{Duration, Instant};

/// What a round took.
pub struct Figures {
    count: u64,
    start: Instant,
    steps: Vec<Duration>,
}

impl Figures {
    pub fn begin(count: u64) -> Self {
        Self { count, start: Instant::now(), steps: Vec::with_capacity(count as usize) }
    }

    /// A pipeline has been answered, or something has been handed on.
    pub fn step(&mut self, since: Instant) {
        self.steps.push(since.elapsed());
    }

    pub fn tell(mut self) -> String {
        let seconds = self.start.elapsed().as_secs_f64();
        self.steps.sort_unstable();
        let percentile = |percent: usize| {
            let at = (self.steps.len() * percent / 100).min(self.steps.len().saturating_sub(1));
            self.steps.get(at).map_or(0.0, |step| step.as_secs_f64() * 1e6)
        };
        let (count, p50, p99) = (self.count, percentile(50), percentile(99));
        format!(
            "{{\"count\": {count}, \"seconds\": {seconds:.6}, \"p50_us\": {p50:.1}, \"p99_us\": {p99:.1}}}"
        )
    }
}
