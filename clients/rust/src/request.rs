// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is wanted: keys, a mode and options.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::ToRedisArgs;
use tracing::{Instrument, info_span};

use crate::errors::{Error, Result};
use crate::hold::Hold;
use crate::info::Mode;
use crate::node::OnDrop;
use crate::options::{LONGEST, Options, shared_options};
use crate::protocol::Wanted;
use crate::quorum::Servers;

/// What a [`Locks`](crate::Locks) is asked for. Making one sends nothing, and one may be used many times, by several tasks
/// at once.
///
/// ```no_run
/// # async fn example(locks: slock_client::Locks) -> Result<(), slock_client::Error> {
/// use std::time::{Duration, Instant};
///
/// let request = locks.read(&["{shop}:stock", "{shop}:prices"]).ttl(Duration::from_secs(5));
/// let fence = request.run(|hold| async move { hold.fence() }).await?;
/// if let Some(hold) = request.try_acquire().await? {
///     hold.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a request does nothing until it is acquired"]
pub struct Request {
    servers: Arc<Servers>,
    /// Nobody if not all keys are text.
    keys: Arc<[String]>,
    mode: Mode,
    options: Arc<Options>,
}

impl Request {
    shared_options!();

    pub(crate) fn new(servers: &Arc<Servers>, keys: &impl ToRedisArgs, mode: Mode, options: Options) -> Self {
        let keys = keys.to_redis_args().into_iter().map(String::from_utf8).collect::<Result<_, _>>();
        Self { servers: servers.clone(), keys: keys.unwrap_or_default(), mode, options: Arc::new(options) }
    }

    pub(crate) fn options_mut(&mut self) -> &mut Options {
        Arc::make_mut(&mut self.options)
    }

    /// The owner token, of 1 to 255 bytes. Without it each acquisition draws 128 random bits. Give all locks of one task the
    /// same token, and the server refuses a wait that would be a deadlock of tasks. Two acquisitions of one key by one token
    /// are one hold for the server. A command with it that arrives late may take the lock again for its ttl; with a drawn
    /// token, the server refuses it.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.options_mut().token = Some(token.into());
        self
    }

    /// Waits until the lock is granted. Requests are served in their order of arrival; a quorum polls.
    ///
    /// If the future is dropped, it leaves neither a hold nor a place in the queue: what has to be sent for that is sent in
    /// the background.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] at the end of the `wait`: others have the lock. [`Error::NoAnswer`] if no reply comes from the
    /// server: after `retry_for` if there never was one, else after `retry_wait_for`. All others except [`Error::Lost`].
    pub async fn acquire(&self) -> Result<Hold, Error> {
        self.take(false).await
    }

    /// Sends the request once, and gives nothing if others hold the lock or wait for it.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Request::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Hold>, Error> {
        match self.take(true).await {
            Err(Error::TimedOut(_)) => Ok(None),
            acquired => acquired.map(Some),
        }
    }

    async fn take(&self, is_try: bool) -> Result<Hold> {
        self.check()?;
        // `close` waits until what was begun has ended.
        let _running = self.servers.shared.tracker.token();
        let wanted = self.wanted();
        let (began, reporter) = (Instant::now(), &self.servers.shared.reporter);
        let mut cancelled = OnDrop(Some(|| reporter.waited(&wanted, began, "cancelled")));
        let acquired = async {
            tokio::select! {
                biased;
                () = self.servers.shared.closing.cancelled() => Err(Error::Closed),
                acquired = self.servers.acquire(&wanted, is_try) => acquired,
            }
        };
        let acquired = acquired.instrument(info_span!("slock.acquire", lock = wanted.label())).await;
        cancelled.0 = None;
        let outcome = match &acquired {
            Ok(_) => "granted",
            Err(Error::TimedOut(_)) if is_try => "refused",
            Err(Error::TimedOut(_)) => "timed out",
            Err(error) => error.name(),
        };
        reporter.waited(&wanted, began, outcome);
        Ok(Hold::new(acquired?))
    }

    /// Runs the work under the lock: it waits as [`acquire`](Request::acquire), runs the work, and releases. The work gets the
    /// hold, for example for the fencing token. If the hold is lost, the work is dropped at its next `.await`.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Request::acquire), and [`Error::Lost`] if the hold was lost, or gone at the end. A release
    /// without a reply is no error of finished work: it goes on in the background, and the lock ends by its ttl.
    pub async fn run<T, F>(&self, work: impl FnOnce(Arc<Hold>) -> F) -> Result<T, Error>
    where
        F: Future<Output = T>,
    {
        let hold = Arc::new(self.acquire().await?);
        // It ends with this future, even if the program keeps another reference to the hold.
        let _block = OnDrop(Some(|| hold.inner.leave()));
        let result = hold.run(work(hold.clone())).await?;
        match hold.release().await {
            Err(loss @ Error::Lost { .. }) => Err(loss),
            _ => Ok(result),
        }
    }

    /// Makes a hold from the owner token of this request, which another process took and detached. It never takes a lock.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if the token does not hold all keys in the mode; of a quorum, if a majority says so.
    pub async fn adopt(&self) -> Result<Hold, Error> {
        self.check()?;
        if self.options.token.is_none() {
            return Err(Error::Invalid("adopt needs an owner token".into()));
        }
        let _running = self.servers.shared.tracker.token();
        Ok(Hold::new(self.servers.adopt(&self.wanted()).await?))
    }

    /// Releases what the owner token holds.
    pub(crate) async fn release(&self) -> Result<usize> {
        self.check()?;
        self.servers.release(&self.wanted()).await
    }

    fn wanted(&self) -> Arc<Wanted> {
        Arc::new(Wanted::new(&self.keys, &self.servers.shared.prefix, self.mode, &self.options))
    }

    fn check(&self) -> Result<()> {
        self.options.check(&self.keys, self.mode)?;
        self.servers.check(self.options.ttl)?;
        self.servers.shared.unless_closed()
    }
}
