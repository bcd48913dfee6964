// SPDX-License-Identifier: MIT OR Apache-2.0

//! A lock that was granted: what is known of it, its release, and its end for the program.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::acquisition::{Acquisition, Grant};
use crate::clock::Moment;
use crate::errors::{Details, Error, Reason, Result};
use crate::info::Mode;
use crate::node::{OnDrop, repeat};
use crate::options::Options;
use crate::protocol::{REFUSED_FOR, Wanted};
use crate::quorum::{Kept, Votes};
use crate::shared::Shared;
use crate::watchdog::{self, Due, LONGEST_SLEEP, Watched};

/// After which time a hold without `max_hold` is worth a warning.
const LONG_HOLD: Duration = Duration::from_secs(60 * 60);
/// How long a change that has timed out is settled before the call returns: the server replies, so it is not for long.
const SETTLING: Duration = Duration::from_millis(500);
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
    pub(crate) votes: Arc<Votes>,
    /// Held while a command that prolongs the hold is on its way.
    extending: tokio::sync::Mutex<()>,
    /// Held by a call that changes the mode.
    calling: tokio::sync::Mutex<()>,
    /// Held until it is known what became of the change.
    changing: Arc<tokio::sync::Mutex<()>>,
    lease: Mutex<Lease>,
    ended: CancellationToken,
}

/// What is known of a hold. It reads no clock.
#[derive(Clone)]
struct Lease {
    mode: Mode,
    /// 0 for a quorum.
    fence: i64,
    ttl: Duration,
    /// When the program learned of the grant.
    granted: Moment,
    valid_until: Moment,
    renew_at: Moment,
    /// When the watchdog looks at it.
    due: Due,
    /// When its age is worth a warning.
    warn_at: Moment,
    /// The server may have changed the mode and the fencing token, so renewals name none.
    is_open: bool,
    /// What the last renewal said, unless one has succeeded since.
    failed: Option<Error>,
    /// Nothing while it is live; then why it is not.
    ended: Option<Error>,
}

impl Lease {
    /// The fencing token that commands name.
    fn named(&self) -> Option<i64> {
        Some(self.fence).filter(|fence| *fence > 0 && !self.is_open)
    }
}

impl Inner {
    fn new((votes, grant): Kept) -> Arc<Self> {
        let (granted, options) = (Moment::now(), &votes.wanted.options);
        let lease = Mutex::new(Lease {
            mode: votes.wanted.mode,
            fence: grant.fence,
            ttl: options.ttl,
            granted,
            valid_until: grant.from.after(votes.servers.counted(options.ttl)),
            renew_at: grant.from.after(options.ttl / 3),
            due: watchdog::never(),
            warn_at: if options.max_hold.is_none() { granted.after(LONG_HOLD) } else { Moment::NEVER },
            is_open: false,
            failed: None,
            ended: None,
        });
        let (extending, calling, changing, ended) = Default::default();
        let inner = Arc::new(Self { votes, extending, calling, changing, lease, ended });
        let _ = inner.update(|_| {});
        inner
    }

    fn wanted(&self) -> &Arc<Wanted> {
        &self.votes.wanted
    }

    fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().expect("nothing panics while a lease is locked")
    }

    /// Notes that the server gave the hold in this mode.
    pub(crate) fn granted(self: &Arc<Self>, mode: Mode, grant: Grant) {
        let _ = self.update(|lease| {
            (lease.mode, lease.fence, lease.is_open) = (mode, grant.fence, false);
            self.lengthen(lease, grant.from, lease.ttl);
        });
    }

    /// Notes that the server lets the hold live for a ttl, or longer, from a moment on.
    fn lengthen(&self, lease: &mut Lease, from: Moment, ttl: Duration) {
        lease.ttl = lease.ttl.max(ttl);
        lease.valid_until = lease.valid_until.max(from.after(self.votes.servers.counted(ttl)));
        lease.renew_at = from.after(lease.ttl / 3);
        lease.failed = None;
    }

    fn lose(&self, lease: &mut Lease, reason: Reason) {
        let last = lease.failed.clone().filter(|_| reason == Reason::Expired);
        let details = Details::new(&self.wanted().keys, format!("the lock was lost, {reason}"));
        lease.ended = Some(Error::Lost { reason, details: details.caused_by(last) });
    }

    /// Changes the lease of a live hold, and does what follows if that ends it. The error is what is wrong with it then.
    fn update(self: &Arc<Self>, change: impl FnOnce(&mut Lease)) -> Result<()> {
        let now = Moment::now();
        let mut lease = self.lease();
        if let Some(error) = &lease.ended {
            return Err(error.clone());
        }
        match now {
            _ if now >= self.most(&lease) => self.lose(&mut lease, Reason::MaxHold),
            _ if now < lease.valid_until => change(&mut lease),
            _ if self.shared().closing.is_cancelled() => self.lose(&mut lease, Reason::Closed),
            _ => self.lose(&mut lease, Reason::Expired),
        }
        let Some(error) = lease.ended.clone() else {
            let next = if self.is_renewed() { lease.renew_at } else { Moment::NEVER };
            let (before, due) = (lease.due, (self.end(&lease).min(next), lease.due.1));
            if due != before {
                watchdog::watch(before, due, Arc::downgrade(self) as _);
                lease.due = due;
            }
            return Ok(());
        };
        watchdog::unwatch(lease.due);
        let (granted, fence, _) = (lease.granted, lease.named(), drop(lease));
        self.ended.cancel();
        let reporter = &self.shared().reporter;
        self.wanted().span.in_scope(|| {
            if let Error::Lost { .. } = error {
                // By the fencing token, because another hold of a token of the program's stays.
                self.votes.leave(fence, Duration::ZERO);
                reporter.lost(self.wanted(), &error);
            }
            reporter.held(self.wanted(), now.since(granted));
        });
        Err(error)
    }

    /// When the time of `max_hold` has passed.
    fn most(&self, lease: &Lease) -> Moment {
        self.wanted().options.max_hold.map_or(Moment::NEVER, |most| lease.granted.after(most))
    }

    /// When the hold is over unless something happens.
    fn end(&self, lease: &Lease) -> Moment {
        lease.valid_until.min(self.most(lease))
    }

    fn is_renewed(&self) -> bool {
        self.wanted().options.renew && !self.shared().closing.is_cancelled()
    }

    /// Ends with the hold, and gives what is wrong with it then.
    async fn over(self: &Arc<Self>) -> Error {
        loop {
            if let Err(error) = self.update(|_| {}) {
                return error;
            }
            let remaining = self.end(&self.lease()).remaining();
            let _ = timeout(remaining.min(LONGEST_SLEEP), self.ended.cancelled()).await;
        }
    }

    /// Ends a hold whose time is over, and renews it if that is due. If it is in doubt, asks the server for it.
    async fn renew(self: &Arc<Self>, is_in_doubt: bool) {
        let (now, mut ttl, mut is_due) = (Moment::now(), NO_LONGER, false);
        let (wanted, reporter) = (self.wanted(), &self.shared().reporter);
        let _ = self.update(|lease| {
            if self.is_renewed() {
                ttl = lease.ttl;
                is_due = now >= lease.renew_at;
            }
            if is_due {
                lease.renew_at = now.after(ttl / 10); // unless this one succeeds
            }
            if now >= lease.warn_at {
                lease.warn_at = Moment::NEVER;
                reporter.held_long(wanted);
            }
        });
        if is_in_doubt {
            let _ = self.prolong(ttl).await;
        } else if is_due
            && let Ok(_extending) = self.extending.try_lock()
            // A reply may be waited for in vain, so it is not waited for long.
            && let Err(error) = self.extend(Instant::now() + ttl / 4, ttl).await
            && self.update(|_| {}).is_ok()
        {
            reporter.renewal_failed(wanted, &error);
        }
    }

    /// Sends an extension until it is answered.
    async fn prolong(self: &Arc<Self>, ttl: Duration) -> Result<()> {
        let _extending = self.extending.lock().await; // for as long as a renewal may take
        let until = Instant::now() + self.shared().retry_for;
        repeat(&self.wanted().keys, until, |until| self.extend(until, ttl)).await.map(drop)
    }

    /// Sends one extension. The caller has `extending`. What is wrong with the hold comes before another error.
    async fn extend(self: &Arc<Self>, until: Instant, ttl: Duration) -> Result<()> {
        let (mut fence, mut remaining) = (None, Duration::ZERO);
        self.update(|lease| (fence, remaining) = (lease.named(), self.end(lease).remaining()))?;
        let (sent, until) = (Moment::now(), until.min(Instant::now() + remaining));
        let answer = match self.votes.extend(until, ttl, fence).await {
            Err(error) if error.is_another_type() => Ok(false),
            answer => answer,
        };
        self.update(|lease| match &answer {
            Ok(true) => self.lengthen(lease, sent, ttl),
            Ok(false) if fence == lease.named() => self.lose(lease, Reason::Gone),
            Ok(false) => {} // it is about another fencing token
            Err(error) if lease.failed.is_some() && error.is_silence() => {} // it tells less
            Err(error) => lease.failed = Some(error.clone().explained(&self.wanted().keys)),
        })?;
        answer.map(drop)
    }

    /// Ends a live hold here, before anything is sent. Gives the fencing token to name, and for how long the lock has to stay.
    fn finish(self: &Arc<Self>) -> Result<(Option<i64>, Duration)> {
        let mut last = None;
        let ended = self.update(|lease| {
            lease.ended = Some(self.wanted().not_held(lease.mode));
            let held = Moment::now().since(lease.granted);
            last = Some((lease.named(), self.wanted().options.at_least.saturating_sub(held)));
        });
        last.ok_or_else(|| ended.expect_err("the hold was not live"))
    }

    pub(crate) async fn released(self: &Arc<Self>) -> Result<()> {
        // `close` waits until what was begun has ended.
        let _running = self.shared().tracker.token();
        let (fence, after) = self.finish()?;
        match self.votes.end(fence, after).await {
            Ok(true) => Ok(()),
            Err(error) if !error.is_another_type() => {
                self.shared().reporter.release_failed(self.wanted(), &error);
                Err(error)
            }
            _ => {
                let mut lease = self.lease();
                self.lose(&mut lease, Reason::Gone);
                let loss = lease.ended.clone().expect("it is lost");
                drop(lease);
                self.shared().reporter.lost(self.wanted(), &loss);
                Err(loss)
            }
        }
    }

    /// Releases in the background.
    pub(crate) fn leave(self: &Arc<Self>) {
        if let Ok((fence, after)) = self.finish() {
            self.wanted().span.in_scope(|| self.votes.leave(fence, after));
        }
    }
}

