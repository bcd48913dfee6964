//! A lock that was granted: what is known of it, its release, and its end for the program.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::Instrument;

use crate::acquisition::Grant;
use crate::clock::Moment;
use crate::errors::{Error, Reason};
use crate::info::Mode;
use crate::keeper::{Keeper, Kept, Shared};
use crate::node::{Extension, repeat};
use crate::options::{SHORTEST_TTL, too_short};
use crate::protocol::Wanted;
use crate::watchdog::{LONGEST_SLEEP, Watched, unwatch, watch};

/// After which time a hold without `max_hold` is worth a warning.
const LONG_HOLD: Duration = Duration::from_secs(60 * 60);
/// A confirmation asks for no more than this.
const NO_LONGER: Duration = Duration::from_millis(1);

/// A lock that was granted. It is renewed until it is lost or released.
///
/// If a `Hold` is dropped, it is released in the background: a program that ends right after that should call
/// [`Locks::close`](crate::Locks::close), which waits for it. To give it to several tasks, put it into an [`Arc`].
#[must_use = "the lock is released when its hold is dropped"]
pub struct Hold {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    id: u64,
    pub(crate) locks: Arc<Shared>,
    pub(crate) keeper: Arc<dyn Keeper>,
    pub(crate) wanted: Arc<Wanted>,
    /// Held while a command that prolongs the hold is on its way.
    extending: tokio::sync::Mutex<()>,
    /// Held while a change of mode is open.
    pub(crate) changing: Arc<tokio::sync::Mutex<()>>,
    lease: Mutex<Lease>,
    ended: Notify,
}

/// What is known of a hold. It reads no clock.
#[derive(Clone)]
pub(crate) struct Lease {
    pub(crate) mode: Mode,
    /// 0 for a quorum.
    pub(crate) fence: i64,
    pub(crate) ttl: Duration,
    /// When the program learned of the grant.
    granted: Moment,
    valid_until: Moment,
    renew_at: Moment,
    /// When the watchdog looks at it.
    due: Moment,
    /// The server may have changed the mode and the fencing token, so renewals name none.
    pub(crate) is_open: bool,
    /// What the last renewal said, unless one has succeeded since.
    failed: Option<Error>,
    /// It was warned of that nothing limits the hold.
    is_long: bool,
    /// Nothing while it is live; then why it is not.
    pub(crate) ended: Option<Error>,
}

impl Lease {
    /// Notes that the server lets the hold live for a ttl, or longer, from a moment on.
    fn lengthen(&mut self, from: Moment, ttl: Duration, counted: Duration) {
        self.ttl = self.ttl.max(ttl);
        self.valid_until = self.valid_until.max(from.after(counted));
        self.renew_at = from.after(self.ttl / 3);
        self.failed = None;
    }

    /// The fencing token that commands name.
    fn named(&self) -> Option<i64> {
        Some(self.fence).filter(|fence| *fence > 0 && !self.is_open)
    }
}

