//! What was granted: what a program sees of it and does with it, whether by one server or by a quorum. It keeps
//! the lease, and tells of its end.

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use derive_more::{Debug, Deref};
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::clock::Moment;
use crate::commands::Owner;
use crate::errors::{Error, Reason};
use crate::lease::{Granted, Lease, Phase};
use crate::options::{LONGEST, Mode, SHORTEST_TTL, Wanted};
use crate::shared::{GRACE, Shared};

/// Timers may stand still while the machine sleeps. So a hold is looked at as often as this at least, or once
/// in a tenth of what is left.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Where locks are: on a single server, [`Single`](crate::Single), or on most of several, [`Majority`](crate::Majority).
///
/// A program that is to work with either is generic over it:
///
/// ```
/// use slock_client::{Error, LocksOf, Site};
///
/// async fn with_either<S: Site>(locks: &LocksOf<S>) -> Result<bool, Error> {
///     let hold = locks.write("job:42").acquire().await?;
///     hold.check()?;
///     hold.release().await
/// }
/// ```
pub trait Site: Operations {}

impl<S: Operations> Site for S {}

/// What differs between a single server and a quorum.
pub trait Operations: Send + Sync + Sized + 'static {
    /// What a hold has beside its lease.
    type Part: Send + Sync + 'static;

    /// How long a hold is valid after the command was sent that set its deadline.
    fn validity(&self, ttl: Duration) -> Duration;

    /// One acquisition. Nothing when it asks once and is refused. Boxed, so that the depth of types in the
    /// programs of users stays small.
    fn ask(shared: Arc<Shared<Self>>, wanted: Arc<Wanted>, once: bool) -> Asks<Option<HoldOf<Self>>>;

    /// A hold of what the token has already.
    fn adopt(shared: Arc<Shared<Self>>, wanted: Arc<Wanted>) -> Asks<HoldOf<Self>>;

    /// Extends the hold, and tells its lease.
    fn extend(
        hold: Arc<HoldViewOf<Self>>,
        ttl: Duration,
        until: Instant,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Gives whether the hold was there.
    fn release(hold: &HoldViewOf<Self>, until: Instant) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Leaves to others what the token may still hold.
    fn leave(_: &HoldViewOf<Self>) {}

    /// Releases what the token holds, and gives how much that was.
    fn release_token(
        shared: &Shared<Self>,
        owner: Owner,
    ) -> impl Future<Output = Result<usize, Error>> + Send;

    /// Closes the connections.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// Refuses a ttl that leaves no validity.
pub(crate) fn check_ttl<S: Site>(site: &S, ttl: Duration) -> Result<(), Error> {
    let text = match ttl {
        _ if ttl < SHORTEST_TTL => format!("the ttl is {ttl:?}, and must be at least 2 ms"),
        _ if site.validity(ttl).is_zero() => {
            format!("clocks may drift, so the ttl must be longer than {ttl:?}")
        }
        _ => return Ok(()),
    };
    Err(Error::InvalidArgument(text))
}

/// What asks for a hold.
pub type Asks<T> = BoxFuture<'static, Result<T, Error>>;

/// A hold that was granted. It is renewed until it is lost or released.
///
/// [`release`](HoldOf::release) releases it and tells whether it was still there. Dropping it releases it in the
/// background: a program that ends right after that should close its locks, which waits for it. For all else
/// see [`HoldViewOf`], to which it dereferences.
#[derive(Debug, Deref)]
#[debug("{view:?}")]
#[must_use = "the lock is released when its hold is dropped"]
pub struct HoldOf<S: Site> {
    #[deref]
    view: Arc<HoldViewOf<S>>,
    runtime: Handle,
    /// Nothing is to be done any more.
    is_over: bool,
}

/// All that can be seen and done with a hold but to end it. It can be given to tasks, and releases nothing when
/// it is dropped.
#[derive(Debug)]
#[debug("Hold {{ keys: {:?}, mode: {}, valid_until: {:?} }}", self.keys(), self.mode(), self.valid_until())]
pub struct HoldViewOf<S: Site> {
    pub(crate) shared: Arc<Shared<S>>,
    pub(crate) owner: Owner,
    pub(crate) part: S::Part,
    lease: Mutex<Lease>,
    ended: Notify,
    since: Moment,
    /// Dead when the runtime has shut down on which the hold was renewed.
    renewed: Mutex<Weak<()>>,
}

impl<S: Site> HoldOf<S> {
    pub(crate) fn new(shared: Arc<Shared<S>>, owner: Owner, part: S::Part, granted: Granted) -> Self {
        let validity = shared.site.validity(owner.wanted.options.ttl);
        let lease = Mutex::new(Lease::new(granted, &owner.wanted, validity));
        let (ended, since, renewed) = (Notify::new(), granted.sent, Mutex::default());
        let view = Arc::new(HoldViewOf { shared, owner, part, lease, ended, since, renewed });
        view.renew_by_the_watchdog();
        Self { view, runtime: Handle::current(), is_over: false }
    }

    /// A view of this hold for another task.
    pub fn view(&self) -> Arc<HoldViewOf<S>> {
        self.view.clone()
    }

    /// Releases the hold. Gives whether it was still there and valid until now; what was lost stays lost,
    /// also when the server still has it. Of a quorum it has to be there on more than half of the servers.
    /// When the future is dropped, the release goes on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when the server did not answer for `retry_for`, with the last error as its cause;
    /// [`Error::QuorumMissed`] when too few servers answered to know. Then the release goes on in the
    /// background until the validity is over. A lasting error of the server.
    pub async fn release(mut self) -> Result<bool, Error> {
        let valid = self.view.end_here();
        let there = S::release(&self.view, self.view.shared.limit()).await;
        self.is_over = there.is_ok();
        if !valid {
            return Ok(false);
        }
        there.inspect_err(|error| self.view.release_failed(error))
    }

    /// Ends the hold here without releasing it: it is renewed no more, and whoever has token and keys adopts
    /// it until its ttl is over.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when there is nothing to hand over.
    pub fn hand_over(self) -> Result<(), Error> {
        self.check()?;
        self.leave();
        Ok(())
    }

    /// Ends it here, and leaves to others what the token may still hold.
    pub(crate) fn leave(mut self) {
        self.view.end_here();
        S::leave(&self.view);
        self.is_over = true;
    }
}

impl<S: Site> Drop for HoldOf<S> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let view = self.view.clone();
        // Not when a release failed, which was told.
        let mut tell = view.end_here();
        self.view.shared.spawn(&self.runtime, async move {
            for until in [view.shared.limit(), view.valid_until()] {
                let Err(error) = S::release(&view, until).await else { return };
                if std::mem::take(&mut tell) {
                    view.release_failed(&error);
                }
                if !matches!(error, Error::TimedOut { .. }) {
                    return;
                }
            }
        });
    }
}

