//! Pauses between attempts after an error.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(10);
const MOST: Duration = Duration::from_secs(1);

/// 10 ms, doubled up to 1 s, each with jitter.
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Self {
        Self(FIRST)
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = with_jitter(self.0);
        self.0 = (self.0 * 2).min(MOST);
        pause
    }
}

/// Between a half of the pause and the whole, so that clients that failed together do not return together.
pub(crate) fn with_jitter(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_second() {
        let mut backoff = Backoff::new();
        let pauses: Vec<_> = (0..12).map(|_| backoff.next()).collect();
        assert!(pauses[0] >= FIRST / 2 && pauses[0] <= FIRST);
        assert!(pauses.iter().all(|pause| *pause <= MOST));
        assert!(pauses[11] >= MOST / 2);
    }
}
