//! Fencing numbers, and the moment at which a decision is made.
//!
//! A fence is handed out with each new hold. A resource that remembers the greatest fence it has
//! seen can refuse a writer whose lease ran out while it was paused (the idea is described in
//! M. Kleppmann, "How to do distributed locking", 2016, and in Chubby's "sequencers", 2006).

/// The one reading of the clock that a whole decision is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    unix_us: u64,
}

impl Moment {
    /// A moment given in microseconds since the Unix epoch.
    #[must_use]
    pub const fn from_unix_us(unix_us: u64) -> Self {
        Self { unix_us }
    }

    /// A moment given in milliseconds since the Unix epoch.
    #[must_use]
    pub const fn from_unix_ms(unix_ms: u64) -> Self {
        Self { unix_us: unix_ms * 1000 }
    }

    /// Milliseconds since the Unix epoch, rounded down: the unit of deadlines.
    #[must_use]
    pub const fn ms(self) -> u64 {
        self.unix_us / 1000
    }

    /// Microseconds since the Unix epoch: the unit that fences start from.
    #[must_use]
    pub const fn us(self) -> u64 {
        self.unix_us
    }
}

/// The server-wide source of fences: each is `max(last + 1, Unix time in microseconds)`.
///
/// So fences rise even when the clock steps back, and rise above everything given before a restart
/// even when the log of the last moments was lost, as long as the clock went on.
#[derive(Clone, Debug, Default)]
pub struct Fences {
    last: u64,
}

impl Fences {
    /// The last fence given or seen; 0 before the first.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// A new fence, greater than every one given or seen before.
    pub fn next(&mut self, now: Moment) -> u64 {
        self.last = now.us().max(self.last + 1);
        self.last
    }

    /// Learns of a fence that was given elsewhere: on the primary, or before a restart.
    pub fn see(&mut self, fence: u64) {
        self.last = self.last.max(fence);
    }
}
