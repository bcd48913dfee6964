//! A hold that was granted by a server: extended, changed in its mode, handed over, released.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;

use crate::acquisition::{Acquisition, Goal, Granted, Limits};
use crate::clock::Moment;
use crate::commands::{self, Acquire, Owner};
use crate::errors::{Error, Reason};
use crate::held::Held;
use crate::lease::{Lease, Phase, validity};
use crate::locks::Locks;
use crate::node::Words;
use crate::options::{LONGEST, Mode, Wanted, check_ttl};
use crate::replicas::Replicas;
use crate::request::{Holding, Locking, Request};
use crate::shared::Shared;
use crate::watchdog::Renew;
use crate::{answers, options};

/// What all views of one hold share.
struct Core {
    shared: Arc<Shared>,
    owner: Owner,
    held: Held,
    /// Locked while the mode is being changed.
    changing: OnceLock<Arc<tokio::sync::Mutex<()>>>,
    wait: Option<Duration>,
    renew: bool,
    /// Dead when the runtime has shut down on which the hold was renewed.
    renewed: Mutex<Weak<()>>,
}

/// A hold that was granted. It is renewed until it is lost or released.
///
/// [`Hold::release`] releases it and tells whether it was still there. Dropping it releases it in the
/// background: a program that ends right after that should call [`Locks::close`], which waits for it. For all
/// else see [`HoldView`] and [`Held`], to which it dereferences.
#[must_use = "the lock is released when its hold is dropped"]
pub struct Hold {
    view: HoldView,
    runtime: Handle,
    release: Release,
}

#[derive(Clone, Copy, PartialEq)]
enum Release {
    Due,
    /// It failed, and the hooks were told.
    Failed,
    /// Nothing is to be done any more.
    Done,
}

/// All that can be seen and done with a hold but to end it. It can be cloned and given to tasks, and releases
/// nothing when it is dropped.
#[derive(Clone)]
pub struct HoldView {
    core: Arc<Core>,
}

impl Locking for Locks {
    type Hold = Hold;

    fn request(&self, keys: impl options::IntoKeys, mode: Mode) -> Request<Self> {
        self.request(keys, mode)
    }

    async fn release(
        &self,
        keys: impl options::IntoKeys + Send,
        token: impl Into<String> + Send,
    ) -> Result<usize, Error> {
        self.release(keys, token).await
    }

    async fn close(&self) {
        self.close().await;
    }

    fn ask(&self, wanted: Wanted, once: bool) -> BoxFuture<'static, Result<Option<Hold>, Error>> {
        let shared = self.shared().clone();
        Box::pin(async move {
            wanted.check()?;
            let owner = Owner::new(wanted.keys.clone(), wanted.options.token.clone());
            let limits = Limits {
                once,
                deadline: wanted.options.wait.filter(|_| !once).map(|wait| Instant::now() + wait),
                retry_for: shared.retry_for,
                retry_wait_for: shared.retry_wait_for,
            };
            Hold::acquire(shared, wanted, owner, limits).await
        })
    }

    fn take_over(&self, wanted: Wanted, token: String) -> BoxFuture<'static, Result<Hold, Error>> {
        let shared = self.shared().clone();
        Box::pin(async move {
            wanted.check()?;
            shared.closing.unless_closed()?;
            let owner = Owner::new(wanted.keys.clone(), Some(token));
            let asks = commands::held_fence(&owner, wanted.mode, wanted.options.ttl);
            let answered = shared.call(&owner, &asks, shared.limit()).await?;
            match answers::number(&answered.value) {
                0 => Err(Error::NotHeld),
                fence => {
                    let granted = Granted { fence, sent: answered.sent, in_doubt: false };
                    Ok(Hold::new(shared, owner, wanted, granted))
                }
            }
        })
    }
}