impl<S: Site> HoldViewOf<S> {
    /// The owner's identity. Who has it and the keys can adopt and release the hold.
    pub fn token(&self) -> &str {
        &self.owner.token
    }

    /// The keys, in the order in which they were asked for.
    pub fn keys(&self) -> &[String] {
        self.owner.keys()
    }

    /// Whether the hold excludes others or shares with readers.
    pub fn mode(&self) -> Mode {
        self.lease().mode
    }

    /// The text that was given with the request. An adopted hold has none.
    pub fn metadata(&self) -> Option<&str> {
        self.owner.wanted.options.metadata.as_deref()
    }

    /// The hold is lost at this moment unless it is renewed before. It counts from before the request was sent
    /// that set the deadline.
    ///
    /// The library counts on a clock that goes on while the machine sleeps, and `Instant` may stand still: ask
    /// anew rather than keep the answer.
    pub fn valid_until(&self) -> Instant {
        self.lease().end().instant()
    }

    /// Asks nothing of the server: call it before each step that matters.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold was lost, with the error of the last renewal if that failed;
    /// [`Error::NotHeld`] when it was released.
    pub fn check(&self) -> Result<(), Error> {
        match self.update(|lease, _| lease.phase) {
            Phase::Held => Ok(()),
            Phase::Released => Err(Error::NotHeld),
            Phase::Lost(reason) => Err(self.lost_error(reason)),
        }
    }

    /// Why the hold was lost; nothing when it is there, or was released.
    pub fn lost_reason(&self) -> Option<Reason> {
        match self.update(|lease, _| lease.phase) {
            Phase::Lost(reason) => Some(reason),
            _ => None,
        }
    }

    /// Ends when the hold is lost, and gives why. It never ends when the hold is released: have it in
    /// `select!` beside the work, not in a task of its own. [`check`](HoldViewOf::check) then gives the error,
    /// with its cause.
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

