//! Asking again and again: strategies for a lock that others have, and pauses after an error.

use std::time::Duration;

/// How the client asks again and again, where the server does not wait for it.
///
/// The `wait` of a request ends polling too.
#[derive(Clone, Debug, PartialEq)]
pub struct Poll {
    pauses: Pauses,
    limit: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
enum Pauses {
    Constant(Duration),
    Exponential { first: Duration, most: Duration },
}

impl Poll {
    /// Asks once, and never again.
    pub fn none() -> Self {
        Self::constant(Duration::ZERO).limit(0)
    }

    /// Asks again after the same pause each time.
    pub fn constant(pause: Duration) -> Self {
        Self { pauses: Pauses::Constant(pause), limit: None }
    }

    /// Asks again after pauses that double from `first` up to `most`. Each is shortened by up to a half at
    /// random, so that clients that wait for one lock do not ask at the same moments.
    pub fn exponential(first: Duration, most: Duration) -> Self {
        Self { pauses: Pauses::Exponential { first, most }, limit: None }
    }

    /// At most `attempts` further attempts after the first one.
    pub fn limit(mut self, attempts: u32) -> Self {
        self.limit = Some(attempts);
        self
    }

    /// The pause before further attempt `number`, counted from 0; nothing when there is to be none.
    pub(crate) fn pause(&self, number: u32) -> Option<Duration> {
        if self.limit.is_some_and(|limit| number >= limit) {
            return None;
        }
        match self.pauses {
            Pauses::Constant(pause) => Some(pause),
            Pauses::Exponential { first, most } => Some(doubled(first, most, number)),
        }
    }
}

/// Pauses between attempts after an error: 10 ms, doubled up to 1 s, each with jitter.
#[derive(Default)]
pub(crate) struct Backoff {
    pauses: u32,
}

impl Backoff {
    pub(crate) fn next(&mut self) -> Duration {
        self.pauses += 1;
        doubled(Duration::from_millis(10), Duration::from_secs(1), self.pauses - 1)
    }
}

/// The pause with this number, counted from 0. It is between a half of the pause and the whole, so that clients
/// that failed together do not return together.
fn doubled(first: Duration, most: Duration, number: u32) -> Duration {
    let pause = first.saturating_mul(2u32.saturating_pow(number.min(31))).min(most);
    pause.mul_f64(rand::random_range(0.5..=1.0))
}

#[cfg(test)]
#[path = "../tests/unit/polling.rs"]
mod tests;
