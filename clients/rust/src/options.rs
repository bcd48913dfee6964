//! What a request asks for.

use std::sync::Arc;
use std::time::Duration;

use crate::command::{Acquire, Owner};
use crate::{Error, Mode, replicas};

/// Longer durations mean the same, and sums with them stay within the range of the clock. No server takes a
/// ttl of more than a year.
pub(crate) const LONGEST: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// A hold is valid for its ttl less 1 ms: nothing would be left of a shorter one.
const SHORTEST_TTL: Duration = Duration::from_millis(2);

pub(crate) fn check_ttl(ttl: Duration) -> Result<(), Error> {
    if ttl < SHORTEST_TTL {
        return Err(Error::InvalidArgument(format!("the ttl is {ttl:?}, and must be at least 2 ms")));
    }
    Ok(())
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) ttl: Duration,
    pub(crate) wait: Option<Duration>,
    pub(crate) limit: Option<u32>,
    pub(crate) metadata: Option<String>,
    pub(crate) renew: bool,
    pub(crate) longest_lease: Option<Duration>,
    pub(crate) token: Option<String>,
    pub(crate) min_replicas: u32,
    pub(crate) replica_timeout: Duration,
    pub(crate) label: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(10),
            wait: None,
            limit: None,
            metadata: None,
            renew: true,
            longest_lease: None,
            token: None,
            min_replicas: 0,
            replica_timeout: Duration::from_secs(1),
            label: None,
        }
    }
}

impl Options {
    /// One use of the request, with a token of its own.
    pub(crate) fn acquire(&self, keys: &Arc<[String]>, mode: Mode) -> Result<Acquire, Error> {
        check_ttl(self.ttl)?;
        Ok(Acquire {
            owner: Owner::new(keys.clone(), self.token.clone())?,
            mode,
            ttl: self.ttl,
            limit: self.limit,
            metadata: self.metadata.clone(),
            replicas: replicas::wanted(self.min_replicas, self.replica_timeout),
        })
    }

    pub(crate) fn label(&self, keys: &[String]) -> Arc<str> {
        match &self.label {
            Some(label) => label.as_str().into(),
            None => keys.first().map_or("", String::as_str).into(),
        }
    }
}

/// The options that a request and the defaults of its maker have in common.
macro_rules! shared_options {
    ($field:ident) => {
        /// How long the hold lives without a renewal: at least 2 ms, and 10 s unless it is set. The server
        /// takes whole milliseconds, rounded up.
        pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
            self.$field.ttl = ttl.min($crate::options::LONGEST);
            self
        }

        /// How long [`acquire`](crate::Request::acquire) waits at most. Without it, until the lock is
        /// granted.
        pub fn wait(mut self, wait: std::time::Duration) -> Self {
            self.$field.wait = Some(wait.min($crate::options::LONGEST));
            self
        }

        /// Text that `SLOCK.INFO key FULL` shows with the hold and the request, up to 1024 bytes.
        pub fn metadata(mut self, metadata: impl Into<String>) -> Self {
            self.$field.metadata = Some(metadata.into());
            self
        }

        /// Whether the watchdog renews the hold. It does unless this says `false`.
        pub fn renew(mut self, renew: bool) -> Self {
            self.$field.renew = renew;
            self
        }

        /// The hold is lost this long after the grant, and not renewed any more. So a stuck task does not
        /// hold for ever.
        pub fn longest_lease(mut self, longest_lease: std::time::Duration) -> Self {
            self.$field.longest_lease = Some(longest_lease.min($crate::options::LONGEST));
            self
        }
    };
}

macro_rules! request_options {
    ($field:ident) => {
        /// For reading: granted only while fewer than this many others read. A semaphore.
        pub fn limit(mut self, limit: u32) -> Self {
            self.$field.limit = Some(limit);
            self
        }

        /// The owner's identity. Without it each use of the request takes 128 random bits.
        ///
        /// Two holds of one token on one key are one hold: who releases or drops the first ends the second
        /// too. A release or a withdrawal that goes on in the background could end a later hold of this
        /// token: the next acquisition with it waits until that has ended. A hold that was lost is not
        /// released.
        pub fn token(mut self, token: impl Into<String>) -> Self {
            self.$field.token = Some(token.into());
            self
        }

        /// The name under which an [`Observer`](crate::Observer) hears of the request. The first key unless
        /// it is set.
        pub fn label(mut self, label: impl Into<String>) -> Self {
            self.$field.label = Some(label.into());
            self
        }
    };
}

macro_rules! replica_options {
    ($field:ident) => {
        /// The hold counts only when this many replicas have it; else it is released and the error is
        /// [`Error::TooFewReplicas`](crate::Error::TooFewReplicas). 0 unless it is set.
        ///
        /// A failover can still lose the lock, but only one that reached none of the replicas that remain.
        pub fn min_replicas(mut self, least: u32) -> Self {
            self.$field.min_replicas = least;
            self
        }

        /// How long to wait for the replicas. 1 s unless it is set.
        pub fn replica_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.$field.replica_timeout = timeout.min($crate::options::LONGEST);
            self
        }
    };
}

pub(crate) use {replica_options, request_options, shared_options};
