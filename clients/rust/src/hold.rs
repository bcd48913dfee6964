//! A lock that was granted: what is known of it, its release, and its end for the program.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::{Instrument, Span};

use crate::acquisition::Grant;
use crate::clock::Moment;
use crate::errors::{Error, Reason};
use crate::keeper::{Extension, Keeper, Kept, Wanted};
use crate::locks::Shared;
use crate::node::repeat;
use crate::options::{Mode, SHORTEST_TTL, too_short};
use crate::protocol::{explain, is_reply};
use crate::watchdog::{LONGEST_SLEEP, Watchdog};

/// After which time a hold without `max_hold` is worth a warning.
const LONG_HOLD: Duration = Duration::from_secs(60 * 60);
/// A confirmation asks for no more than this.
const NO_LONGER: Duration = Duration::from_millis(1);

/// A lock that was granted. It is renewed until it is lost or released.
///
/// [`release`](Hold::release) releases it, and fails if it was gone by then. If a `Hold` is dropped, it is released in the
/// background: a program that ends right after that should call [`Locks::close`](crate::Locks::close), which waits for it.
/// All that can be seen and done without ending the hold is in [`HoldView`], to which it dereferences.
#[must_use = "the lock is released when its hold is dropped"]
pub struct Hold {
    view: HoldView,
}

/// All that can be seen and done with a hold, except ending it. Give clones of it to tasks. It releases nothing when it is
/// dropped.
#[derive(Clone)]
pub struct HoldView {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    id: u64,
    pub(crate) locks: Arc<Shared>,
    pub(crate) keeper: Keeper,
    pub(crate) wanted: Arc<Wanted>,
    pub(crate) runtime: Handle,
    /// In which the hold was acquired.
    span: Span,
    /// Nothing if the hold is not renewed.
    watchdog: Option<Arc<Watchdog>>,
    /// Held while a command that prolongs the hold is on its way.
    extending: tokio::sync::Mutex<()>,
    /// Held while a change of mode is open.
    pub(crate) changing: Arc<tokio::sync::Mutex<()>>,
    lease: Mutex<Lease>,
    ended: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Phase {
    Live,
    /// Released, or detached.
    Over,
    Lost(Reason),
}

/// What is known of a hold. It reads no clock.
#[derive(Clone)]
pub(crate) struct Lease {
    pub(crate) phase: Phase,
    pub(crate) mode: Mode,
    /// 0 for a quorum.
    pub(crate) fence: i64,
    pub(crate) ttl: Duration,
    /// When it was granted, at the earliest.
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
}

impl Lease {
    fn grant(&mut self, mode: Mode, grant: Grant, counted: Duration) {
        (self.mode, self.fence, self.is_open) = (mode, grant.fence, false);
        self.lengthen(grant.from, self.ttl, counted);
    }

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
    pub(crate) fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().expect("nothing panics while a lease is locked")
    }

    fn label(&self) -> &str {
        self.wanted.options.label(&self.wanted.owner.keys)
    }

    /// Notes that the server gave the hold in this mode.
    pub(crate) fn granted(self: &Arc<Self>, mode: Mode, grant: Grant) {
        let _ = self.update(|lease| lease.grant(mode, grant, self.locks.backend.counted(lease.ttl)));
    }

    /// What is wrong with the hold, if anything.
    fn problem(&self, lease: &Lease) -> Option<Error> {
        let keys = self.wanted.owner.keys.clone();
        match lease.phase {
            Phase::Live => None,
            Phase::Over => Some(Error::NotHeld { keys, mode: Some(lease.mode) }),
            Phase::Lost(reason) => {
                let last = lease.failed.clone().filter(|_| reason == Reason::Expired).map(Box::new);
                Some(Error::Lost { keys, reason, last })
            }
        }
    }

    /// Changes the lease of a live hold, and does what follows if that ends it. Gives what is wrong with the hold then.
    pub(crate) fn update(self: &Arc<Self>, change: impl FnOnce(&mut Lease)) -> Result<(), Error> {
        let now = Moment::now();
        let mut lease = self.lease();
        let was_live = lease.phase == Phase::Live;
        if was_live {
            let most = self.wanted.options.max_hold.map_or(Moment::NEVER, |most| lease.granted.after(most));
            let is_closed = self.locks.closing.is_cancelled();
            match now {
                now if now >= most => lease.phase = Phase::Lost(Reason::MaxHold),
                now if now < lease.valid_until => change(&mut lease),
                _ => lease.phase = Phase::Lost(if is_closed { Reason::Closed } else { Reason::Expired }),
            }
        }
        let Some(problem) = self.problem(&lease) else {
            self.schedule(&mut lease);
            return Ok(());
        };
        if was_live {
            let (fence, held, due) = (lease.named(), now.since(lease.granted), lease.due);
            drop(lease);
            self.ended(&problem, fence, held, due);
        }
        Err(problem)
    }

