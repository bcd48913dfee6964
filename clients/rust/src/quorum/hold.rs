use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::runtime::Handle;

use super::attempt::Granted;
use super::members::{Members, Released};
use super::{Inner, renewal};
use crate::command::{self, Acquire};
use crate::given_tokens::Ending;
use crate::lease::{Grant, Lease};
use crate::options::{LONGEST, Options};
use crate::watchdog::Renewed;
use crate::{Error, Mode, Reason};

pub(super) struct Core {
    pub(super) inner: Arc<Inner>,
    pub(super) acquire: Arc<Acquire>,
    pub(super) members: Arc<Members>,
    pub(super) lease: Lease,
    /// Locked while the hold is extended, so that no grant passes a release.
    pub(super) renewing: Arc<tokio::sync::Mutex<()>>,
    fences: Mutex<Vec<Option<i64>>>,
    /// Its number with the watchdog.
    watched: OnceLock<u64>,
}

impl Core {
    fn fences(&self) -> std::sync::MutexGuard<'_, Vec<Option<i64>>> {
        self.fences.lock().expect("no panic while the fences are locked")
    }

    /// A command with this ttl got no answer from one of the servers.
    pub(super) fn may_come_late(&self, ttl: Duration) {
        self.lease.may_come_late(self.inner.validity(ttl));
    }

    pub(super) fn granted_anew(&self, number: usize, fence: i64) {
        self.fences()[number] = Some(fence);
    }
}

/// A hold on more than half of the servers. It is renewed until it is lost or released.
///
/// Dropping it releases it in the background, as with [`Hold`](crate::Hold). For its properties see
/// [`QuorumHoldView`], to which it dereferences.
#[must_use = "the lock is released when its hold is dropped"]
pub struct QuorumHold {
    view: QuorumHoldView,
    runtime: Handle,
    released: bool,
    /// The release runs.
    ending: Option<Arc<Ending>>,
}

/// All that can be seen and done with a hold of a quorum but to release it. It can be cloned and given to
/// tasks.
#[derive(Clone)]
pub struct QuorumHoldView {
    core: Arc<Core>,
}

impl QuorumHold {
    pub(super) fn new(
        inner: Arc<Inner>,
        acquire: Arc<Acquire>,
        members: Arc<Members>,
        options: &Options,
        granted: Granted,
    ) -> Self {
        let lease = Lease::new(Grant {
            sent: granted.sent,
            ttl: acquire.ttl,
            valid_until: granted.sent + inner.validity(acquire.ttl),
            longest_lease: options.longest_lease,
            keys: acquire.owner.keys.clone(),
            label: options.label(&acquire.owner.keys),
            observer: inner.observer.clone(),
        });
        if granted.late {
            lease.may_come_late(inner.validity(acquire.ttl));
        }
        let core = Arc::new(Core {
            inner: inner.clone(),
            acquire,
            members,
            lease,
            renewing: Arc::default(),
            fences: Mutex::new(granted.fences),
            watched: OnceLock::new(),
        });
        if options.renew {
            core.watched.get_or_init(|| inner.watchdog.add(&core));
        }
        Self { view: QuorumHoldView { core }, runtime: Handle::current(), released: false, ending: None }
    }

    /// A view of this hold for another task.
    pub fn view(&self) -> QuorumHoldView {
        self.view.clone()
    }

    /// Releases the hold on all servers. Gives whether it was valid until now and still there on more than
    /// half of them. What servers do not answer in time goes on in the background.
    pub async fn release(mut self) -> bool {
        let limit = self.core.inner.node_timeout(self.core.lease.ttl());
        let valid = self.begin_release();
        if self.must_stay() {
            return false;
        }
        {
            let renewing = self.core.renewing.clone();
            let _renewing = renewing.lock().await;
            self.released = true;
        }
        let answers = release_everywhere(&self.core, &self.runtime, self.ending.clone());
        let answers = answers.into_iter().map(|answer| tokio::time::timeout(limit, answer));
        let answers = join_all(answers).await;
        let there = answers.iter().filter(|answer| matches!(answer, Ok(Ok(Released::Yes))));
        valid && there.count() >= self.core.inner.majority()
    }

    fn begin_release(&mut self) -> bool {
        if let Some(number) = self.core.watched.get() {
            self.core.inner.watchdog.remove(*number);
        }
        if self.ending.is_none() {
            self.ending = self.core.inner.given_tokens.ending(&self.core.acquire.owner).map(Arc::new);
        }
        self.core.lease.begin_release()
    }

    /// A release of a lost hold could end a later one of the same token.
    fn must_stay(&self) -> bool {
        self.core.acquire.owner.given && self.core.lease.reason().is_some()
    }
}

