//! What is asked for: keys, mode and options, with their defaults and checks.

use std::sync::Arc;
use std::time::Duration;

use derive_more::Display;

use crate::errors::Error;
use crate::polling::Poll;

/// Whether a hold excludes everybody else or shares the lock with other readers.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The only holder.
    #[display("write")]
    Write,
    /// One of any number of readers.
    #[display("read")]
    Read,
}

/// One key or several, for which a request asks at once: all or none.
///
/// In a cluster all must have one hash slot.
pub trait IntoKeys {
    /// The keys, in their order.
    fn into_keys(self) -> Vec<String>;
}

impl IntoKeys for &str {
    fn into_keys(self) -> Vec<String> {
        vec![self.to_owned()]
    }
}

impl IntoKeys for String {
    fn into_keys(self) -> Vec<String> {
        vec![self]
    }
}

impl IntoKeys for &String {
    fn into_keys(self) -> Vec<String> {
        vec![self.clone()]
    }
}

impl<T: Into<String>> IntoKeys for Vec<T> {
    fn into_keys(self) -> Vec<String> {
        self.into_iter().map(T::into).collect()
    }
}

impl<T: Into<String>, const N: usize> IntoKeys for [T; N] {
    fn into_keys(self) -> Vec<String> {
        self.into_iter().map(T::into).collect()
    }
}

impl<T: Into<String> + Clone> IntoKeys for &[T] {
    fn into_keys(self) -> Vec<String> {
        self.iter().cloned().map(T::into).collect()
    }
}

/// How a request waits for a lock that others have.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Waiting {
    /// On the server; all waits share one connection. A user without permission for the channel waits as with
    /// [`Waiting::Block`].
    #[default]
    Notify,
    /// On the server; each wait has a connection of its own.
    Block,
    /// The client asks again and again.
    Poll(Poll),
}

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

/// What a request asks for.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub(crate) keys: Arc<[String]>,
    pub(crate) mode: Mode,
    pub(crate) options: Options,
}

impl Wanted {
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_keys()?;
        if self.options.limit == Some(0) {
            return Err(Error::InvalidArgument("the limit is 0, and must be at least 1".into()));
        }
        Ok(())
    }

    pub(crate) fn check_keys(&self) -> Result<(), Error> {
        if self.keys.is_empty() {
            return Err(Error::InvalidArgument("at least one key is needed".into()));
        }
        Ok(())
    }

    /// The name under which a request is reported: the first key, unless another was given.
    pub(crate) fn label(&self) -> &str {
        self.options.label.as_deref().unwrap_or(&self.keys[0])
    }
}

/// The options that a request and the defaults of its maker have in common.
macro_rules! shared_options {
    () => {
        /// How long the hold lives without a renewal: at least 2 ms, and 10 s unless it is set. The server
        /// takes whole milliseconds, rounded up.
        pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
            self.options_mut().ttl = ttl.min($crate::options::LONGEST);
            self
        }

        /// How long [`acquire`](crate::Request::acquire) waits at most. Without it, until the lock is
        /// granted.
        pub fn wait(mut self, wait: std::time::Duration) -> Self {
            self.options_mut().wait = Some(wait.min($crate::options::LONGEST));
            self
        }

        /// Text that `SLOCK.INFO key FULL` shows with the hold and the request, up to 1024 bytes.
        pub fn metadata(mut self, metadata: impl Into<String>) -> Self {
            self.options_mut().metadata = Some(metadata.into());
            self
        }

        /// Whether the watchdog renews the hold. It does unless this says `false`.
        pub fn renew(mut self, renew: bool) -> Self {
            self.options_mut().renew = renew;
            self
        }

        /// The hold is lost this long after the grant, and not renewed any more. So a stuck task does not
        /// hold for ever.
        pub fn longest_lease(mut self, longest_lease: std::time::Duration) -> Self {
            self.options_mut().longest_lease = Some(longest_lease.min($crate::options::LONGEST));
            self
        }

        /// For reading: granted only while fewer than this many others read. A semaphore.
        pub fn limit(mut self, limit: u32) -> Self {
            self.options_mut().limit = Some(limit);
            self
        }

        /// The name under which [`Hooks`](crate::Hooks) and the log report it. The first key unless it is
        /// set.
        pub fn label(mut self, label: impl Into<String>) -> Self {
            self.options_mut().label = Some(label.into());
            self
        }

        /// The hold counts only when this many replicas have it; else it is released and the error is
        /// [`Error::TooFewReplicas`](crate::Error::TooFewReplicas). 0 unless it is set, and not for a quorum.
        ///
        /// A failover can still lose the lock, but only one that reached none of the replicas that remain.
        pub fn min_replicas(mut self, least: u32) -> Self {
            self.options_mut().min_replicas = least;
            self
        }

        /// How long to wait for the replicas, beyond the wait for the lock. 1 s unless it is set.
        pub fn replica_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.options_mut().replica_timeout = timeout.min($crate::options::LONGEST);
            self
        }
    };
}

pub(crate) use shared_options;