impl Hold {
    /// The hold that is granted to this owner; nothing when it asks once and is refused.
    pub(crate) async fn acquire(
        shared: Arc<Shared>,
        wanted: Wanted,
        owner: Owner,
        limits: Limits,
    ) -> Result<Option<Self>, Error> {
        let options = &wanted.options;
        let replicas = Replicas { least: options.min_replicas, timeout: options.replica_timeout };
        let acquire = Acquire {
            owner: owner.clone(),
            mode: wanted.mode,
            ttl: options.ttl,
            limit: options.limit,
            metadata: options.metadata.clone(),
        };
        let goal = Goal::Hold {
            acquire: Arc::new(acquire),
            label: wanted.label(),
            replicas: Some(replicas).filter(|replicas| replicas.least > 0),
        };
        let granted = Acquisition::new(shared.clone(), goal, limits).run().await?;
        Ok(granted.map(|granted| Self::new(shared, owner, wanted, granted)))
    }

    fn new(shared: Arc<Shared>, owner: Owner, wanted: Wanted, granted: Granted) -> Self {
        let label = wanted.label();
        let options = wanted.options;
        let valid_until = granted.sent.after(validity(options.ttl));
        let lease = Lease::new(granted.fence, wanted.mode, options.ttl, valid_until)
            .ends_at(options.longest_lease.map(|longest| granted.sent.after(longest)))
            .in_doubt(granted.in_doubt);
        let held = Held::new(lease, &owner, options.metadata, label, granted.sent, shared.reporter.clone());
        let core = Arc::new(Core {
            shared,
            owner,
            held,
            changing: OnceLock::new(),
            wait: options.wait,
            renew: options.renew,
            renewed: Mutex::default(),
        });
        core.renew_by_the_watchdog();
        Self { view: HoldView { core }, runtime: Handle::current(), release: Release::Due }
    }

    /// A view of this hold for another task.
    pub fn view(&self) -> HoldView {
        self.view.clone()
    }

    /// Releases the hold. Gives whether it was still there and valid until now; what was lost stays lost,
    /// also when the server still has it. When the future is dropped, the release goes on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when the server did not answer for `retry_for`, with the last error as its cause.
    /// Then the release goes on in the background until the validity is over. A lasting error of the server.
    pub async fn release(mut self) -> Result<bool, Error> {
        let core = self.core.clone();
        let valid = core.held.update(|lease, _| lease.release());
        match core.release(core.shared.limit()).await {
            Ok(there) => {
                self.release = Release::Done;
                Ok(valid && there)
            }
            Err(_) if !valid => {
                self.release = Release::Failed;
                Ok(false)
            }
            Err(error) => {
                core.held.release_failed(&error);
                self.release = Release::Failed;
                Err(error)
            }
        }
    }

    /// Ends the hold here without releasing it: it is renewed no more, and whoever has token and keys adopts
    /// it until its ttl is over.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when there is nothing to hand over.
    pub fn hand_over(mut self) -> Result<(), Error> {
        self.check()?;
        self.core.held.update(|lease, _| lease.release());
        self.release = Release::Done;
        Ok(())
    }

    /// Whether a later request of the same token would meet what this one may still have on its way.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.core.held.update(|lease, _| lease.in_doubt)
    }
}

impl Holding for Hold {
    type View = HoldView;

    async fn extend(&self, ttl: Duration) -> Result<(), Error> {
        HoldView::extend(self, ttl).await
    }

    async fn release(self) -> Result<bool, Error> {
        self.release().await
    }

    fn hand_over(self) -> Result<(), Error> {
        self.hand_over()
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
        if self.release == Release::Done {
            return;
        }
        let core = self.core.clone();
        let valid = core.held.update(|lease, _| lease.release());
        let tell = valid && self.release == Release::Due;
        self.core.shared.in_background(&self.runtime, async move {
            let released = core.release(core.shared.limit()).await;
            if let Err(error) = released {
                if tell {
                    core.held.release_failed(&error);
                }
                if let Error::TimedOut { .. } = error {
                    let valid_until = core.held.valid_until();
                    let _ = core.release(valid_until).await;
                }
            }
        });
    }
}

impl Core {
    fn changing(&self) -> &Arc<tokio::sync::Mutex<()>> {
        self.changing.get_or_init(Arc::default)
    }