fn release_everywhere(
    core: &Core,
    runtime: &Handle,
    ending: Option<Arc<Ending>>,
) -> Vec<tokio::sync::oneshot::Receiver<Released>> {
    let release = command::release(&core.acquire.owner, Some(core.acquire.mode));
    let until = Instant::now() + core.lease.ttl().max(Duration::from_secs(1));
    core.members.release(&core.inner, runtime, &release, until, ending)
}

impl Deref for QuorumHold {
    type Target = QuorumHoldView;

    fn deref(&self) -> &QuorumHoldView {
        &self.view
    }
}

impl fmt::Debug for QuorumHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view.fmt(f)
    }
}

impl Drop for QuorumHold {
    fn drop(&mut self) {
        self.begin_release();
        if self.released || self.must_stay() {
            return;
        }
        let ending = self.ending.take();
        let (core, runtime) = (self.core.clone(), self.runtime.clone());
        let work = async move {
            let _renewing = core.renewing.lock().await;
            release_everywhere(&core, &runtime, ending);
        };
        self.core.inner.background.spawn(&self.runtime, work);
    }
}

impl QuorumHoldView {
    /// The owner's identity, the same on all servers.
    pub fn token(&self) -> &str {
        &self.core.acquire.owner.token
    }

    /// The keys, in the order in which they were asked for.
    pub fn keys(&self) -> &[String] {
        &self.core.acquire.owner.keys
    }

    /// The fence of each server, in the order in which the servers were given; nothing where the lock was not
    /// granted. Fences of different servers cannot be compared.
    pub fn fences(&self) -> Vec<Option<i64>> {
        self.core.fences().clone()
    }

    /// Whether the hold excludes others or shares with readers.
    pub fn mode(&self) -> Mode {
        self.core.acquire.mode
    }

    /// The text that was given with the request. An adopted hold has none.
    pub fn metadata(&self) -> Option<&str> {
        self.core.acquire.metadata.as_deref()
    }

    /// The hold is lost at this moment unless it is renewed before: `ttl` after the first request was sent,
    /// less the drift.
    pub fn valid_until(&self) -> Instant {
        self.core.lease.valid_until()
    }

    /// Asks nothing of the servers: call it before each step that matters.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold was lost, [`Error::NotHeld`] when it was released.
    pub fn check(&self) -> Result<(), Error> {
        self.core.lease.check()
    }

    /// Why the hold was lost; nothing when it is there, or was released.
    pub fn lost_reason(&self) -> Option<Reason> {
        self.core.lease.reason()
    }

    /// Ends when the hold is lost, and gives why. It never ends when the hold is released.
    pub async fn lost(&self) -> Reason {
        self.core.lease.lost().await
    }

    /// Runs the work, and drops it when the hold is lost meanwhile. The hold is not released.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold was lost before the work was done.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        self.core.lease.run(work).await
    }

    /// Sets a new ttl on all servers. One that has lost the hold is asked to grant it anew, as long as a
    /// majority has it. Until a majority has answered, and when the future is dropped, the validity that is
    /// shorter counts. As with [`HoldView::extend`](crate::HoldView::extend), no extension counts for longer
    /// than one that got no answer from one of the servers.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the majority has lost the hold. [`Error::QuorumMissed`] when a majority did not
    /// answer: the hold may still be valid, and this may be tried again. [`Error::InvalidArgument`] for a ttl
    /// that leaves no validity: the hold stays as it is.
    pub async fn extend(&self, ttl: Duration) -> Result<(), Error> {
        self.core.inner.check_ttl(ttl)?;
        self.check()?;
        let core = &self.core;
        let _rescheduled = core.inner.watchdog.reschedule_later(core.watched.get(), core);
        let guard = self.core.renewing.clone().lock_owned().await;
        self.check()?;
        self.core.inner.closing.unless_closed()?;
        let ttl = ttl.min(LONGEST);
        self.core.lease.may_end_at(Instant::now() + self.core.inner.validity(ttl));
        let due = vec![renewal::Due { core: self.core.clone(), ttl, _renewing: guard }];
        match renewal::extend(&self.core.inner, due).await.pop().expect("one for one hold") {
            Renewed::Extended => self.check(),
            Renewed::Gone => {
                self.core.lease.lose(Reason::Gone);
                self.check()
            }
            Renewed::Failed(error) => {
                self.core.lease.not_extended(error.clone());
                self.check()?;
                Err(error)
            }
        }
    }
}

impl fmt::Debug for QuorumHoldView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumHold")
            .field("keys", &self.keys())
            .field("mode", &self.mode())
            .field("fences", &self.fences())
            .field("valid_until", &self.valid_until())
            .finish_non_exhaustive()
    }
}
