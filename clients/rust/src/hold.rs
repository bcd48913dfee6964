use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::attempt::{Attempt, End, Granted, Purpose};
use crate::command::{self, Owner};
use crate::given_tokens::Ending;
use crate::lease::{Grant, Lease, counted};
use crate::locks::Inner;
use crate::node::Link;
use crate::options::{LONGEST, Options, check_ttl};
use crate::{Error, Mode, Reason, route};

const LATE_DOWNGRADE: &str = "a downgrade of this hold got no answer and may still be carried out; release \
                              the hold and acquire it anew";

/// What all views of one hold share.
pub(crate) struct Core {
    pub(crate) inner: Arc<Inner>,
    pub(crate) owner: Owner,
    pub(crate) lease: Lease,
    /// Locked while a command is under way that sets the deadline.
    pub(crate) renewing: Arc<tokio::sync::Mutex<()>>,
    /// Locked while the mode or the ttl is being changed.
    changing: Arc<tokio::sync::Mutex<()>>,
    granted: Mutex<FenceAndMode>,
    label: Arc<str>,
    metadata: Option<String>,
    wait: Option<Duration>,
    /// Its number with the watchdog.
    watched: OnceLock<u64>,
}

struct FenceAndMode {
    fence: i64,
    mode: Mode,
    /// An upgrade was sent, so the server may be ahead.
    mode_is_certain: bool,
    /// A downgrade got no answer, so it may be executed at any later time.
    late_downgrade: bool,
}

impl Core {
    fn granted(&self) -> std::sync::MutexGuard<'_, FenceAndMode> {
        self.granted.lock().expect("no panic while the fence is locked")
    }

    pub(crate) fn changed(&self, fence: i64, mode: Mode) {
        let mut granted = self.granted();
        (granted.fence, granted.mode) = (fence, mode);
    }

    /// A command that sets the deadline got no answer.
    pub(crate) fn late_extension(&self, ttl: Duration) {
        self.lease.may_come_late(counted(ttl));
    }

    /// A downgrade got no answer.
    pub(crate) fn late_downgrade(&self, ttl: Duration) {
        self.late_extension(ttl);
        self.granted().late_downgrade = true;
    }

    fn may_upgrade(&self) -> Result<(), Error> {
        if self.granted().late_downgrade {
            return Err(Error::WrongMode(LATE_DOWNGRADE.into()));
        }
        Ok(())
    }
}

/// A hold that was granted. It is renewed until it is lost or released.
///
/// [`Hold::release`] releases it and tells whether it was still there. Dropping it releases it in the
/// background: a program that ends right after that should call [`Locks::close`](crate::Locks::close), which
/// waits for it. For its properties see [`HoldView`], to which it dereferences.
#[must_use = "the lock is released when its hold is dropped"]
pub struct Hold {
    view: HoldView,
    runtime: Handle,
    /// Connections on which an earlier attempt got no answer.
    unanswered: Vec<Link>,
    released: bool,
    /// The release runs.
    ending: Option<Ending>,
}

/// All that can be seen and done with a hold but to release it. It can be cloned and given to tasks, and
/// releases nothing when it is dropped.
#[derive(Clone)]
pub struct HoldView {
    core: Arc<Core>,
}

impl Hold {
    pub(crate) fn new(
        inner: &Arc<Inner>,
        owner: Owner,
        mode: Mode,
        options: &Options,
        granted: Granted,
    ) -> Self {
        let label = options.label(&owner.keys);
        let lease = Lease::new(Grant {
            sent: granted.sent,
            ttl: options.ttl,
            valid_until: granted.sent + counted(options.ttl),
            longest_lease: options.longest_lease,
            keys: owner.keys.clone(),
            label: label.clone(),
            observer: inner.observer.clone(),
        });
        if granted.late {
            lease.may_come_late(counted(options.ttl));
        }
        let core = Arc::new(Core {
            inner: inner.clone(),
            owner,
            lease,
            renewing: Arc::default(),
            changing: Arc::default(),
            granted: Mutex::new(FenceAndMode {
                fence: granted.fence,
                mode,
                mode_is_certain: true,
                late_downgrade: false,
            }),
            label,
            metadata: options.metadata.clone(),
            wait: options.wait,
            watched: OnceLock::new(),
        });
        if options.renew {
            core.watched.get_or_init(|| inner.watchdog.add(&core));
        }
        let runtime = Handle::current();
        Self {
            view: HoldView { core },
            runtime,
            unanswered: granted.unanswered,
            released: false,
            ending: None,
        }
    }

    /// A view of this hold for another task.
    pub fn view(&self) -> HoldView {
        self.view.clone()
    }

