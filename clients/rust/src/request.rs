//! What is wanted: keys, mode and options. It sends nothing until it is acquired.

use std::sync::Arc;
use std::time::Duration;

use crate::commands::Owner;
use crate::errors::{Error, Reason};
use crate::hold::{HoldOf, HoldViewOf, Site, check_ttl};
use crate::hooks::Waited;
use crate::options::{LONGEST, Options, Wanted, shared_options};
use crate::shared::{Shared, Single};

/// What [`Locks`](crate::Locks) or a [`Quorum`](crate::Quorum) is asked for. Making one sends nothing, and one
/// may be used many times. Each use takes a token of its own, unless the request was given one.
///
/// ```no_run
/// # async fn example(locks: slock_client::Locks) -> Result<(), slock_client::Error> {
/// use std::time::Duration;
///
/// let request = locks.read(&["{shop}:stock", "{shop}:prices"]).ttl(Duration::from_secs(5));
/// let total = request.run(|hold| async move { hold.fence() }).await?;
/// if let Some(hold) = request.try_acquire().await? {
///     hold.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a request does nothing until it is acquired"]
pub struct Request<S: Site = Single> {
    shared: Arc<Shared<S>>,
    wanted: Arc<Wanted>,
}

impl<S: Site> Clone for Request<S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), wanted: self.wanted.clone() }
    }
}

impl<S: Site> Request<S> {
    shared_options!();

    pub(crate) fn new(shared: Arc<Shared<S>>, wanted: Wanted) -> Self {
        Self { shared, wanted: Arc::new(wanted) }
    }

    fn options_mut(&mut self) -> &mut Options {
        &mut Arc::make_mut(&mut self.wanted).options
    }

    /// The owner's identity, for handing the hold over and adopting it. Without it each use of the request
    /// takes 128 random bits.
    ///
    /// Two acquisitions of one key by one given token are the program's own affair: they are one hold, which
    /// either ends. Different keys are safe.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.options_mut().token = Some(token.into());
        self
    }

    /// Waits for the lock. Requests are granted in their order of arrival; a quorum polls.
    ///
    /// When the future is dropped, it leaves neither a hold nor a request: what may be there is given up in the
    /// background.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when the wait ran out, or when the server did not answer for `retry_for`, or for
    /// `retry_wait_for` once the request waits. All others but [`Error::Lost`].
    pub async fn acquire(&self) -> Result<HoldOf<S>, Error> {
        let hold = self.ask(false).await?;
        hold.ok_or_else(|| Error::TimedOut { keys: self.wanted.keys.clone(), source: None })
    }

    /// Asks once, and gives nothing when others have the lock or wait for it.
    ///
    /// Dropping the future leaves nothing behind, as with [`Request::acquire`].
    ///
    /// # Errors
    ///
    /// As [`Request::acquire`]. After a connection error the request is sent again for `retry_for`.
    pub async fn try_acquire(&self) -> Result<Option<HoldOf<S>>, Error> {
        self.ask(true).await
    }

    async fn ask(&self, once: bool) -> Result<Option<HoldOf<S>>, Error> {
        // Taken before the check and dropped last: who closes all waits until this has been given up.
        let _under_way = self.shared.background.token();
        self.check()?;
        let mut waited = Waited::begin(&self.shared.reporter, self.wanted.label());
        let asks = S::ask(self.shared.clone(), self.wanted.clone(), once);
        let result = self.shared.closing.run_until_cancelled(asks).await.unwrap_or(Err(Error::Closed));
        waited.end(&result);
        result
    }

    /// Releases what the token holds.
    pub(crate) async fn release(&self) -> Result<usize, Error> {
        self.check()?;
        S::release_token(&self.shared, Owner::new(self.wanted.clone())).await
    }

    fn check(&self) -> Result<(), Error> {
        self.wanted.check(self.shared.poll.as_ref())?;
        check_ttl(&self.shared.site, self.wanted.options.ttl)?;
        self.shared.unless_closed()
    }

    /// Acquires the lock, runs the work, and releases. The work is dropped at its next `.await` when the hold
    /// is lost meanwhile. It gets a view of the hold, with its fence.
    ///
    /// # Errors
    ///
    /// Those of [`Request::acquire`], and [`Error::Lost`] when the hold was lost before the work was done. A
    /// release that fails is no error: it goes on in the background, and the lock ends by its ttl.
    pub async fn run<T, F>(&self, work: impl FnOnce(Arc<HoldViewOf<S>>) -> F) -> Result<T, Error>
    where
        F: Future<Output = T>,
    {
        let hold = self.acquire().await?;
        let view = hold.view();
        let result = view.run(work(hold.view())).await;
        let released = hold.release().await;
        let result = result?;
        match released {
            // The validity ended just now, or the hold was taken away after its last renewal.
            Ok(false) => Err(view.lost_error(view.lost_reason().unwrap_or(Reason::Gone))),
            Ok(true) | Err(_) => Ok(result),
        }
    }

    /// A hold from what the token of this request holds already: another process took it and handed the token
    /// over. It never takes the lock anew. Dropping the future releases nothing.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] when the token does not hold all the keys in this mode, or the request was given no
    /// token. For a quorum [`Error::QuorumMissed`] when too few servers answered to know.
    pub async fn adopt(&self) -> Result<HoldOf<S>, Error> {
        if self.wanted.options.token.is_none() {
            return Err(Error::NotHeld);
        }
        self.check()?;
        S::adopt(self.shared.clone(), self.wanted.clone()).await
    }
}
