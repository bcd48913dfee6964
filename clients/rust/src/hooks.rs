//! Tells the program and the log what happens. It decides nothing.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::RedisError;
use tracing::{debug, info, warn};

use crate::errors::{Error, Reason};

/// How an acquisition ended.
#[derive(Clone, Copy, Debug)]
pub enum Outcome<'a> {
    /// It gave a hold.
    Granted,
    /// `try_acquire` found the lock held, or others waiting.
    Refused,
    /// The wait was over.
    TimedOut,
    /// The program dropped the future.
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

/// Functions for metrics. Each does nothing unless it is implemented.
///
/// They are called with the label of the request, which is the first key unless it has another. The current span is the
/// one of the call, or the one in which the hold was acquired. They are called from several tasks at once, and must
/// neither block nor panic.
#[expect(unused_variables)]
pub trait Hooks: Send + Sync + 'static {
    /// An acquisition ended after this time.
    fn waited(&self, label: &str, duration: Duration, outcome: Outcome<'_>) {}

    /// A hold ended, released or lost, this time after the grant.
    fn held(&self, label: &str, duration: Duration) {}

    /// A hold was lost. [`Hooks::held`] follows.
    fn lost(&self, label: &str, keys: &[String], reason: Reason) {}

    /// A renewal got an error or no reply. It is sent again until the hold expires.
    fn renewal_failed(&self, label: &str, error: &Error) {}

    /// A release got an error, or no reply in time. The lock ends by its ttl, unless the release that goes on in the
    /// background succeeds.
    fn release_failed(&self, label: &str, error: &Error) {}
}

/// Without hooks.
struct Nothing;

impl Hooks for Nothing {}

/// Calls the hooks and writes the log of one `Locks`.
pub(crate) struct Reporter {
    pub(crate) hooks: Arc<dyn Hooks>,
}

impl Default for Reporter {
    fn default() -> Self {
        Self { hooks: Arc::new(Nothing) }
    }
}

impl Reporter {
    pub(crate) fn lost(&self, label: &str, keys: &[String], loss: &Error) {
        let Error::Lost { reason, last, .. } = loss else { return };
        let cause = last.as_ref().map(tracing::field::display);
        warn!(?keys, label, %reason, cause, "a lock was lost");
        self.hooks.lost(label, keys, *reason);
    }

    pub(crate) fn renewal_failed(&self, label: &str, keys: &[String], error: &Error) {
        debug!(?keys, label, %error, "a renewal failed");
        self.hooks.renewal_failed(label, error);
    }

    pub(crate) fn release_failed(&self, label: &str, keys: &[String], error: &Error) {
        warn!(?keys, label, %error, "a release failed; the lock ends by its ttl");
        self.hooks.release_failed(label, error);
    }

    /// Nothing limits the hold.
    pub(crate) fn held_long(&self, label: &str, keys: &[String]) {
        warn!(?keys, label, "a lock has been held for an hour, and has no max_hold");
    }

    pub(crate) fn polls(&self, error: &RedisError) {
        warn!(%error, "waits poll, and are not served in order, because no channel can be used");
    }
}

/// How long no reply comes before that is logged: a connection may be lost at any time.
const LOG_OUTAGE_AFTER: Duration = Duration::from_secs(1);

/// Whether one server replies.
#[derive(Default)]
pub(crate) struct Outage {
    is_failing: AtomicBool,
    is_logged: AtomicBool,
    since: Mutex<Option<Instant>>,
}

impl Outage {
    /// Notes whether the server replied, and logs if that changes.
    pub(crate) fn reached(&self, server: &str, error: Option<&RedisError>) {
        let Some(error) = error else {
            // Mostly nothing changes, and nothing is written to.
            if self.is_failing.load(Ordering::Relaxed)
                && self.is_failing.swap(false, Ordering::Relaxed)
                && self.is_logged.swap(false, Ordering::Relaxed)
            {
                info!(server, "the server replies again");
            }
            return;
        };
        let mut since = self.since.lock().expect("nothing panics here");
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            *since = Some(Instant::now());
        } else if since.is_some_and(|since| since.elapsed() > LOG_OUTAGE_AFTER)
            && !self.is_logged.swap(true, Ordering::Relaxed)
        {
            warn!(server, %error, "no reply from the server");
        }
    }
}

/// An acquisition from its begin on. Its end is reported, also if its future is dropped.
pub(crate) struct Waited<'a> {
    reporter: &'a Reporter,
    label: &'a str,
    began: Instant,
    is_over: bool,
}

impl<'a> Waited<'a> {
    pub(crate) fn begin(reporter: &'a Reporter, label: &'a str) -> Self {
        Self { reporter, label, began: Instant::now(), is_over: false }
    }

    /// It gave this, or nothing for a refusal.
    pub(crate) fn end<T>(mut self, result: &Result<Option<T>, Error>) {
        self.is_over = true;
        self.report(match result {
            Ok(Some(_)) => Outcome::Granted,
            Ok(None) => Outcome::Refused,
            Err(Error::TimedOut { .. }) => Outcome::TimedOut,
            Err(error) => Outcome::Failed(error),
        });
    }

    fn report(&self, outcome: Outcome<'_>) {
        let (label, duration) = (self.label, self.began.elapsed());
        debug!(label, ?duration, %outcome, "an acquisition ended");
        self.reporter.hooks.waited(label, duration, outcome);
    }
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.report(Outcome::Cancelled);
        }
    }
}
