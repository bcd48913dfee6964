//! What a program sees of a hold, on one server or on a quorum. It keeps the lease, and tells of its end.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::clock::Moment;
use crate::errors::{Error, Reason};
use crate::hooks::Reporter;
use crate::lease::{Lease, Phase};
use crate::options::{Mode, Wanted};

/// Timers may stand still while the machine sleeps. So a hold is looked at as often as this at least, or once
/// in a tenth of what is left.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// What can be seen of a hold: its owner, until when it is valid, whether it was lost.
pub struct Held {
    lease: Mutex<Lease>,
    ended: Notify,
    token: Arc<str>,
    wanted: Arc<Wanted>,
    since: Moment,
    reporter: Reporter,
}

impl Held {
    pub(crate) fn new(
        lease: Lease,
        token: Arc<str>,
        wanted: Arc<Wanted>,
        since: Moment,
        reporter: Reporter,
    ) -> Self {
        Self { lease: Mutex::new(lease), ended: Notify::new(), token, wanted, since, reporter }
    }

    /// The owner's identity. Who has it and the keys can adopt and release the hold.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The keys, in the order in which they were asked for.
    pub fn keys(&self) -> &[String] {
        &self.wanted.keys
    }

    /// Whether the hold excludes others or shares with readers.
    pub fn mode(&self) -> Mode {
        self.update(|lease, _| lease.mode)
    }

    /// The text that was given with the request. An adopted hold has none.
    pub fn metadata(&self) -> Option<&str> {
        self.wanted.options.metadata.as_deref()
    }

    /// The hold is lost at this moment unless it is renewed before. It counts from before the request was sent
    /// that set the deadline.
    ///
    /// The library counts on a clock that goes on while the machine sleeps, and `Instant` may stand still: ask
    /// anew rather than keep the answer.
    pub fn valid_until(&self) -> Instant {
        self.update(|lease, _| lease.end()).instant()
    }

    /// Asks nothing of the server: call it before each step that matters.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold was lost, with the error of the last renewal if that failed;
    /// [`Error::NotHeld`] when it was released.
    pub fn check(&self) -> Result<(), Error> {
        match self.phase() {
            Phase::Held => Ok(()),
            Phase::Released => Err(Error::NotHeld),
            Phase::Lost(reason) => Err(self.lost_error(reason)),
        }
    }

    /// Why the hold was lost; nothing when it is there, or was released.
    pub fn lost_reason(&self) -> Option<Reason> {
        match self.phase() {
            Phase::Lost(reason) => Some(reason),
            _ => None,
        }
    }

    /// Ends when the hold is lost, and gives why. It never ends when the hold is released: have it in
    /// `select!` beside the work, not in a task of its own. [`Held::check`] then gives the error, with its
    /// cause.
    pub async fn lost(&self) -> Reason {
        match self.end().await {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }

    /// Runs the work, and drops it when the hold is lost meanwhile. The hold is not released.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold was lost before the work was done, also when the work noticed nothing of
    /// it because it blocked its thread.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        self.check()?;
        let result = tokio::select! {
            biased;
            reason = self.lost() => return Err(self.lost_error(reason)),
            result = work => result,
        };
        self.check()?;
        Ok(result)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.update(|lease, _| lease.phase)
    }

    pub(crate) fn lost_error(&self, reason: Reason) -> Error {
        let cause = self.update(|lease, _| lease.cause(reason).cloned());
        Error::Lost { reason, keys: self.wanted.keys.clone(), source: cause.map(Box::new) }
    }

    /// Every access looks at the clock before and after it. Hooks run when the lease is unlocked again.
    pub(crate) fn update<R>(&self, change: impl FnOnce(&mut Lease, Moment) -> R) -> R {
        let (result, ended) = {
            let mut lease = self.lease.lock().expect("no panic while a lease is locked");
            let before = lease.phase;
            let now = Moment::now();
            lease.look(now);
            let result = change(&mut lease, now);
            lease.look(now);
            let ended = (before == Phase::Held && lease.phase != Phase::Held).then_some(lease.phase);
            (result, ended)
        };
        if let Some(phase) = ended {
            self.ended.notify_waiters();
            self.report(phase);
        }
        result
    }

    fn report(&self, phase: Phase) {
        let (label, duration) = (self.wanted.label(), self.since.elapsed());
        match phase {
            Phase::Lost(reason) => {
                let cause = self.update(|lease, _| lease.cause(reason).cloned());
                self.reporter.held(label, duration, Some((reason, cause.as_ref())));
            }
            _ => self.reporter.held(label, duration, None),
        }
    }

    /// Ends it here. Gives whether it was valid until now.
    pub(crate) fn released(&self) -> bool {
        self.update(|lease, _| lease.release())
    }

    /// The answer to an extension of the hold with this fence. Gives whether that moved its deadline.
    pub(crate) fn extended(&self, answer: i64, fence: i64, ttl: Duration, valid_until: Moment) -> bool {
        self.update(|lease, _| {
            if answer == 1 {
                lease.extended(fence, ttl, valid_until);
            } else {
                lease.gone(fence);
            }
        });
        answer == 1
    }

    pub(crate) fn renewal_failed(&self, error: Error) {
        self.reporter.renewal_failed(self.wanted.label(), &error);
        self.update(|lease, _| lease.error = Some(error));
    }

    pub(crate) fn release_failed(&self, error: &Error) {
        self.reporter.release_failed(self.wanted.label(), error);
    }

    /// Ends with the hold, and gives why it was lost; nothing when it was released.
    pub(crate) async fn end(&self) -> Option<Reason> {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            let (phase, left) = self.update(|lease, now| (lease.phase, lease.end().since(now)));
            match phase {
                Phase::Lost(reason) => return Some(reason),
                Phase::Released => return None,
                Phase::Held => {}
            }
            tokio::select! {
                () = ended => {}
                () = tokio::time::sleep(left.min(BETWEEN_LOOKS.max(left / 10))) => {}
            }
        }
    }

    /// The error where an earlier one lasted until the hold was over.
    pub(crate) fn unless_over(&self, error: Error) -> Error {
        self.check().err().unwrap_or(error)
    }
}
