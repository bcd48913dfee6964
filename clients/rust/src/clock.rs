//! The clock on which holds are valid. It goes on while the machine sleeps, where the system has such a clock:
//! a hold must not seem valid when the machine wakes.

use std::time::{Duration, Instant};

/// A moment on this clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

impl Moment {
    #[cfg(unix)]
    pub(crate) fn now() -> Self {
        use rustix::time::{ClockId, clock_gettime};
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const CLOCK: ClockId = ClockId::Boottime;
        // Apple's goes on while the machine sleeps.
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const CLOCK: ClockId = ClockId::Monotonic;
        Self(clock_gettime(CLOCK).try_into().expect("this clock begins at zero"))
    }

    #[cfg(not(unix))]
    pub(crate) fn now() -> Self {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        Self(START.get_or_init(Instant::now).elapsed())
    }

    pub(crate) fn after(self, duration: Duration) -> Self {
        Self(self.0 + duration)
    }

    /// From an earlier moment until this one; zero when that was later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) fn elapsed(self) -> Duration {
        Self::now().since(self)
    }

    /// The same moment on the clock of timers, as far as that did not stand still.
    pub(crate) fn instant(self) -> Instant {
        let now = Self::now();
        Instant::now() + self.since(now) - now.since(self)
    }
}
