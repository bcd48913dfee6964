use std::sync::Arc;
use std::time::Instant;

use crate::attempt::{Attempt, End, Granted, Purpose};
use crate::hold::{Hold, HoldView};
use crate::locks::Inner;
use crate::options::{Options, replica_options, request_options, shared_options};
use crate::{Error, Mode, command, given_tokens, route};

/// What [`Locks`](crate::Locks) is asked for. Making one sends nothing, and one may be used many times. Each
/// use takes a token of its own, unless the request was given one.
///
/// ```no_run
/// # async fn example(locks: slock_client::Locks) -> Result<(), slock_client::Error> {
/// use std::time::Duration;
///
/// let request = locks.read(["{shop}:stock", "{shop}:prices"]).ttl(Duration::from_secs(5));
/// let total = request.run(|hold| async move { hold.fence() }).await?;
/// if let Some(hold) = request.try_acquire().await? {
///     hold.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a request does nothing until it is acquired"]
pub struct Request {
    inner: Arc<Inner>,
    keys: Arc<[String]>,
    mode: Mode,
    options: Options,
}

impl Request {
    shared_options!(options);
    request_options!(options);
    replica_options!(options);

    pub(crate) fn new(inner: Arc<Inner>, keys: Arc<[String]>, mode: Mode, options: Options) -> Self {
        Self { inner, keys, mode, options }
    }

    /// Waits for the lock. Requests are granted in their order of arrival.
    ///
    /// When the future is dropped, it leaves neither a hold nor a request: what may be there is withdrawn and
    /// released in the background.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when the wait ran out, and all others but [`Error::Lost`] and
    /// [`Error::QuorumMissed`]. Errors of the connection and errors that pass, as at a failover, are none:
    /// the request is sent again as long as the wait lasts.
    pub async fn acquire(&self) -> Result<Hold, Error> {
        let deadline = self.options.wait.map(|wait| Instant::now() + wait);
        self.ask(End::At(deadline))
            .await?
            .ok_or_else(|| Error::TimedOut { keys: self.keys.clone(), source: None })
    }

    /// Asks once, and gives nothing when others have the lock or wait for it.
    ///
    /// Dropping the future leaves nothing behind, as with [`Request::acquire`].
    ///
    /// # Errors
    ///
    /// As [`Request::acquire`], but for [`Error::TimedOut`]. After a connection error the request is sent
    /// again for `retry_for`.
    pub async fn try_acquire(&self) -> Result<Option<Hold>, Error> {
        self.ask(End::FirstAnswer).await
    }

    async fn ask(&self, end: End) -> Result<Option<Hold>, Error> {
        let acquire = Arc::new(self.options.acquire(&self.keys, self.mode)?);
        let owner = acquire.owner.clone();
        let label = self.options.label(&self.keys);
        let mut attempt = Attempt::new(&self.inner, Purpose::Acquire(acquire), label);
        let Some(granted) = attempt.run(end).await? else { return Ok(None) };
        let hold = Hold::new(&self.inner, owner, self.mode, &self.options, granted);
        attempt.hand_over();
        Ok(Some(hold))
    }

    /// Acquires the lock, runs the work, and releases. The work is dropped at its next `.await` when the hold
    /// is lost meanwhile. It gets a view of the hold, with its fence.
    ///
    /// # Errors
    ///
    /// Those of [`Request::acquire`], and [`Error::Lost`] when the hold was lost before the work was done. A
    /// release that gets no answer is no error: it goes on in the background.
    pub async fn run<T, F>(&self, work: impl FnOnce(HoldView) -> F) -> Result<T, Error>
    where
        F: Future<Output = T>,
    {
        let hold = self.acquire().await?;
        let view = hold.view();
        let result = hold.run(work(hold.view())).await;
        let released = hold.release().await;
        let result = result?;
        match released {
            // The validity ended just now, or the hold was taken away after its last renewal.
            Ok(false) => Err(view.lost_or_gone()),
            Ok(true) | Err(_) => Ok(result),
        }
    }

    /// A hold from what the token of this request holds already: another process took it and handed the token
    /// over. Its deadline is set anew. Dropping the future releases nothing.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] when the token holds nothing or the request was given no token,
    /// [`Error::WrongMode`] when it holds in the other mode.
    pub async fn adopt(&self) -> Result<Hold, Error> {
        if self.options.token.is_none() {
            return Err(Error::NotHeld);
        }
        self.inner.closing.unless_closed()?;
        let acquire = self.options.acquire(&self.keys, self.mode)?;
        let until = Instant::now() + self.inner.retry_for;
        let owner = &acquire.owner;
        if !given_tokens::within(Some(until), self.inner.given_tokens.ended(owner)).await {
            return Err(given_tokens::still_running().into());
        }
        let extend = command::extend(owner, acquire.ttl);
        let extended = route::call(&self.inner, owner, &extend, until).await?;
        if extended.number != Some(1) {
            return Err(Error::NotHeld);
        }
        // The owner that asks again gets the fence of its hold.
        let again = command::acquire(&acquire, &command::Wait::No);
        let called = route::call(&self.inner, owner, &again, until).await?;
        let fence = called.number.filter(|fence| *fence != 0).ok_or(Error::NotHeld)?;
        let late = extended.repeated || called.repeated;
        let granted = Granted { fence, sent: called.sent, unanswered: Vec::new(), late };
        Ok(Hold::new(&self.inner, acquire.owner, self.mode, &self.options, granted))
    }
}