    /// Has the watchdog look at the hold when that is due next.
    fn schedule(self: &Arc<Self>, lease: &mut Lease) {
        let Some(watchdog) = &self.watchdog else { return };
        let due = self.next_look(lease).min(if self.is_renewed() { lease.renew_at } else { Moment::NEVER });
        if due != lease.due {
            watchdog.set(self.id, lease.due, due, &Arc::downgrade(self));
            lease.due = due;
        }
    }

    /// When the hold is over unless something happens.
    fn next_look(&self, lease: &Lease) -> Moment {
        let most = self.wanted.options.max_hold.map_or(Moment::NEVER, |most| lease.granted.after(most));
        lease.valid_until.min(most)
    }

    fn is_renewed(&self) -> bool {
        self.wanted.options.renew && !self.locks.closing.is_cancelled()
    }

    fn ended(&self, problem: &Error, fence: Option<i64>, held: Duration, due: Moment) {
        self.locks.holds.remove(self.id);
        if let Some(watchdog) = &self.watchdog {
            watchdog.remove(self.id, due);
        }
        self.ended.notify_waiters();
        self.span.in_scope(|| {
            if let Error::Lost { .. } = problem {
                // By the fencing token, because another hold of a token of the program's stays.
                self.keeper.leave(&self.wanted, fence, Duration::ZERO);
                self.locks.reporter.lost(self.label(), &self.wanted.owner.keys, problem);
            }
            self.locks.reporter.hooks.held(self.label(), held);
        });
    }

    /// Ends a hold whose time is over, and renews it if that is due.
    pub(crate) async fn look(self: Arc<Self>) {
        let (mut is_due, mut is_long, mut ttl, mut remaining) =
            (false, false, Duration::ZERO, Duration::ZERO);
        let now = Moment::now();
        let _ = self.update(|lease| {
            is_due = self.is_renewed() && now >= lease.renew_at;
            if is_due {
                lease.renew_at = now.after(lease.ttl / 10); // unless this one succeeds
            }
            is_long = !lease.is_long
                && now.since(lease.granted) > LONG_HOLD
                && self.wanted.options.max_hold.is_none();
            lease.is_long |= is_long;
            (ttl, remaining) = (lease.ttl, lease.valid_until.since(now));
        });
        let names = &self.wanted.owner.keys;
        if is_long {
            self.span.in_scope(|| self.locks.reporter.held_long(self.label(), names));
        }
        let Some(_extending) = is_due.then(|| self.extending.try_lock().ok()).flatten() else { return };
        // A reply may be waited for in vain, so it is not waited for long.
        let until = Instant::now() + (ttl / 4).min(remaining);
        let renewed = self.extend(until, Some(ttl)).instrument(self.span.clone()).await;
        if let Err(error) = renewed
            && self.update(|_| {}).is_ok()
        {
            let error = explained(error, &self.wanted);
            self.span.in_scope(|| self.locks.reporter.renewal_failed(self.label(), names, &error));
        }
    }

    /// Asks the server whether it has the hold, and renews it if it is renewed.
    pub(crate) async fn confirm(self: Arc<Self>) {
        if !self.locks.closing.is_cancelled() {
            let ttl = self.is_renewed().then(|| self.lease().ttl);
            let _ = self.prolong(ttl).instrument(self.span.clone()).await;
        }
    }

    /// Sends an extension until it is answered. Without a ttl it asks for nothing.
    async fn prolong(self: &Arc<Self>, ttl: Option<Duration>) -> Result<(), Error> {
        let _extending = self.extending.lock().await; // for as long as a renewal may take
        repeat(&self.wanted.owner.keys, self.locks.settings.retry_for, |until| async move {
            let remaining = self.lease().valid_until.remaining();
            self.extend(until.min(Instant::now() + remaining), ttl).await
        })
        .await
    }

    /// Sends one extension to at least the ttl; without one, only asks. The caller has `extending`. What is wrong with the
    /// hold comes before another error.
    async fn extend(self: &Arc<Self>, until: Instant, ttl: Option<Duration>) -> Result<(), Error> {
        let (mut asked, mut fence) = (NO_LONGER, None);
        self.update(|lease| {
            asked = ttl.map_or(NO_LONGER, |ttl| ttl.max(lease.ttl));
            fence = lease.named();
        })?;
        let extension = Extension { ttl: asked, fence, options: &self.wanted.options };
        let answer = match self.keeper.extend(until, &self.wanted, extension).await {
            Ok(answer) if answer.number > 0 => Ok(Some(answer.sent)),
            Ok(_) => Ok(None),
            Err(error) if is_another_type(&error) => Ok(None),
            Err(error) => Err(error),
        };
        self.update(|lease| {
            match &answer {
                Ok(Some(sent)) => lease.lengthen(*sent, asked, self.locks.backend.counted(asked)),
                Ok(None) if fence == lease.named() => lease.phase = Phase::Lost(Reason::Gone),
                Ok(None) => {} // it is about another fencing token
                Err(error) => lease.failed = Some(explained(error.clone(), &self.wanted)),
            }
        })?;
        answer.map(|_| ())
    }