    /// Releases the hold. Gives whether it was still there and valid until now; what was lost stays lost,
    /// also when the server still has it.
    ///
    /// When the future is dropped, the release goes on in the background. A lost hold whose token was given is
    /// not released: the token may have a later hold, which that would end.
    ///
    /// # Errors
    ///
    /// An error of the server, or of the connection when it lasted as long as `retry_for` or the validity.
    /// Then the release is tried again in the background until the validity is over.
    pub async fn release(mut self) -> Result<bool, Error> {
        let until = self.core.lease.valid_until().min(Instant::now() + self.core.inner.retry_for);
        let valid = self.begin_release();
        if self.must_stay() {
            return Ok(false);
        }
        let called = route::call(&self.core.inner, &self.core.owner, &self.release_command(), until).await;
        self.core.inner.close_what_was_opened_later();
        let called = match called {
            // The hold was over anyway.
            Err(Error::Redis(_)) if !valid => return Ok(false),
            called => called?,
        };
        self.released = true;
        let count = self.core.owner.keys.len();
        let all = called.number.is_some_and(|number| usize::try_from(number) == Ok(count));
        // When an earlier attempt got no answer, that one did it.
        let earlier = called.repeated && called.number == Some(0);
        Ok(valid && (all || earlier))
    }

    fn begin_release(&mut self) -> bool {
        if let Some(number) = self.core.watched.get() {
            self.core.inner.watchdog.remove(*number);
        }
        if self.ending.is_none() {
            self.ending = self.core.inner.given_tokens.ending(&self.core.owner);
        }
        self.core.lease.begin_release()
    }

    /// A release of a lost hold could end a later one of the same token.
    fn must_stay(&self) -> bool {
        self.core.owner.given && self.core.lease.reason().is_some()
    }

    fn release_command(&self) -> redis::Cmd {
        let granted = self.core.granted();
        command::release(&self.core.owner, granted.mode_is_certain.then_some(granted.mode))
    }
}

impl Deref for Hold {
    type Target = HoldView;

    fn deref(&self) -> &HoldView {
        &self.view
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view.fmt(f)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let valid_until = self.core.lease.valid_until();
        self.begin_release();
        let given = self.core.owner.given;
        // A given token may have a later hold by the time these connections deliver anything.
        let unanswered = if given { Vec::new() } else { std::mem::take(&mut self.unanswered) };
        if self.must_stay() || (self.released && unanswered.is_empty()) {
            return;
        }
        let longest = valid_until.max(Instant::now() + self.core.inner.retry_for);
        let until = if given { valid_until } else { longest };
        let ending = self.ending.take();
        let release = self.release_command();
        let core = self.core.clone();
        let released = self.released;
        let work = async move {
            // What an earlier attempt left on its way there must not be granted after this release.
            for link in unanswered {
                let _ = link.send(&release).await;
            }
            if !released {
                let _ = route::call(&core.inner, &core.owner, &release, until).await;
            }
            drop(ending);
        };
        self.core.inner.in_background(&self.runtime, work);
    }
}

impl HoldView {
    /// The owner's identity. Who has it and the keys can adopt, extend and release the hold.
    pub fn token(&self) -> &str {
        &self.core.owner.token
    }

    /// The keys, in the order in which they were asked for.
    pub fn keys(&self) -> &[String] {
        &self.core.owner.keys
    }

    /// The number of this hold: greater than those of all earlier holds of the server. Send it with every
    /// write, and have the storage refuse a write with a lesser one. An upgrade or a downgrade gives a new
    /// one.
    pub fn fence(&self) -> i64 {
        self.core.granted().fence
    }

    /// Whether the hold excludes others or shares with readers.
    pub fn mode(&self) -> Mode {
        self.core.granted().mode
    }

    /// The text that was given with the request. An adopted hold has none.
    pub fn metadata(&self) -> Option<&str> {
        self.core.metadata.as_deref()
    }

    /// The hold is lost at this moment unless it is renewed before. It counts from before the request was
    /// sent that set the deadline.
    pub fn valid_until(&self) -> Instant {
        self.core.lease.valid_until()
    }

    /// Asks nothing of the server: call it before each step that matters.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold was lost, with the error of the last renewal if that failed;
    /// [`Error::NotHeld`] when it was released.
    pub fn check(&self) -> Result<(), Error> {
        self.core.lease.check()
    }

    /// Why the hold was lost; nothing when it is there, or was released.
    pub fn lost_reason(&self) -> Option<Reason> {
        self.core.lease.reason()
    }

    /// Ends when the hold is lost, and gives why. It never ends when the hold is released: have it in
    /// `select!` beside the work, not in a task of its own. [`HoldView::check`] then gives the error, with its
    /// cause.
    pub async fn lost(&self) -> Reason {
        self.core.lease.lost().await
    }