    fn renew_by_the_watchdog(self: &Arc<Self>) {
        if !self.renew {
            return;
        }
        let mut renewed = self.renewed.lock().expect("no panic while this is locked");
        if renewed.strong_count() == 0 {
            *renewed = self.shared.watchdog.add(self.clone());
        }
    }

    /// Gives whether the hold was there. By its fence, but when a command without an answer could bring the
    /// token a hold later: then nothing of it is to be left, and it is refused.
    async fn release(&self, until: Instant) -> Result<bool, Error> {
        let (fence, mode, in_doubt) =
            self.held.update(|lease, _| (lease.fence, lease.mode, lease.in_doubt || lease.changing));
        let (by_fence, all);
        let words = if in_doubt && !self.owner.given {
            all = commands::give_up(&self.owner);
            Words::Several(&all)
        } else {
            by_fence = commands::release(&self.owner, mode, fence);
            Words::One(&by_fence)
        };
        let answered = self.shared.call(&self.owner, words, until).await?;
        let numbers = answers::numbers(&answered.value);
        // Those of the withdrawals come first.
        let withdrawals = if numbers.len() > 1 { self.owner.keys.len() } else { 0 };
        let released: i64 = numbers.iter().skip(withdrawals).sum();
        // When an earlier copy got no answer, that one did it.
        Ok(usize::try_from(released) == Ok(self.owner.keys.len()) || (answered.repeated && released == 0))
    }

    /// Brings a downgrade to its end that is not known to be carried out. To ask for the mode would not do: the
    /// server refuses no downgrade, so an earlier copy could come later.
    async fn finish_downgrade(&self, ttl: Duration, fence: i64) {
        let downgrade = commands::downgrade(&self.owner, ttl, fence);
        let downgraded = self.shared.call(&self.owner, &downgrade, self.held.valid_until()).await;
        self.held.update(|lease, _| match downgraded {
            Ok(answered) => {
                let valid_until = answered.sent.after(validity(ttl));
                lease.changed(answers::number(&answered.value), Mode::Read, valid_until);
            }
            Err(Error::NotHeld) => {
                lease.unchanged();
                lease.lose(Reason::Gone);
            }
            Err(_) => {}
        });
    }

    /// An upgrade that was sent is not known to be carried out: it is given up, and the server tells the mode.
    async fn give_up_upgrade(&self, ttl: Duration) {
        let commands = commands::give_up_change(&self.owner, ttl);
        let valid_until = self.held.valid_until();
        let Ok(answered) = self.shared.call(&self.owner, &commands, valid_until).await else { return };
        let fences = answers::numbers(&answered.value);
        let [.., writer, reader] = fences[..] else { return };
        self.held.update(|lease, _| {
            let valid_until = answered.sent.after(validity(ttl));
            match (writer, reader) {
                (0, 0) => {
                    lease.unchanged();
                    lease.lose(Reason::Gone);
                }
                (0, fence) => lease.changed(fence, Mode::Read, valid_until),
                (fence, _) => lease.changed(fence, Mode::Write, valid_until),
            }
        });
    }
}

impl Renew for Core {
    fn held(&self) -> &Held {
        &self.held
    }

    async fn renew(&self, limit: Duration) -> Result<(), Error> {
        let (fence, ttl) = self.held.update(|lease, _| (lease.fence, lease.ttl));
        let extend = commands::extend(&self.owner, ttl, fence);
        let (sent, until) = (Moment::now(), Instant::now() + limit);
        match self.shared.servers.send(self.owner.first_key(), Words::One(&extend), until).await {
            Ok(value) => {
                self.shared.reporter.reached();
                self.held.extended(answers::number(&value), fence, ttl, sent.after(validity(ttl)));
                Ok(())
            }
            Err(failure) => {
                self.shared.servers.doubt();
                let is_answer = failure.is_answer();
                let error = failure.into_error();
                if !is_answer {
                    self.shared.reporter.out_of_reach(&error);
                }
                Err(error)
            }
        }
    }
}

