//! Hooks for metrics and traces, and the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use derive_more::Display;
use tracing::{debug, warn};

use crate::clock::Moment;
use crate::errors::{Error, Reason};

/// How an acquisition ended.
#[derive(Clone, Copy, Debug, Display)]
pub enum Outcome<'a> {
    /// The hold was handed out.
    #[display("granted")]
    Granted,
    /// `try_acquire` was refused.
    #[display("refused")]
    Refused,
    /// The limit of time was over.
    #[display("timed out")]
    TimedOut,
    /// The caller dropped the future.
    #[display("cancelled")]
    Cancelled,
    /// Any other error.
    #[display("{}", _0.name())]
    Failed(&'a Error),
}

/// Hooks for metrics and traces. Each method does nothing unless it is implemented.
///
/// They are called from the library's tasks and from the caller's, so they must not block and must not panic.
/// `label` is the label of the request: its first key, unless it was given another.
#[expect(unused_variables)]
pub trait Hooks: Send + Sync + 'static {
    /// An acquisition ended after this time.
    fn waited(&self, label: &str, duration: Duration, outcome: Outcome<'_>) {}

    /// A hold ended, by release, loss or handing over, after this time.
    fn held(&self, label: &str, duration: Duration) {}

    /// A hold was lost. [`Hooks::held`] follows.
    fn lost(&self, label: &str, reason: Reason) {}

    /// A renewal failed. It is tried again as long as the hold is valid.
    fn renewal_failed(&self, label: &str, error: &Error) {}

    /// A release got no answer in time, or was refused. Unless a later attempt in the background succeeds, the
    /// lock ends by its ttl.
    fn release_failed(&self, label: &str, error: &Error) {}
}

/// Tells the hooks and the log. At level `warn` is what an operator must know, all else at `debug`.
#[derive(Default)]
pub(crate) struct Reporter {
    hooks: Option<Box<dyn Hooks>>,
    /// One server of a quorum: only that it is out of reach is worth telling.
    is_part: bool,
    /// The log has said that the server is out of reach.
    out_of_reach: AtomicBool,
}

impl Reporter {
    pub(crate) fn new(hooks: impl Hooks) -> Self {
        Self { hooks: Some(Box::new(hooks)), ..Self::default() }
    }

    pub(crate) fn of_a_part() -> Self {
        Self { is_part: true, ..Self::default() }
    }

    fn tell(&self, log: impl FnOnce(), call: impl FnOnce(&dyn Hooks)) {
        if !self.is_part {
            log();
            self.hooks.as_deref().map(call);
        }
    }

    pub(crate) fn lost(&self, label: &str, reason: Reason, cause: Option<&Error>) {
        let cause = cause.map(tracing::field::display);
        self.tell(|| warn!(lock = label, %reason, cause, "lock lost"), |hooks| hooks.lost(label, reason));
    }

    pub(crate) fn held(&self, label: &str, since: Moment) {
        let duration = since.elapsed();
        self.tell(|| debug!(lock = label, ?duration, "held"), |hooks| hooks.held(label, duration));
    }

    pub(crate) fn renewal_failed(&self, label: &str, error: &Error) {
        let log = || debug!(lock = label, %error, "renewal failed");
        self.tell(log, |hooks| hooks.renewal_failed(label, error));
    }

    pub(crate) fn release_failed(&self, label: &str, error: &Error) {
        let log = || warn!(lock = label, %error, "release failed: the lock ends by its ttl");
        self.tell(log, |hooks| hooks.release_failed(label, error));
    }

    pub(crate) fn blocks(&self) {
        warn!("no permission for the channel: waits block a connection each from now on");
    }

    /// Once for each time that it is out of reach.
    pub(crate) fn out_of_reach(&self, error: &Error) {
        if !self.out_of_reach.swap(true, Ordering::Relaxed) {
            warn!(%error, "server out of reach");
        }
    }

    pub(crate) fn reached(&self) {
        if self.out_of_reach.load(Ordering::Relaxed) && self.out_of_reach.swap(false, Ordering::Relaxed) {
            debug!("server reached again");
        }
    }
}

/// An acquisition from its first command on. Its end is told, also when its future is dropped.
pub(crate) struct Waited<'a> {
    reporter: &'a Reporter,
    label: &'a str,
    /// Nothing when the end was told.
    started: Option<Instant>,
}

impl<'a> Waited<'a> {
    pub(crate) fn begin(reporter: &'a Reporter, label: &'a str) -> Self {
        Self { reporter, label, started: Some(Instant::now()) }
    }

    /// It gave this, or nothing for a refusal.
    pub(crate) fn end<T>(&mut self, result: &Result<Option<T>, Error>) {
        self.tell(match result {
            Ok(Some(_)) => Outcome::Granted,
            Ok(None) => Outcome::Refused,
            Err(Error::TimedOut { .. }) => Outcome::TimedOut,
            Err(error) => Outcome::Failed(error),
        });
    }

    fn tell(&mut self, outcome: Outcome<'_>) {
        if let Some(started) = self.started.take() {
            let (label, duration) = (self.label, started.elapsed());
            let log = || debug!(lock = label, ?duration, %outcome, "waited");
            self.reporter.tell(log, |hooks| hooks.waited(label, duration, outcome));
        }
    }
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        self.tell(Outcome::Cancelled);
    }
}
