//! A look at all of a crowd now and then, in slices: what no server tells its modules has to be looked for.

use std::time::{Duration, Instant};

/// A sweep takes so long at a time, and pauses so long in between.
const SLICE: Duration = Duration::from_micros(300);
const PAUSE_MS: u64 = 10;

/// How far a sweep has come.
pub struct Sweep<P> {
    /// What was looked at last, in the middle of a pass.
    after: Option<P>,
    /// When it goes on or begins anew, on the monotonic clock.
    pub next_ms: u64,
}

impl<P> Default for Sweep<P> {
    fn default() -> Self {
        Self { after: None, next_ms: 0 }
    }
}

impl<P> Sweep<P> {
    /// Goes on, if it is time. `step` looks at some that come after a position, and says how far it came; `None` at the
    /// end. The next pass begins `every_ms` later.
    pub fn go_on(&mut self, now_ms: u64, every_ms: u64, mut step: impl FnMut(Option<P>) -> Option<P>) {
        if now_ms < self.next_ms {
            return;
        }
        let started = Instant::now();
        loop {
            self.after = step(self.after.take());
            if self.after.is_none() || started.elapsed() >= SLICE {
                break;
            }
        }
        self.next_ms = now_ms + if self.after.is_none() { every_ms } else { PAUSE_MS };
    }
}