/// A change of mode that was sent. When this is dropped before its answer was there, it goes on in the
/// background.
struct Change {
    core: Arc<Core>,
    ttl: Duration,
    to: Mode,
    /// It names the hold until the answer is there.
    fence: i64,
    runtime: Handle,
    /// Keeps other changes away until this one is known to have ended.
    one_at_a_time: Option<OwnedMutexGuard<()>>,
}

impl Change {
    async fn begin(core: &Arc<Core>, to: Mode) -> Self {
        let one_at_a_time = Some(core.changing().clone().lock_owned().await);
        let (ttl, fence) = core.held.update(|lease, _| (lease.ttl, lease.fence));
        Self { core: core.clone(), ttl, to, fence, runtime: Handle::current(), one_at_a_time }
    }

    /// From here on the server may be ahead.
    fn send(&self) {
        self.core.held.update(|lease, _| lease.begin_change());
    }

    fn granted(mut self, granted: &Granted) {
        self.one_at_a_time = None;
        self.core.held.update(|lease, _| {
            lease.changed(granted.fence, self.to, granted.sent.after(validity(self.ttl)));
            lease.in_doubt |= granted.in_doubt;
        });
    }

    fn refused(mut self, mode: Mode) {
        self.one_at_a_time = None;
        self.core.held.update(|lease, _| {
            lease.unchanged();
            lease.mode = mode;
        });
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let Some(one_at_a_time) = self.one_at_a_time.take() else { return };
        let open = self.core.held.update(|lease, _| {
            lease.in_doubt |= lease.changing;
            lease.changing && lease.phase == Phase::Held
        });
        if !open {
            return;
        }
        let (core, ttl, to, fence) = (self.core.clone(), self.ttl, self.to, self.fence);
        self.core.shared.in_background(&self.runtime, async move {
            match to {
                Mode::Write => core.give_up_upgrade(ttl).await,
                Mode::Read => core.finish_downgrade(ttl, fence).await,
            }
            drop(one_at_a_time);
        });
    }
}

impl HoldView {
    /// The number of this hold: greater than those of all earlier holds of the server. Send it with every
    /// write, and have the storage refuse a write with a lesser one. An upgrade or a downgrade gives a new
    /// one.
    pub fn fence(&self) -> i64 {
        self.core.held.update(|lease, _| lease.fence)
    }

    /// Makes the hold valid for this ttl from now on. It never shortens: to shorten, release. Later renewals
    /// take the longest ttl that was asked for.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold is gone, [`Error::TimedOut`] when no answer came for `retry_for`.
    /// [`Error::InvalidArgument`] for a ttl below 2 ms: the hold stays as it is.
    pub async fn extend(&self, ttl: Duration) -> Result<(), Error> {
        self.extend_until(ttl, self.core.shared.limit()).await
    }

    pub(crate) async fn extend_until(&self, ttl: Duration, until: Instant) -> Result<(), Error> {
        let core = &self.core;
        check_ttl(ttl)?;
        self.may_change()?;
        core.renew_by_the_watchdog();
        let ttl = ttl.min(LONGEST);
        loop {
            let fence = self.fence();
            let extend = commands::extend(&core.owner, ttl, fence);
            let answered = core.shared.call(&core.owner, &extend, until).await;
            let answered = answered.map_err(|error| self.failed(error))?;
            let valid_until = answered.sent.after(validity(ttl));
            if core.held.extended(answers::number(&answered.value), fence, ttl, valid_until) {
                return self.check();
            }
            self.check()?;
            // The mode is being changed, and with it the fence.
            let changed = tokio::time::timeout_at(until.into(), core.changing().lock()).await;
            if changed.is_err() {
                return Err(Error::TimedOut { keys: core.owner.keys.clone(), source: None });
            }
        }
    }