impl Inner {
    fn new(locks: &Arc<Shared>, (keeper, wanted, grant): Kept) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut lease = Lease {
            mode: wanted.mode,
            fence: grant.fence,
            ttl: wanted.options.ttl,
            granted: Moment::now(),
            valid_until: Moment::default(),
            renew_at: Moment::default(),
            due: Moment::NEVER,
            is_open: false,
            failed: None,
            is_long: false,
            ended: None,
        };
        lease.lengthen(grant.from, lease.ttl, locks.backend.counted(lease.ttl));
        let (extending, changing, ended) = Default::default();
        let lease = Mutex::new(lease);
        let inner =
            Arc::new(Self { id, locks: locks.clone(), keeper, wanted, extending, changing, lease, ended });
        let watched: Arc<dyn Watched> = inner.clone();
        locks.holds.add(id, &watched);
        let _ = inner.update(|_| {});
        inner
    }

    pub(crate) fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().expect("nothing panics while a lease is locked")
    }

    /// Notes that the server gave the hold in this mode.
    pub(crate) fn granted(self: &Arc<Self>, mode: Mode, grant: Grant) {
        let _ = self.update(|lease| {
            (lease.mode, lease.fence, lease.is_open) = (mode, grant.fence, false);
            lease.lengthen(grant.from, lease.ttl, self.locks.backend.counted(lease.ttl));
        });
    }

    pub(crate) fn lose(&self, lease: &mut Lease, reason: Reason) {
        let last = lease.failed.clone().filter(|_| reason == Reason::Expired).map(Box::new);
        lease.ended = Some(Error::Lost { keys: self.wanted.owner.keys.clone(), reason, last });
    }

    /// Changes the lease of a live hold, and does what follows if that ends it. The error is what is wrong with it then.
    pub(crate) fn update(self: &Arc<Self>, change: impl FnOnce(&mut Lease)) -> Result<(), Error> {
        let now = Moment::now();
        let mut lease = self.lease();
        let was_live = lease.ended.is_none();
        match now {
            _ if !was_live => {}
            _ if now >= self.most(&lease) => self.lose(&mut lease, Reason::MaxHold),
            _ if now < lease.valid_until => change(&mut lease),
            _ if self.locks.closing.is_cancelled() => self.lose(&mut lease, Reason::Closed),
            _ => self.lose(&mut lease, Reason::Expired),
        }
        let Some(error) = lease.ended.clone() else {
            self.schedule(&mut lease);
            return Ok(());
        };
        let (last, _) = (lease.clone(), drop(lease));
        if was_live {
            self.ended(&last, &error, now);
        }
        Err(error)
    }

    /// When the time of `max_hold` has passed.
    fn most(&self, lease: &Lease) -> Moment {
        self.wanted.options.max_hold.map_or(Moment::NEVER, |most| lease.granted.after(most))
    }

    /// When the hold is over unless something happens.
    fn end(&self, lease: &Lease) -> Moment {
        lease.valid_until.min(self.most(lease))
    }

    fn is_renewed(&self) -> bool {
        self.wanted.options.renew && !self.locks.closing.is_cancelled()
    }

    /// Has the watchdog look at the hold when that is due next.
    fn schedule(self: &Arc<Self>, lease: &mut Lease) {
        let due = self.end(lease).min(if self.is_renewed() { lease.renew_at } else { Moment::NEVER });
        if self.wanted.options.renew && due != lease.due {
            let watched: Arc<dyn Watched> = self.clone();
            watch(self.id, lease.due, due, &watched);
            lease.due = due;
        }
    }

    fn ended(&self, last: &Lease, error: &Error, now: Moment) {
        self.locks.holds.remove(self.id);
        unwatch(self.id, last.due);
        self.ended.notify_waiters();
        self.wanted.span.in_scope(|| {
            if let Error::Lost { .. } = error {
                // By the fencing token, because another hold of a token of the program's stays.
                self.keeper.clone().leave(&self.wanted, last.named(), Duration::ZERO);
                self.locks.reporter.lost(&self.wanted, error);
            }
            self.locks.reporter.hooks.held(self.wanted.label(), now.since(last.granted));
        });
    }

    /// Ends with the hold, and gives what is wrong with it then.
    pub(crate) async fn over(self: &Arc<Self>) -> Error {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if let Err(error) = self.update(|_| {}) {
                return error;
            }
            let remaining = self.end(&self.lease()).remaining();
            let _ = timeout(remaining.min(LONGEST_SLEEP), ended).await;
        }
    }

    /// Ends a hold whose time is over, and renews it if that is due.
    async fn renew(self: Arc<Self>) {
        let (now, mut due) = (Moment::now(), None);
        let _ = self.update(|lease| {
            if self.is_renewed() && now >= lease.renew_at {
                lease.renew_at = now.after(lease.ttl / 10); // unless this one succeeds
                // A reply may be waited for in vain, so it is not waited for long.
                due = Some((lease.ttl, (lease.ttl / 4).min(lease.valid_until.since(now))));
            }
            let is_long = now.since(lease.granted) > LONG_HOLD && self.wanted.options.max_hold.is_none();
            if is_long && !std::mem::replace(&mut lease.is_long, true) {
                self.locks.reporter.held_long(&self.wanted);
            }
        });
        let (Some((ttl, limit)), Ok(_extending)) = (due, self.extending.try_lock()) else { return };
        let renewed =
            self.extend(Instant::now() + limit, Some(ttl)).instrument(self.wanted.span.clone()).await;
        if let Err(error) = renewed
            && self.update(|_| {}).is_ok()
        {
            self.wanted.span.in_scope(|| self.locks.reporter.renewal_failed(&self.wanted, &error));
        }
    }

    /// Asks the server whether it has the hold, and renews it if it is renewed.
    async fn ask(self: Arc<Self>) {
        if !self.locks.closing.is_cancelled() {
            let ttl = self.is_renewed().then(|| self.lease().ttl);
            let _ = self.prolong(ttl).instrument(self.wanted.span.clone()).await;
        }
    }

    /// Sends an extension until it is answered. Without a ttl it only asks.
    async fn prolong(self: &Arc<Self>, ttl: Option<Duration>) -> Result<(), Error> {
        let _extending = self.extending.lock().await; // for as long as a renewal may take
        let extend = |until: Instant| async move {
            let remaining = self.lease().valid_until.remaining();
            self.extend(until.min(Instant::now() + remaining), ttl).await
        };
        repeat(&self.wanted.owner.keys, self.locks.settings.retry_for, extend).await
    }

    /// Sends one extension. The caller has `extending`. What is wrong with the hold comes before another error.
    async fn extend(self: &Arc<Self>, until: Instant, ttl: Option<Duration>) -> Result<(), Error> {
        let (mut asked, mut fence) = (NO_LONGER, None);
        self.update(|lease| {
            asked = ttl.map_or(NO_LONGER, |ttl| ttl.max(lease.ttl));
            fence = lease.named();
        })?;
        let extension = Extension { ttl: asked, fence, options: &self.wanted.options };
        let answer = match self.keeper.extend(until, &self.wanted, extension).await {
            Err(error) if !error.is_another_type() => Err(error),
            answer => Ok(answer.ok().filter(|answer| answer.number > 0)),
        };
        self.update(|lease| match &answer {
            Ok(Some(answer)) => lease.lengthen(answer.sent, asked, self.locks.backend.counted(asked)),
            Ok(None) if fence == lease.named() => self.lose(lease, Reason::Gone),
            Ok(None) => {} // it is about another fencing token
            Err(error) => lease.failed = Some(error.clone().explained(&self.wanted.owner.keys)),
        })?;
        answer.map(|_| ())
    }

    /// Ends a live hold here, before anything is sent.
    fn finish(self: &Arc<Self>) -> Result<Lease, Error> {
        let mut last = None;
        let ended = self.update(|lease| {
            let keys = self.wanted.owner.keys.clone();
            lease.ended = Some(Error::NotHeld { keys, mode: Some(lease.mode) });
            last = Some(lease.clone());
        });
        last.ok_or_else(|| ended.expect_err("the hold was not live"))
    }

    /// For how long the lock has to stay after its release.
    fn stays(&self, last: &Lease) -> Duration {
        self.wanted.options.at_least.saturating_sub(Moment::now().since(last.granted))
    }

    pub(crate) async fn release(self: &Arc<Self>) -> Result<(), Error> {
        let last = self.finish()?;
        match self.keeper.clone().end(&self.wanted, last.named(), self.stays(&last)).await {
            Ok(true) => Ok(()),
            Err(error) if !error.is_another_type() => {
                self.locks.reporter.release_failed(&self.wanted, &error);
                Err(error)
            }
            _ => {
                let mut lease = self.lease();
                self.lose(&mut lease, Reason::Gone);
                let loss = lease.ended.clone().expect("it is lost");
                drop(lease);
                self.locks.reporter.lost(&self.wanted, &loss);
                Err(loss)
            }
        }
    }

    /// Releases in the background.
    pub(crate) fn leave(self: &Arc<Self>) {
        if let Ok(last) = self.finish() {
            let leave = || self.keeper.clone().leave(&self.wanted, last.named(), self.stays(&last));
            self.wanted.span.in_scope(leave);
        }
    }
}

