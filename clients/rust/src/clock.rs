// SPDX-License-Identifier: MIT OR Apache-2.0

//! The clock by which holds are valid. It goes on while the machine sleeps, where the system has such a clock: a hold
//! must not seem valid when the machine wakes.

use std::time::Duration;

/// A moment on this clock, in ns since some start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) const NEVER: Self = Self(u64::MAX);

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[allow(unsafe_code)]
    pub(crate) fn now() -> Self {
        let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a timespec of this function, which the call fills. The call keeps no pointer. It
        // fails only on a system without this clock, and Linux has had it since 2.6.39.
        let failed = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut at) };
        assert_eq!(failed, 0, "the system has no CLOCK_BOOTTIME");
        Self(at.tv_sec.unsigned_abs() * 1_000_000_000 + at.tv_nsec.unsigned_abs())
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(crate) fn now() -> Self {
        static START: std::sync::LazyLock<std::time::Instant> =
            std::sync::LazyLock::new(std::time::Instant::now);
        Self::default().after(START.elapsed())
    }

    pub(crate) fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// From an earlier moment to this one; zero if that one is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// From now to this moment; zero if it is over.
    pub(crate) fn remaining(self) -> Duration {
        self.since(Self::now())
    }
}
