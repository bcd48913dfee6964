// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tells the program and the log what happens. It decides nothing.

use std::error::Error as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use redis::RedisError;
use tracing::{debug, info, warn};

use crate::errors::{Error, Reason};
use crate::protocol::Wanted;

/// Functions for metrics. Each does nothing unless it is implemented.
///
/// They are called with the label of the request, which is the first key unless it has another. The current span is the
/// one of the call, or the one in which the hold was acquired. They are called from several tasks at once, and must not
/// block. A panic of one is logged, and changes nothing.
#[expect(unused_variables)]
pub trait Hooks: Send + Sync + 'static {
    /// An acquisition ended after this time: `granted`, `refused` (by `try_acquire`), `timed out`, `cancelled`, or the name
    /// of the error.
    fn waited(&self, label: &str, duration: Duration, outcome: &str) {}

    /// A hold ended, released or lost, this time after the grant.
    fn held(&self, label: &str, duration: Duration) {}

    /// A hold was lost.
    fn lost(&self, label: &str, keys: &[String], reason: Reason) {}

    /// A renewal got an error or no reply. It is sent again until the hold expires.
    fn renewal_failed(&self, label: &str, error: &Error) {}

    /// A release got an error, or no reply in time. The lock ends by its ttl, unless the release that goes on in the
    /// background succeeds.
    fn release_failed(&self, label: &str, error: &Error) {}
}

/// Without hooks.
impl Hooks for () {}

/// Calls the hooks and writes the log of one `Locks`.
pub(crate) struct Reporter(pub(crate) Box<dyn Hooks>);

impl Reporter {
    fn call(&self, hook: impl FnOnce(&dyn Hooks)) {
        if catch_unwind(AssertUnwindSafe(|| hook(&*self.0))).is_err() {
            warn!("a hook panicked");
        }
    }

    /// An acquisition ended.
    pub(crate) fn waited(&self, wanted: &Wanted, began: Instant, outcome: &str) {
        let (label, duration) = (wanted.label(), began.elapsed());
        debug!(label, ?duration, outcome, "an acquisition ended");
        self.call(|hooks| hooks.waited(label, duration, outcome));
    }

    pub(crate) fn held(&self, wanted: &Wanted, duration: Duration) {
        self.call(|hooks| hooks.held(wanted.label(), duration));
    }

    pub(crate) fn lost(&self, wanted: &Wanted, loss: &Error) {
        let Error::Lost { reason, details } = loss else { return };
        let (keys, cause) = (&details.keys, loss.source().map(tracing::field::display));
        warn!(?keys, label = wanted.label(), %reason, cause, "a lock was lost");
        self.call(|hooks| hooks.lost(wanted.label(), keys, *reason));
    }

    pub(crate) fn renewal_failed(&self, wanted: &Wanted, error: &Error) {
        debug!(keys = ?wanted.keys, label = wanted.label(), %error, "a renewal failed");
        self.call(|hooks| hooks.renewal_failed(wanted.label(), error));
    }

    pub(crate) fn release_failed(&self, wanted: &Wanted, error: &Error) {
        warn!(keys = ?wanted.keys, label = wanted.label(), %error, "a release failed; the lock ends by its ttl");
        self.call(|hooks| hooks.release_failed(wanted.label(), error));
    }

    /// Nothing limits the hold.
    pub(crate) fn held_long(&self, wanted: &Wanted) {
        warn!(keys = ?wanted.keys, label = wanted.label(), "a lock has been held for an hour and has no maximum hold time");
    }

    pub(crate) fn polls(&self, error: &RedisError) {
        warn!(%error, "waits poll, and are not served in order, because no channel can be used");
    }
}

/// How long no reply comes before that is logged: a connection may be lost at any time.
const LOG_OUTAGE_AFTER: Duration = Duration::from_secs(1);

/// Since when one server does not reply, if so, and whether that was logged.
#[derive(Default)]
pub(crate) struct Outage(Mutex<Option<(Instant, bool)>>);

impl Outage {
    /// Notes whether the server replied.
    pub(crate) fn reached(&self, server: &str, error: Option<&RedisError>) {
        let mut outage = self.0.lock().expect("nothing panics here");
        let Some(error) = error else {
            if let Some((_, true)) = outage.take() {
                info!(server, "the server replies again");
            }
            return;
        };
        let (since, is_logged) = outage.get_or_insert((Instant::now(), false));
        if since.elapsed() > LOG_OUTAGE_AFTER && !std::mem::replace(is_logged, true) {
            warn!(server, %error, "no reply from the server");
        }
    }
}
