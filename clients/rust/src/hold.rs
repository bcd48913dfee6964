//! A hold that was granted by a server: extended, changed in its mode, handed over, released.

use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, oneshot};

use crate::acquisition::{Acquisition, Goal, Granted, Limits};
use crate::answers;
use crate::clock::Moment;
use crate::commands::{self, Owner};
use crate::errors::{Error, Reason};
use crate::held::Held;
use crate::lease::{Lease, Phase, validity};
use crate::locks::Locks;
use crate::node::Words;
use crate::options::{LONGEST, Mode, Wanted, check_ttl};
use crate::request::{Locking, holds, locking};
use crate::shared::Shared;
use crate::watchdog::Renew;

/// What all views of one hold share.
struct Core {
    shared: Arc<Shared>,
    owner: Owner,
    wanted: Arc<Wanted>,
    held: Held,
    /// Locked while the mode is being changed.
    changing: OnceLock<Arc<tokio::sync::Mutex<()>>>,
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
    /// Nothing is to be done any more.
    is_over: bool,
    /// The release failed, and the hooks were told.
    was_told: bool,
}

/// All that can be seen and done with a hold but to end it. It can be cloned and given to tasks, and releases
/// nothing when it is dropped.
#[derive(Clone)]
pub struct HoldView {
    core: Arc<Core>,
}

impl Locking for Locks {
    type Hold = Hold;

    locking!();