impl Watched for Inner {
    fn look(self: Arc<Self>) {
        self.wanted.runtime.clone().spawn(self.renew());
    }

    fn confirm(self: Arc<Self>) {
        self.wanted.runtime.clone().spawn(self.ask());
    }

    fn close(self: Arc<Self>) -> BoxFuture<'static, Result<(), Error>> {
        async move { self.release().await }.boxed()
    }
}

impl Hold {
    pub(crate) fn new(locks: &Arc<Shared>, kept: Kept) -> Self {
        Self { inner: Inner::new(locks, kept) }
    }

    /// The owner token. Who has it and the keys can adopt and release the lock.
    pub fn token(&self) -> &str {
        &self.inner.wanted.owner.token
    }

    /// The keys, in the order of the request, without the prefix.
    pub fn keys(&self) -> &[String] {
        &self.inner.wanted.owner.keys
    }

    /// The mode of the hold.
    pub fn mode(&self) -> Mode {
        self.inner.lease().mode
    }

    /// The text that was given with the request.
    pub fn metadata(&self) -> Option<&str> {
        self.inner.wanted.options.metadata.as_deref()
    }

    /// The fencing token. Each new hold has a greater one than all before on its server: send it with all that is written,
    /// and refuse lesser ones where it is stored. It is 0 for a hold of a quorum.
    pub fn fence(&self) -> i64 {
        self.inner.lease().fence
    }