impl Watched for Inner {
    fn shared(&self) -> &Arc<Shared> {
        &self.votes.servers.shared
    }

    fn look(self: Arc<Self>, is_in_doubt: bool) {
        let (runtime, span) = (self.wanted().runtime.clone(), self.wanted().span.clone());
        runtime.spawn(async move { self.renew(is_in_doubt).await }.instrument(span));
    }

    fn release(self: Arc<Self>) -> BoxFuture<'static, Result<()>> {
        async move { self.released().await }.boxed()
    }
}

impl Hold {
    pub(crate) fn new(kept: Kept) -> Self {
        Self { inner: Inner::new(kept) }
    }

    /// The owner token. Who has it and the keys can adopt and release the lock.
    pub fn token(&self) -> &str {
        &self.inner.wanted().token
    }

    /// The keys, in the order of the request, without the prefix.
    pub fn keys(&self) -> &[String] {
        &self.inner.wanted().keys
    }

    /// The mode of the hold.
    pub fn mode(&self) -> Mode {
        self.inner.lease().mode
    }

    /// The text that was given with the request.
    pub fn metadata(&self) -> Option<&str> {
        self.inner.wanted().options.metadata.as_deref()
    }

    /// The fencing token. Each new hold has a greater one than all before on its server: send it with all that is written,
    /// and refuse lesser ones where it is stored. It is 0 for a hold of a quorum.
    pub fn fence(&self) -> i64 {
        self.inner.lease().fence
    }

    /// The fencing tokens of the nodes of a quorum, in the order in which the servers were given, and nothing for a node
    /// that gave none. Those of different servers cannot be compared. Without a quorum it is the one fencing token.
    pub fn fences(&self) -> Vec<Option<i64>> {
        self.inner.votes.fences().unwrap_or_else(|| vec![Some(self.fence())])
    }

    /// For how long the lock is certainly held, if nobody deletes its keys. A renewal makes it longer. It is zero once the hold
    /// was released, detached or lost.
    pub fn remaining(&self) -> Duration {
        let lease = self.inner.lease();
        if lease.ended.is_some() { Duration::ZERO } else { self.inner.end(&lease).remaining() }
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
        match self.check() {
            Err(loss @ Error::Lost { .. }) => Err(loss),
            _ => Ok(result), // also if the work has released or detached
        }
    }

    /// Lets the hold live for at least this ttl from now. It never shortens: for that, release. Later renewals use the
    /// longest ttl that was asked for.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold is over. [`Error::NoAnswer`] if no reply came for `retry_for`, or
    /// [`Error::QuorumMissed`]: then the hold may still be valid.
    pub async fn extend(&self, ttl: Duration) -> Result<(), Error> {
        self.inner.votes.servers.check(ttl)?;
        self.check()?;
        self.inner.shared().unless_closed()?;
        let ttl = ttl.max(self.inner.lease().ttl);
        self.inner.prolong(ttl).await
    }

