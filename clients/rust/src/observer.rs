use std::{fmt, time::Duration};

use crate::{Error, Reason};

/// How an acquisition ended.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// The hold was handed out.
    Granted,
    /// `try_acquire` was refused.
    Refused,
    /// The wait ran out.
    TimedOut,
    /// The caller dropped the future.
    Cancelled,
    /// Any other error.
    Failed(&'a Error),
}

impl fmt::Display for Outcome<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Granted => "granted",
            Outcome::Refused => "refused",
            Outcome::TimedOut => "timed out",
            Outcome::Cancelled => "cancelled",
            Outcome::Failed(error) => error.name(),
        })
    }
}

impl<'a> From<&'a Error> for Outcome<'a> {
    fn from(error: &'a Error) -> Self {
        match error {
            Error::TimedOut { .. } => Outcome::TimedOut,
            other => Outcome::Failed(other),
        }
    }
}

/// Hooks for metrics and traces. Each method does nothing unless it is implemented.
///
/// They are called from the library's tasks and from the caller's, so they must not block and must not panic.
/// `label` is the label of the request: its first key, unless it was given another.
pub trait Observer: Send + Sync + 'static {
    /// An acquisition ended after this time.
    fn waited(&self, label: &str, duration: Duration, outcome: Outcome<'_>) {
        let _ = (label, duration, outcome);
    }

    /// A hold ended, by release or loss, after this time.
    fn held(&self, label: &str, duration: Duration) {
        let _ = (label, duration);
    }

    /// A hold was lost. [`Observer::held`] follows.
    fn lost(&self, label: &str, reason: Reason) {
        let _ = (label, reason);
    }
}