    /// Ends a live hold here, before anything is sent.
    fn finish(self: &Arc<Self>) -> Result<Lease, Error> {
        let mut last = None;
        let ended = self.update(|lease| {
            last = Some(lease.clone());
            lease.phase = Phase::Over;
        });
        last.map_or_else(|| Err(ended.expect_err("the hold was not live")), Ok)
    }

    /// Ends with the hold, and gives what is wrong with it then.
    pub(crate) async fn over(self: &Arc<Self>) -> Error {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if let Err(problem) = self.update(|_| {}) {
                return problem;
            }
            let remaining = self.next_look(&self.lease()).remaining();
            let _ = timeout(remaining.min(LONGEST_SLEEP), ended).await;
        }
    }

    /// For how long the lock has to stay after its release.
    fn stays(&self, last: &Lease) -> Duration {
        self.wanted.options.at_least.saturating_sub(Moment::now().since(last.granted))
    }

    pub(crate) async fn release(self: &Arc<Self>) -> Result<(), Error> {
        let last = self.finish()?;
        let names = &self.wanted.owner.keys;
        let ended = self.keeper.end(&self.wanted, last.named(), self.stays(&last)).await;
        match ended {
            Ok(true) => Ok(()),
            Err(error) if !is_another_type(&error) => {
                self.locks.reporter.release_failed(self.label(), names, &error);
                Err(error)
            }
            _ => {
                let mut lease = self.lease();
                lease.phase = Phase::Lost(Reason::Gone);
                let loss = self.problem(&lease).expect("it is lost");
                drop(lease);
                self.locks.reporter.lost(self.label(), names, &loss);
                Err(loss)
            }
        }
    }
}

impl Hold {
    pub(crate) fn new(locks: &Arc<Shared>, (keeper, wanted, grant): Kept) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (ttl, runtime, id) =
            (wanted.options.ttl, wanted.runtime.clone(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut lease = Lease {
            phase: Phase::Live,
            mode: wanted.mode,
            fence: grant.fence,
            ttl,
            granted: grant.from,
            valid_until: Moment::default(),
            renew_at: Moment::default(),
            due: Moment::NEVER,
            is_open: false,
            failed: None,
            is_long: false,
        };
        lease.grant(wanted.mode, grant, locks.backend.counted(ttl));
        let inner = Arc::new(Inner {
            id,
            locks: locks.clone(),
            keeper,
            span: Span::current(),
            watchdog: wanted.options.renew.then(|| locks.holds.watchdog(&runtime)),
            wanted,
            runtime,
            extending: tokio::sync::Mutex::default(),
            changing: Arc::default(),
            lease: Mutex::new(lease),
            ended: Notify::new(),
        });
        locks.holds.add(id, &inner);
        let _ = inner.update(|_| {});
        Self { view: HoldView { inner } }
    }

    /// A view of this hold, for another task.
    pub fn view(&self) -> HoldView {
        self.view.clone()
    }

    /// Releases the hold. If the future is dropped, the release goes on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold was lost, or if the server had nothing to release. [`Error::NoAnswer`] if no reply came
    /// for `retry_for`: then the release goes on in the background, and nothing renews the lock any more.
    pub async fn release(self) -> Result<(), Error> {
        self.view.inner.release().await
    }

    /// Ends the hold here without releasing it, for another process that adopts it by keys and token. From now on nothing
    /// renews it here. It sends nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if there is nothing to hand over.
    pub fn detach(self) -> Result<(), Error> {
        self.view.inner.finish().map(drop)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let inner = &self.view.inner;
        if let Ok(last) = inner.finish() {
            inner.span.in_scope(|| inner.keeper.leave(&inner.wanted, last.named(), inner.stays(&last)));
        }
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

impl fmt::Debug for HoldView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keys, mode, remaining) = (self.keys(), self.mode(), self.remaining());
        f.debug_struct("Hold")
            .field("keys", &keys)
            .field("mode", &mode)
            .field("remaining", &remaining)
            .finish()
    }
}

impl HoldView {
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
        match &self.inner.keeper {
            Keeper::Server(_) => vec![Some(self.fence())],
            Keeper::Votes(votes) => votes.fences(),
        }
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
}

/// Another type has replaced the lock.
fn is_another_type(error: &Error) -> bool {
    matches!(error, Error::Redis(error) if error.code() == Some("WRONGTYPE"))
}

fn explained(error: Error, wanted: &Wanted) -> Error {
    match error {
        Error::Redis(error) if is_reply(&error) => explain(error, &wanted.owner.keys),
        error => error,
    }
}