    /// Runs the work, and drops it when the hold is lost meanwhile. The hold is not released.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold was lost before the work was done, also when the work noticed nothing of
    /// it because it blocked its thread.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        self.core.lease.run(work).await
    }

    /// Sets a new ttl from now on. It may be shorter than before. The watchdog goes on with it. Until the
    /// answer has come, and when the future is dropped, the validity that is shorter counts.
    ///
    /// An extension that got no answer, or whose future was dropped, may be carried out at any later time. So
    /// from then on no extension of this hold counts for longer than that one.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold is gone, or when no answer came as long as it was valid.
    /// [`Error::InvalidArgument`] for a ttl below 2 ms: the hold stays as it is.
    pub async fn extend(&self, ttl: Duration) -> Result<(), Error> {
        let core = &self.core;
        check_ttl(ttl)?;
        self.may_change()?;
        let _rescheduled = core.inner.watchdog.reschedule_later(core.watched.get(), core);
        let _changing = core.changing.lock().await;
        let _renewing = core.renewing.lock().await;
        self.may_change()?;
        let ttl = ttl.min(LONGEST);
        // The server may take it although its answer is lost.
        core.lease.may_end_at(Instant::now() + counted(ttl));
        let command = command::extend(&core.owner, ttl);
        let until = core.lease.valid_until();
        let late = || core.late_extension(ttl);
        let called = route::call_noting(&core.inner, &core.owner, &command, until, &late).await;
        let called = self.unless_lost(called)?;
        if called.number != Some(1) {
            core.lease.lose(Reason::Gone);
            return self.check();
        }
        core.lease.extended(ttl, called.sent, counted(ttl))
    }

    /// The reader becomes the writer in one step, without a release. It waits until the other readers have
    /// left, as long as the request said, or as long as it is told here. Gives the new fence.
    ///
    /// When the future is dropped, the upgrade is withdrawn and the hold reads on. When it was granted just
    /// before, it is downgraded again.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when other readers remain: the hold reads on. [`Error::Deadlock`] when another
    /// reader waits for its upgrade already. [`Error::SeveralKeys`] for a hold of several keys.
    /// [`Error::WrongMode`] when a downgrade of this hold got no answer: it may still be carried out.
    pub async fn upgrade(&self, wait: impl Into<Option<Duration>>) -> Result<i64, Error> {
        let core = &self.core;
        self.one_key()?;
        self.check()?;
        let changing = core.changing.clone().lock_owned().await;
        self.check()?;
        core.may_upgrade()?;
        core.granted().mode_is_certain = false;
        let wait = wait.into().or(core.wait).map(|wait| wait.min(LONGEST));
        let purpose =
            Purpose::Upgrade { hold: core.clone(), ttl: core.lease.ttl(), _operation: Arc::new(changing) };
        let mut attempt = Attempt::new(&core.inner, purpose, core.label.clone());
        let deadline = wait.map(|wait| Instant::now() + wait);
        let granted = match attempt.run(End::At(deadline)).await {
            Ok(Some(granted)) => granted,
            Ok(None) => return Err(Error::TimedOut { keys: core.owner.keys.clone(), source: None }),
            Err(error) => {
                if let Error::NotHeld = error {
                    core.lease.lose(Reason::Gone);
                }
                return Err(error);
            }
        };
        attempt.hand_over();
        core.changed(granted.fence, Mode::Write);
        let ttl = core.lease.ttl();
        core.lease.upgraded(granted.sent, ttl)?;
        Ok(granted.fence)
    }

    /// The writer becomes a reader in one step, with no writer in between. Gives the new fence.
    ///
    /// From the call on the hold counts as a reader's, also after an error and when the future is dropped.
    /// The same call then gives the fence.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] when the hold is gone, [`Error::SeveralKeys`] for a hold of several keys.
    pub async fn downgrade(&self) -> Result<i64, Error> {
        let core = &self.core;
        self.one_key()?;
        self.may_change()?;
        let _changing = core.changing.lock().await;
        let _renewing = core.renewing.lock().await;
        self.may_change()?;
        {
            let mut granted = core.granted();
            (granted.mode, granted.mode_is_certain) = (Mode::Read, false);
        }
        let ttl = core.lease.ttl();
        let command = command::downgrade(&core.owner, ttl);
        let until = core.lease.valid_until();
        let late = || core.late_downgrade(ttl);
        let called = route::call_noting(&core.inner, &core.owner, &command, until, &late).await;
        if let Err(Error::NotHeld) = called {
            core.lease.lose(Reason::Gone);
        }
        let called = self.unless_lost(called)?;
        let fence = called.number.unwrap_or_default();
        core.changed(fence, Mode::Read);
        core.lease.extended(ttl, called.sent, counted(ttl))?;
        Ok(fence)
    }

    /// The error for work whose hold was not there any more when it was released.
    pub(crate) fn lost_or_gone(&self) -> Error {
        let lease = &self.core.lease;
        lease.lost_error(lease.reason().unwrap_or(Reason::Gone))
    }

    /// An error that lasted until the hold was over is a loss.
    fn unless_lost<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        match result {
            Err(Error::Redis(error)) => {
                self.core.lease.not_extended(error.clone().into());
                Err(self.check().err().unwrap_or(error.into()))
            }
            other => other,
        }
    }

    fn may_change(&self) -> Result<(), Error> {
        self.check()?;
        self.core.inner.closing.unless_closed()
    }

    fn one_key(&self) -> Result<(), Error> {
        if self.keys().len() == 1 { Ok(()) } else { Err(Error::SeveralKeys) }
    }
}

impl fmt::Debug for HoldView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("keys", &self.keys())
            .field("mode", &self.mode())
            .field("fence", &self.fence())
            .field("valid_until", &self.valid_until())
            .finish_non_exhaustive()
    }
}