    fn ask(&self, wanted: Arc<Wanted>, once: bool) -> BoxFuture<'static, Result<Option<Hold>, Error>> {
        let shared = self.shared().clone();
        Box::pin(async move {
            wanted.check()?;
            let limits = Limits {
                once,
                deadline: wanted.options.wait.filter(|_| !once).map(|wait| Instant::now() + wait),
                retry_for: shared.retry_for,
                retry_wait_for: shared.retry_wait_for,
            };
            let owner = Owner::new(wanted.keys.clone(), wanted.options.token.clone());
            Hold::acquire(shared, owner, wanted, limits).await
        })
    }

    fn take_over(&self, wanted: Arc<Wanted>, token: String) -> BoxFuture<'static, Result<Hold, Error>> {
        let shared = self.shared().clone();
        Box::pin(async move {
            wanted.check()?;
            shared.closing.unless_closed()?;
            let owner = Owner::new(wanted.keys.clone(), Some(token));
            let asks = commands::held_fence(&owner, wanted.mode, wanted.options.ttl);
            let answered = shared.call(&owner, Words::One(&asks), shared.limit()).await?;
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
        owner: Owner,
        wanted: Arc<Wanted>,
        limits: Limits,
    ) -> Result<Option<Self>, Error> {
        let granted = Acquisition::new(&shared, &owner, &wanted, Goal::Hold, limits).run().await?;
        Ok(granted.map(|granted| Self::new(shared, owner, wanted, granted)))
    }

    fn new(shared: Arc<Shared>, owner: Owner, wanted: Arc<Wanted>, granted: Granted) -> Self {
        let mut lease = Lease::new(granted.fence, &wanted, granted.sent, validity(wanted.options.ttl));
        lease.in_doubt = granted.in_doubt;
        let reporter = shared.reporter.clone();
        let held = Held::new(lease, owner.token.clone(), wanted.clone(), granted.sent, reporter);
        let (changing, renewed) = (OnceLock::new(), Mutex::default());
        let core = Arc::new(Core { shared, owner, wanted, held, changing, renewed });
        core.renew_by_the_watchdog();
        let runtime = Handle::current();
        Self { view: HoldView { core }, runtime, is_over: false, was_told: false }
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
        let valid = self.core.held.released();
        match self.core.release(self.core.shared.limit()).await {
            Ok(there) => {
                self.is_over = true;
                Ok(valid && there)
            }
            Err(error) => {
                self.was_told = true;
                if !valid {
                    return Ok(false);
                }
                self.core.held.release_failed(&error);
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
    pub fn hand_over(self) -> Result<(), Error> {
        self.check()?;
        self.leave();
        Ok(())
    }

    /// Ends it here, and leaves to others what the token may still hold.
    pub(crate) fn leave(mut self) {
        self.core.held.released();
        self.is_over = true;
    }

    /// Whether a later request of the same token would meet what this one may still have on its way.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.core.held.update(|lease, _| lease.in_doubt)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let core = self.core.clone();
        let mut tell = core.held.released() && !self.was_told;
        self.core.shared.background.spawn(&self.runtime, async move {
            for until in [core.shared.limit(), core.held.valid_until()] {
                let Err(error) = core.release(until).await else { return };
                if std::mem::take(&mut tell) {
                    core.held.release_failed(&error);
                }
                if !matches!(error, Error::TimedOut { .. }) {
                    return;
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
        if !self.wanted.options.renew {
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
        let keys = self.owner.keys.len();
        let (by_fence, all);
        let (words, withdrawals) = if in_doubt && !self.owner.given {
            all = commands::give_up(&self.owner);
            (Words::Several(&all), keys)
        } else {
            by_fence = commands::release(&self.owner, mode, fence);
            (Words::One(&by_fence), 0)
        };
        let answered = self.shared.call(&self.owner, words, until).await?;
        let released: i64 = answers::numbers(&answered.value).iter().skip(withdrawals).sum();
        // When an earlier copy got no answer, that one did it.
        Ok(usize::try_from(released) == Ok(keys) || (answered.repeated && released == 0))
    }

    fn changed(&self, granted: &Granted, to: Mode) {
        self.held.update(|lease, _| {
            lease.changed(granted.fence, to, granted.sent.after(validity(lease.ttl)));
            lease.in_doubt |= granted.in_doubt;
        });
    }

    /// The change of mode has ended, and left this one.
    fn unchanged(&self, mode: Mode) {
        self.held.update(|lease, _| (lease.changing, lease.mode) = (false, mode));
    }

    fn gone(&self) {
        self.held.update(|lease, _| {
            lease.changing = false;
            lease.lose(Reason::Gone);
        });
    }

    /// The error of a command for this hold.
    fn failed(&self, error: Error) -> Error {
        if let Error::NotHeld = error {
            self.gone();
            return error;
        }
        self.held.unless_over(error)
    }

    /// Goes on when nobody waits for it any more: then it is given up.
    async fn upgrade(
        self: Arc<Self>,
        deadline: Option<Instant>,
        mut tell: oneshot::Sender<Result<i64, Error>>,
        _one_at_a_time: OwnedMutexGuard<()>,
    ) {
        let (retry_for, retry_wait_for) = (self.shared.retry_for, self.shared.retry_wait_for);
        let limits = Limits { once: false, deadline, retry_for, retry_wait_for };
        let goal = self.held.update(|lease, _| Goal::Upgrade { ttl: lease.ttl, fence: lease.fence });
        let mut acquisition = Acquisition::new(&self.shared, &self.owner, &self.wanted, goal, limits);
        let result = tokio::select! {
            biased;
            result = acquisition.run() => result,
            _ = self.held.end() => Err(self.held.unless_over(Error::NotHeld)),
            () = tell.closed() => Err(Error::Closed),
        };
        let may_stand = acquisition.may_stand();
        let result = match result {
            Ok(granted) => {
                let granted = granted.expect("an upgrade is not asked for once");
                self.changed(&granted, Mode::Write);
                self.held.check().map(|()| granted.fence)
            }
            Err(error) if may_stand => {
                self.held.update(|lease, _| lease.in_doubt = true);
                Err(self.held.unless_over(error))
            }
            Err(error) => {
                self.unchanged(Mode::Read);
                Err(self.failed(error))
            }
        };
        // Nobody may wait for it any more.
        let _ = tell.send(result);
        if may_stand && self.held.phase() == Phase::Held {
            self.give_up_upgrade().await;
        }
    }

    /// An upgrade that was sent is not known to be carried out: it is given up, and the server tells the mode.
    async fn give_up_upgrade(&self) {
        let ttl = self.held.update(|lease, _| lease.ttl);
        let commands = commands::give_up_change(&self.owner, ttl);
        let valid_until = self.held.valid_until();
        let answered = self.shared.call(&self.owner, Words::Several(&commands), valid_until).await;
        let Ok(answered) = answered else { return };
        let [.., writer, reader] = answers::numbers(&answered.value)[..] else { return };
        let (fence, mode) = if writer == 0 { (reader, Mode::Read) } else { (writer, Mode::Write) };
        match fence {
            0 => self.gone(),
            fence => self.changed(&Granted { fence, sent: answered.sent, in_doubt: true }, mode),
        }
    }

    /// Goes on when nobody waits for it any more, until it is known to be carried out. To ask for the mode
    /// would not do: the server refuses no downgrade, so an earlier copy could come later.
    async fn downgrade(
        self: Arc<Self>,
        former: Mode,
        until: Instant,
        tell: oneshot::Sender<Result<i64, Error>>,
        _one_at_a_time: OwnedMutexGuard<()>,
    ) {
        let (ttl, fence) = self.held.update(|lease, _| (lease.ttl, lease.fence));
        let downgrade = commands::downgrade(&self.owner, ttl, fence);
        let mut tell = Some(tell);
        // Nobody may wait for it any more.
        let mut told = |result| drop(tell.take().map(|tell| tell.send(result)));
        let mut answered = self.shared.call(&self.owner, Words::One(&downgrade), until).await;
        if let Err(error @ Error::TimedOut { .. }) = &answered {
            told(Err(self.held.unless_over(error.clone())));
            self.held.update(|lease, _| lease.in_doubt = true);
            let valid_until = self.held.valid_until();
            answered = self.shared.call(&self.owner, Words::One(&downgrade), valid_until).await;
        }
        told(match answered {
            Ok(answered) => {
                let fence = answers::number(&answered.value);
                self.changed(
                    &Granted { fence, sent: answered.sent, in_doubt: answered.repeated },
                    Mode::Read,
                );
                self.held.check().map(|()| fence)
            }
            Err(error) => {
                if !matches!(error, Error::TimedOut { .. }) {
                    self.unchanged(former);
                }
                Err(self.failed(error))
            }
        });
    }
}

impl Renew for Core {
    fn held(&self) -> &Held {
        &self.held
    }

    async fn renew(self: Arc<Self>, limit: Duration) -> Result<(), Error> {
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
            let answered = core.shared.call(&core.owner, Words::One(&extend), until).await;
            let answered = answered.map_err(|error| core.failed(error))?;
            let valid_until = answered.sent.after(validity(ttl));
            if core.held.extended(answers::number(&answered.value), fence, ttl, valid_until) {
                return self.check();
            }
            // Unless it is lost, the mode is being changed, and with it the fence.
            drop(self.nothing_changes(Some(until)).await?);
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
        let core = &self.core;
        let wait = wait.into().or(core.wanted.options.wait).map(|wait| wait.min(LONGEST));
        let deadline = wait.map(|wait| Instant::now() + wait);
        self.change(deadline, |tell, one_at_a_time| core.clone().upgrade(deadline, tell, one_at_a_time)).await
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
        let core = &self.core;
        let until = core.shared.limit();
        self.change(Some(until), |tell, one_at_a_time| {
            let former = core.held.update(|lease, _| std::mem::replace(&mut lease.mode, Mode::Read));
            core.clone().downgrade(former, until, tell, one_at_a_time)
        })
        .await
    }

    /// Changes the mode in the background, so that a change that was sent comes to its end when this future is
    /// dropped.
    async fn change<F>(
        &self,
        deadline: Option<Instant>,
        changes: impl FnOnce(oneshot::Sender<Result<i64, Error>>, OwnedMutexGuard<()>) -> F,
    ) -> Result<i64, Error>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if self.keys().len() != 1 {
            return Err(Error::SeveralKeys);
        }
        self.may_change()?;
        let one_at_a_time = self.nothing_changes(deadline).await?;
        self.core.held.update(|lease, _| lease.changing = true);
        let (tell, told) = oneshot::channel();
        self.core.shared.background.spawn(&Handle::current(), changes(tell, one_at_a_time));
        told.await.unwrap_or(Err(Error::Closed))
    }

    /// Waits for an earlier change that was given up.
    async fn nothing_changes(&self, deadline: Option<Instant>) -> Result<OwnedMutexGuard<()>, Error> {
        self.check()?;
        let ended = self.core.changing().clone().lock_owned();
        let ended = match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline.into(), ended).await.ok(),
            None => Some(ended.await),
        };
        self.check()?;
        ended.ok_or_else(|| Error::TimedOut { keys: self.core.owner.keys.clone(), source: None })
    }

    fn may_change(&self) -> Result<(), Error> {
        self.check()?;
        self.core.shared.closing.unless_closed()
    }
}

holds!(Hold, HoldView, fence);