    /// The fencing tokens of the nodes of a quorum, in the order in which the servers were given, and nothing for a node
    /// that gave none. Those of different servers cannot be compared. Without a quorum it is the one fencing token.
    pub fn fences(&self) -> Vec<Option<i64>> {
        self.inner.keeper.fences().unwrap_or_else(|| vec![Some(self.fence())])
    }

    /// For how long the lock is certainly held, if nobody deletes its keys. A renewal makes it longer.
    pub fn remaining(&self) -> Duration {
        self.inner.lease().valid_until.remaining()
    }

    /// Whether the hold was lost.
    pub fn is_lost(&self) -> bool {
        matches!(self.check(), Err(Error::Lost { .. }))
    }

    /// Whether the hold is valid. It sends nothing: call it before each step that matters.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold was lost, with the error of the last renewal if that failed. [`Error::NotHeld`] if it
    /// was released or detached.
    pub fn check(&self) -> Result<(), Error> {
        self.inner.update(|_| {})
    }

    /// Ends if the hold is lost, and gives the [`Error::Lost`]. It never ends if the hold is released: have it in `select!`
    /// beside the work, not in a task of its own.
    pub async fn lost(&self) -> Error {
        match self.inner.over().await {
            loss @ Error::Lost { .. } => loss,
            _ => std::future::pending().await,
        }
    }

    /// Runs the work, and drops it if the hold is lost. The hold is not released.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold was lost before the work was done, also if the work noticed nothing of it because it
    /// blocked its thread.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let result = tokio::select! {
            biased;
            loss = self.lost() => return Err(loss),
            result = work => result,
        };
        self.check()?;
        Ok(result)
    }

    /// Lets the hold live for at least this ttl from now. It never shortens: for that, release. Later renewals use the
    /// longest ttl that was asked for.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold is over. [`Error::NoAnswer`] if no reply came for `retry_for`, or
    /// [`Error::QuorumMissed`]: then the hold may still be valid.
    pub async fn extend(&self, ttl: Duration) -> Result<(), Error> {
        if ttl < SHORTEST_TTL || self.inner.locks.backend.counted(ttl).is_zero() {
            return Err(too_short(ttl));
        }
        self.check()?;
        self.inner.locks.unless_closed()?;
        self.inner.prolong(Some(ttl)).await
    }

    /// Releases the hold. If the future is dropped, the release goes on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold was lost, or if the server had nothing to release. [`Error::NoAnswer`] if no reply came
    /// for `retry_for`: then the release goes on in the background, and nothing renews the lock any more.
    /// [`Error::NotHeld`] if it was released or detached before.
    pub async fn release(&self) -> Result<(), Error> {
        self.inner.release().await
    }

    /// Ends the hold here without releasing it, for another process that adopts it by keys and token. From now on nothing
    /// renews it here. It sends nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] or [`Error::NotHeld`] if there is nothing to hand over.
    pub fn detach(&self) -> Result<(), Error> {
        self.inner.finish().map(drop)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.inner.leave();
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Hold {{ keys: {:?}, mode: {}, remaining: {:?} }}",
            self.keys(),
            self.mode(),
            self.remaining()
        )
    }
}
