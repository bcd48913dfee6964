//! Asking again and again: strategies for a lock that others have, and pauses after an error.

use std::time::Duration;

/// How the client asks again and again, where the server does not wait for it.
///
/// The `wait` of a request ends polling too.
#[derive(Clone, Debug, PartialEq)]
pub struct Poll {
    first: Duration,
    most: Duration,
    /// By up to this part each pause is shortened at random.
    jitter: f64,
    limit: Option<u32>,
}

impl Poll {
    /// Asks once, and never again.
    pub fn none() -> Self {
        Self::constant(Duration::from_millis(1)).limit(0)
    }

    /// Asks again after the same pause each time. Requests refuse a pause of zero.
    pub fn constant(pause: Duration) -> Self {
        Self { first: pause, most: pause, jitter: 0.0, limit: None }
    }

    /// Asks again after pauses that double from `first` up to `most`. Each is shortened by up to a half at
    /// random, so that clients that wait for one lock do not ask at the same moments.
    pub fn exponential(first: Duration, most: Duration) -> Self {
        Self { first, most, jitter: 0.5, limit: None }
    }

    /// At most `attempts` further attempts after the first one.
    pub fn limit(mut self, attempts: u32) -> Self {
        self.limit = Some(attempts);
        self
    }

    /// It would ask as fast as it can.
    pub(crate) fn has_no_pause(&self) -> bool {
        self.first.min(self.most).is_zero()
    }

    /// The pause before further attempt `number`, counted from 0; nothing when there is to be none.
    pub(crate) fn pause(&self, number: u32) -> Option<Duration> {
        if self.limit.is_some_and(|limit| number >= limit) {
            return None;
        }
        let pause = self.first.saturating_mul(2u32.saturating_pow(number)).min(self.most);
        Some(pause - pause.mul_f64(rand::random_range(0.0..=self.jitter)))
    }
}

/// The pause after an error before which there were so many others: 10 ms, doubled up to 1 s. The jitter keeps
/// clients that failed together from returning together.
pub(crate) fn after_error(number: u32) -> Duration {
    let pauses = Poll::exponential(Duration::from_millis(10), Duration::from_secs(1));
    pauses.pause(number).expect("the number of attempts has no limit")
}

#[cfg(test)]
#[path = "../tests/unit/polling.rs"]
mod tests;