    /// Releases the hold. If the future is dropped, the release goes on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold was lost, or if the server had nothing to release. [`Error::NoAnswer`] if no reply came
    /// for `retry_for`: then the release goes on in the background, and nothing renews the lock any more.
    /// [`Error::NotHeld`] if it was released or detached before.
    pub async fn release(&self) -> Result<(), Error> {
        self.inner.released().await
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

/// Changes of the mode. While one is open the hold is renewed without naming its fencing token, because the server may have given
/// it another one.
impl Hold {
    /// Makes a reader the writer, in one step, and gives the new fencing token. It waits until the other readers are gone,
    /// at most this long; without a limit, as long as that takes. It works for one key on one server, and not while another
    /// change of mode is open.
    ///
    /// If the future is dropped, or the wait is over, the hold is still valid. Whether it is a reader or the writer then is
    /// found out in the background, and [`mode`](Hold::mode) tells.
    ///
    /// # Errors
    ///
    /// [`Error::Deadlock`] if another reader of the key waits for its own upgrade already. [`Error::TimedOut`],
    /// [`Error::NoAnswer`], [`Error::Lost`].
    pub async fn upgrade(&self, wait: impl Into<Option<Duration>>) -> Result<i64, Error> {
        self.change(Mode::Write, wait.into()).await
    }

    /// Makes the writer a reader, in one step with no writer in between, and gives the new fencing token. It works for one
    /// key on one server, and not while another change of mode is open. The hold counts as a reader's from the first attempt
    /// on. Without a reply, or if the future is dropped, it goes on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::NoAnswer`] if no reply came for `retry_for`, and [`Error::Lost`].
    pub async fn downgrade(&self) -> Result<i64, Error> {
        self.change(Mode::Read, Some(Duration::ZERO)).await
    }

    async fn change(&self, to: Mode, wait: Option<Duration>) -> Result<i64> {
        let inner = &self.inner;
        let Some(node) = inner.votes.servers.single().filter(|_| self.keys().len() == 1) else {
            return Err(Error::Invalid("the mode changes for one key on one server".into()));
        };
        self.check()?;
        inner.shared().unless_closed()?;
        let Ok(_calling) = inner.calling.try_lock() else {
            return Err(Error::Invalid("another change of the mode is open".into()));
        };
        let (retry_for, keys) = (inner.shared().retry_for, &inner.wanted().keys);
        let changing = timeout(retry_for, inner.changing.clone().lock_owned()).await;
        let changing = changing.map_err(|_| Error::no_answer(keys, retry_for, None))?;
        let was = inner.lease().clone();
        let options = Options { ttl: was.ttl, wait, ..(*inner.wanted().options).clone() };
        let (options, runtime) = (Arc::new(options), Handle::current()); // the one that acquired may have ended
        let wanted = Wanted { options, runtime, ..(**inner.wanted()).clone() };
        let command = wanted.change(to, was.ttl, was.fence);
        inner.update(|lease| {
            lease.is_open = true;
            lease.mode = if to == Mode::Read { to } else { lease.mode };
        })?;
        let was_open = was.is_open;
        let settled = settle(inner.clone(), to, was, changing).instrument(wanted.span.clone());
        let mut unsettled = OnDrop(Some(|| drop(wanted.runtime.spawn(settled))));
        let mut acquisition = Acquisition::new(node, &wanted, command, false);
        let result = tokio::select! {
            biased;
            loss = self.lost() => Err(loss),
            () = inner.shared().closing.cancelled() => Err(Error::Closed),
            result = acquisition.run() => result,
        };
        let is_open = result.is_err() && acquisition.is_open();
        if !is_open {
            unsettled.0 = None;
        }
        drop(unsettled);
        match &result {
            Ok(grant) => inner.granted(to, *grant),
            Err(error) if matches!(error, Error::NotHeld(_)) || error.is_another_type() => {
                drop(inner.update(|lease| inner.lose(lease, Reason::Gone)));
            }
            Err(_) if !is_open => drop(inner.update(|lease| lease.is_open = was_open)),
            Err(Error::TimedOut(_)) => drop(timeout(SETTLING, inner.changing.lock()).await),
            Err(_) => {}
        }
        self.check()?;
        result.map(|grant| grant.fence)
    }
}

/// Finds out what became of a change that is open, while the hold is there.
async fn settle(inner: Arc<Inner>, to: Mode, was: Lease, _changing: OwnedMutexGuard<()>) {
    let (Some(node), wanted) = (inner.votes.servers.single(), inner.wanted()) else { return };
    let ask = async |command| node.ask(wanted, wanted.call(&command, Instant::now() + REFUSED_FOR)).await;
    let settled = async {
        let command = match to {
            Mode::Read => wanted.change(to, was.ttl, was.fence),
            // If it waited until now, it was not granted.
            Mode::Write if ask(wanted.withdraw()).await?.number > 0 => return Ok(()),
            Mode::Write => wanted.adopt(to, was.ttl),
        };
        let answer = ask(command).await?;
        if answer.number > 0 {
            inner.granted(to, Grant { fence: answer.number, from: answer.sent });
        }
        Ok::<_, Error>(())
    };
    tokio::select! {
        _ = inner.over() => {}
        _ = settled => {}
    }
}
