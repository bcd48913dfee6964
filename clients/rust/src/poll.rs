use std::time::Duration;

use crate::backoff::with_jitter;

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
    None,
    Constant(Duration),
    Exponential { first: Duration, most: Duration },
}

impl Poll {
    /// Asks once, and never again.
    pub fn none() -> Self {
        Self { pauses: Pauses::None, limit: None }
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
            Pauses::None => None,
            Pauses::Constant(pause) => Some(pause),
            Pauses::Exponential { first, most } => {
                let doubled = first.saturating_mul(2u32.saturating_pow(number.min(31)));
                Some(with_jitter(doubled.min(most)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn none_never_asks_again() {
        assert_eq!(Poll::none().pause(0), None);
    }

    #[test]
    fn a_limit_counts_further_attempts() {
        let poll = Poll::constant(MS).limit(2);
        assert_eq!([poll.pause(0), poll.pause(1), poll.pause(2)], [Some(MS), Some(MS), None]);
    }

    #[test]
    fn exponential_pauses_grow_up_to_the_most() {
        let poll = Poll::exponential(MS, 8 * MS);
        for (number, most) in [(0, 1), (1, 2), (2, 4), (3, 8), (4, 8), (100, 8)] {
            let pause = poll.pause(number).unwrap();
            assert!(pause >= most * MS / 2 && pause <= most * MS, "{number}: {pause:?}");
        }
    }
}
