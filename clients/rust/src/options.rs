// SPDX-License-Identifier: MIT OR Apache-2.0

//! Options of requests, their defaults, and the checks before anything is sent.

use std::collections::HashSet;
use std::time::Duration;

use crate::errors::Error;
use crate::info::Mode;

/// Longer durations mean the same, and sums with them stay in the range of the clocks. No server takes a longer ttl.
pub(crate) const LONGEST: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);
/// A hold counts as valid for a little more than 1 ms less than its ttl.
pub(crate) const SHORTEST_TTL: Duration = Duration::from_millis(2);

/// A server that replies is used, however short an outage a call is to survive.
pub(crate) const ONE_ATTEMPT: Duration = Duration::from_millis(500);

/// Declares the options of a request: name, type and default of each, and how a value of the program is noted. It makes
/// `Options`, and `shared_options!`, which has the methods of requests and of `LocksBuilder`.
macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $default:expr, by |$given:ident: $from:ty| $noted:expr;)*) => {
        #[derive(Clone, Debug)]
        pub(crate) struct Options {
            pub(crate) token: Option<String>,
            $(pub(crate) $name: $type,)*
        }

        impl Default for Options {
            fn default() -> Self {
                Self { token: None, $($name: $default,)* }
            }
        }

        macro_rules! shared_options {
            () => { $(
                $(#[$doc])*
                pub fn $name(mut self, $given: $from) -> Self {
                    self.options_mut().$name = $noted;
                    self
                }
            )* };
        }
        pub(crate) use shared_options;
    };
}

options! {
    /// How long the lock lives without a renewal: at least 2 ms, by default 10 s. The server counts whole
    /// milliseconds; a part of one counts as one.
    ttl: Duration = Duration::from_secs(10), by |ttl: Duration| ttl.min(LONGEST);

    /// How long [`acquire`](crate::Request::acquire) waits at most. By default it waits until the lock is granted. With
    /// a wait of less than 1 ms it sends the request once.
    wait: Option<Duration> = None, by |wait: Duration| Some(wait.min(LONGEST));

    /// Lets at most this many readers hold the lock at once: a semaphore. For reading only. Give all requests for a key
    /// the same limit.
    limit: Option<u32> = None, by |limit: u32| Some(limit);

    /// A text of at most 1024 bytes that `SLOCK.INFO key FULL` shows. By default it names the host, the process, and
    /// the thread or task.
    metadata: Option<String> = None, by |metadata: impl Into<String>| Some(metadata.into());

    /// Whether the library renews the lock. It does by default. Without that the lock ends a ttl after the grant.
    renew: bool = true, by |renew: bool| renew;

    /// Maximum hold time: the lock is lost so long after the grant, and renewals cannot exceed it. So a program that is
    /// stuck does not hold the lock for ever.
    max_hold: Option<Duration> = None, by |most: Duration| Some(most.min(LONGEST));

    /// Minimum hold time: a release that comes earlier only ends the renewals. For jobs that start on several machines
    /// whose clocks differ, and must run once. At most the server's `slock.max-ttl-ms`: if it is longer than the ttl, the
    /// server is asked for that before the lock is.
    at_least: Duration = Duration::ZERO, by |least: Duration| least.min(LONGEST);

    /// The lock counts only if this many replicas acknowledge it, at the grant and at each renewal. At the grant it is
    /// otherwise released, and the error is [`Error::TooFewReplicas`](crate::Error::TooFewReplicas). By default 0. A
    /// quorum ignores it.
    min_replicas: u32 = 0, by |least: u32| least;

    /// How long replicas may take to acknowledge. By default 1 s.
    replica_timeout: Duration = Duration::from_secs(1), by |timeout: Duration| timeout.min(LONGEST);

    /// The name for [`Hooks`](crate::Hooks) and the log. By default the first key.
    label: Option<String> = None, by |label: impl Into<String>| Some(label.into());
}

impl Options {
    /// The error of a request with these options, before anything is sent.
    pub(crate) fn check(&self, keys: &[String], mode: Mode) -> Result<(), Error> {
        let wrong = match self.limit {
            _ if keys.is_empty() => "a request needs a key, and keys are text".into(),
            _ if keys.iter().any(String::is_empty) => "a key must not be empty".into(),
            _ if keys.len() > 1 && keys.iter().collect::<HashSet<_>>().len() < keys.len() => {
                "a key is named twice".into()
            }
            _ if self.max_hold.is_some_and(|most| most.is_zero()) => {
                "the max hold must be more than 0".into()
            }
            Some(_) if mode == Mode::Write => "a limit is for reading only".into(),
            Some(limit) if limit < 1 || limit > i32::MAX as u32 => {
                format!("the limit must be 1 to {}, not {limit}", i32::MAX)
            }
            _ => return Ok(()),
        };
        Err(Error::Invalid(wrong))
    }
}

/// How a [`Quorum`](crate::Quorum) tries again: after which pauses, and how often.
#[derive(Clone, Debug)]
pub struct Poll {
    first: Duration,
    most: Duration,
    has_jitter: bool,
    attempts: Option<u32>,
}

impl Poll {
    /// Tries once, and never again.
    pub fn none() -> Self {
        Self::constant(Duration::ZERO).limit(0)
    }

    /// Tries again after the same pause each time.
    pub fn constant(pause: Duration) -> Self {
        Self { first: pause, most: pause, has_jitter: false, attempts: None }
    }

    /// Tries again after pauses that begin with `first` and double up to `most`. Each is shortened by a random part of up
    /// to a half, so that contenders do not try in step.
    pub const fn exponential(first: Duration, most: Duration) -> Self {
        Self { first, most, has_jitter: true, attempts: None }
    }

    /// At most this many further attempts.
    pub fn limit(mut self, attempts: u32) -> Self {
        self.attempts = Some(attempts);
        self
    }

    /// The pause before a further attempt, counted from 0; nothing if there is to be none.
    pub(crate) fn pause(&self, number: u32) -> Option<Duration> {
        if self.attempts.is_some_and(|attempts| number >= attempts) {
            return None;
        }
        let pause = self.first.saturating_mul(1 << number.min(30)).min(self.most);
        Some(if self.has_jitter { shortened(pause) } else { pause })
    }
}

/// The pauses after errors that pass.
pub(crate) const AFTER_ERRORS: Poll = Poll::exponential(Duration::from_millis(10), Duration::from_secs(1));
/// The pauses of a request that cannot wait by a message.
pub(crate) const POLLING: Poll = Poll::exponential(Duration::from_millis(20), Duration::from_secs(1));

/// A duration less a random part of up to a half.
pub(crate) fn shortened(duration: Duration) -> Duration {
    let part = getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX));
    duration.mul_f64(1.0 - part / 2.0)
}