    /// The reader becomes the writer in one step, without a release. It waits until the other readers have
    /// left, as long as the request said, or as long as it is told here. Gives the new fence.
    ///
    /// When the future is dropped or gets no answer, the upgrade is given up: the server tells the mode, and
    /// [`Held::mode`] gives it from then on. For the next two minutes the server refuses another upgrade.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when other readers remain: the hold reads on. [`Error::Deadlock`] when another
    /// reader waits for its upgrade already. [`Error::SeveralKeys`] for a hold of several keys.
    /// [`Error::Refused`] after an upgrade that was given up.
    pub async fn upgrade(&self, wait: impl Into<Option<Duration>>) -> Result<i64, Error> {
        self.one_key()?;
        self.may_change()?;
        let core = &self.core;
        let wait = wait.into().or(core.wait).map(|wait| wait.min(LONGEST));
        let deadline = wait.map(|wait| Instant::now() + wait);
        let change = self.begin_change(deadline, Mode::Write).await?;
        change.send();
        let goal = Goal::Upgrade { owner: core.owner.clone(), ttl: change.ttl, fence: change.fence };
        let limits = Limits {
            once: false,
            deadline,
            retry_for: core.shared.retry_for,
            retry_wait_for: core.shared.retry_wait_for,
        };
        let mut acquisition = Acquisition::new(core.shared.clone(), goal, limits);
        let asks: BoxFuture<'_, _> = Box::pin(acquisition.run());
        let result = tokio::select! {
            biased;
            result = asks => result,
            _ = core.held.end() => Err(self.check().err().unwrap_or(Error::NotHeld)),
        };
        match result {
            Ok(Some(granted)) => {
                change.granted(&granted);
                self.check()?;
                Ok(granted.fence)
            }
            Ok(None) => Err(Error::TimedOut { keys: core.owner.keys.clone(), source: None }),
            Err(error) => {
                if !acquisition.may_stand() {
                    change.refused(Mode::Read);
                }
                Err(self.failed(error))
            }
        }
    }

    /// The writer becomes a reader in one step, with no writer in between. Gives the new fence.
    ///
    /// From the call on the hold counts as a reader's. When the future is dropped or gets no answer, the
    /// downgrade goes on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold is gone, [`Error::TimedOut`] when no answer came for `retry_for`,
    /// [`Error::SeveralKeys`] for a hold of several keys.
    pub async fn downgrade(&self) -> Result<i64, Error> {
        self.one_key()?;
        self.may_change()?;
        let core = &self.core;
        let until = core.shared.limit();
        let change = self.begin_change(Some(until), Mode::Read).await?;
        change.send();
        let former = core.held.update(|lease, _| std::mem::replace(&mut lease.mode, Mode::Read));
        let downgrade = commands::downgrade(&core.owner, change.ttl, change.fence);
        match core.shared.call(&core.owner, &downgrade, until).await {
            Ok(answered) => {
                let fence = answers::number(&answered.value);
                let granted = Granted { fence, sent: answered.sent, in_doubt: answered.repeated };
                change.granted(&granted);
                self.check()?;
                Ok(fence)
            }
            Err(error) => {
                if !matches!(error, Error::TimedOut { .. }) {
                    change.refused(former);
                }
                Err(self.failed(error))
            }
        }
    }

    /// Waits for an earlier change that was given up.
    async fn begin_change(&self, deadline: Option<Instant>, to: Mode) -> Result<Change, Error> {
        let begins = Change::begin(&self.core, to);
        let change = match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline.into(), begins).await.ok(),
            None => Some(begins.await),
        };
        let timed_out = || Error::TimedOut { keys: self.core.owner.keys.clone(), source: None };
        let change = change.ok_or_else(timed_out)?;
        self.check()?;
        Ok(change)
    }

    /// The error of a command for this hold.
    fn failed(&self, error: Error) -> Error {
        if let Error::NotHeld = error {
            self.core.held.update(|lease, _| lease.lose(Reason::Gone));
            return error;
        }
        self.core.held.unless_over(error)
    }

    fn may_change(&self) -> Result<(), Error> {
        self.check()?;
        self.core.shared.closing.unless_closed()
    }

    fn one_key(&self) -> Result<(), Error> {
        if self.keys().len() == 1 { Ok(()) } else { Err(Error::SeveralKeys) }
    }
}

impl Deref for HoldView {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.core.held
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