    /// Makes the hold valid for this ttl from now on. It never shortens: to shorten, release. Later renewals
    /// take the longest ttl that was asked for. A server of a quorum that has lost the hold is asked to grant
    /// it anew, as long as a majority has it.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold is gone, of a quorum on the majority. [`Error::TimedOut`] when no answer
    /// came for `retry_for`, [`Error::QuorumMissed`] when a majority did not answer: the hold may still be
    /// valid, and this may be tried again. [`Error::InvalidArgument`] for a ttl that leaves no validity: the
    /// hold stays as it is.
    pub async fn extend(self: &Arc<Self>, ttl: Duration) -> Result<(), Error> {
        self.extend_until(ttl, self.shared.limit()).await
    }

    pub(crate) async fn extend_until(self: &Arc<Self>, ttl: Duration, until: Instant) -> Result<(), Error> {
        check_ttl(&self.shared.site, ttl)?;
        self.may_change()?;
        self.renew_by_the_watchdog();
        let extended = S::extend(self.clone(), ttl.min(LONGEST), until).await;
        extended.map_err(|error| self.unless_over(error))?;
        self.check()
    }

    pub(crate) fn may_change(&self) -> Result<(), Error> {
        self.check()?;
        self.shared.unless_closed()
    }

    fn renew_by_the_watchdog(self: &Arc<Self>) {
        if self.owner.wanted.options.renew {
            let mut renewed = self.renewed.lock().expect("no panic while this is locked");
            if renewed.strong_count() == 0 {
                *renewed = self.shared.watchdog.add(self.clone().renew_until_the_end(), &self.shared.closing);
            }
        }
    }

    pub(crate) fn lost_error(&self, reason: Reason) -> Error {
        let source = self.lease().cause(reason).map(Box::new);
        Error::Lost { reason, keys: self.owner.keys().clone(), source }
    }

    /// For what the clock does not change.
    pub(crate) fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().expect("no panic while a lease is locked")
    }

    /// Looks at the clock before and after the change. Hooks run when the lease is unlocked again.
    pub(crate) fn update<R>(&self, change: impl FnOnce(&mut Lease, Moment) -> R) -> R {
        let (result, ended) = {
            let mut lease = self.lease();
            let before = lease.phase;
            let now = Moment::now();
            lease.look(now);
            let result = change(&mut lease, now);
            lease.look(now);
            (result, (before != lease.phase).then_some(lease.phase))
        };
        if let Some(phase) = ended {
            self.ended.notify_waiters();
            self.report(phase);
        }
        result
    }

    fn report(&self, phase: Phase) {
        let (label, reporter) = (self.owner.wanted.label(), &self.shared.reporter);
        if let Phase::Lost(reason) = phase {
            let cause = self.lease().cause(reason);
            reporter.lost(label, reason, cause.as_ref());
        }
        reporter.held(label, self.since);
    }

    /// Gives whether it was valid until now.
    fn end_here(&self) -> bool {
        self.update(|lease, _| lease.release())
    }

    fn release_failed(&self, error: &Error) {
        self.shared.reporter.release_failed(self.owner.wanted.label(), error);
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

    async fn renew_until_the_end(self: Arc<Self>) {
        tokio::select! {
            biased;
            _ = self.end() => {}
            () = self.renew_again_and_again() => {}
        }
    }

    /// The base library puts what is sent at once into one write. So holds that are due together are renewed
    /// by one pipeline.
    async fn renew_again_and_again(self: &Arc<Self>) {
        loop {
            let (pause, ttl) = self.update(|lease, now| (lease.next_renewal(now), lease.ttl));
            tokio::time::sleep(pause).await;
            // Once, and with so little time for the answer that there are several before the validity ends.
            let until = Instant::now() + GRACE.min(ttl / 5) - GRACE;
            let error = match S::extend(self.clone(), ttl, until).await {
                // Lost, or the mode is being changed.
                Ok(()) | Err(Error::Lost { .. } | Error::NotHeld | Error::TimedOut { source: None, .. }) => {
                    continue;
                }
                Err(Error::TimedOut { source: Some(cause), .. }) => *cause,
                Err(error) => error,
            };
            self.shared.reporter.renewal_failed(self.owner.wanted.label(), &error);
            self.lease().error = Some(error);
        }
    }
}
