use std::sync::Arc;
use std::time::Instant;

use super::attempt::Attempt;
use super::hold::{QuorumHold, QuorumHoldView};
use super::members::Members;
use super::{Inner, adoption};
use crate::command::Acquire;
use crate::options::{Options, request_options, shared_options};
use crate::{Error, Mode, given_tokens};

/// What a [`Quorum`](crate::Quorum) is asked for. Making one sends nothing, and one may be used many times.
#[derive(Clone)]
#[must_use = "a request does nothing until it is acquired"]
pub struct QuorumRequest {
    inner: Arc<Inner>,
    keys: Arc<[String]>,
    mode: Mode,
    options: Options,
}

impl QuorumRequest {
    shared_options!(options);
    request_options!(options);

    pub(super) fn new(inner: Arc<Inner>, keys: Arc<[String]>, mode: Mode, options: Options) -> Self {
        Self { inner, keys, mode, options }
    }

    /// Asks until a majority of the servers grants the lock. A failed attempt is released on all of them, and
    /// so is what may be there when the future is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::QuorumMissed`] when too few servers answered in the last attempt, [`Error::TimedOut`] when
    /// others had the lock.
    pub async fn acquire(&self) -> Result<QuorumHold, Error> {
        let deadline = self.options.wait.map(|wait| Instant::now() + wait);
        self.ask(false, deadline)
            .await?
            .ok_or_else(|| Error::TimedOut { keys: self.keys.clone(), source: None })
    }

    /// Makes one attempt, and gives nothing when others have the lock.
    ///
    /// # Errors
    ///
    /// [`Error::QuorumMissed`] when too few servers answered.
    pub async fn try_acquire(&self) -> Result<Option<QuorumHold>, Error> {
        self.ask(true, None).await
    }

    async fn ask(&self, once: bool, deadline: Option<Instant>) -> Result<Option<QuorumHold>, Error> {
        let acquire = self.one_use()?;
        let new_tokens = self.options.token.is_none();
        let label = self.options.label(&self.keys);
        let mut attempt = Attempt::new(self.inner.clone(), acquire, new_tokens, label);
        let Some(granted) = attempt.run(once, deadline).await? else { return Ok(None) };
        let (acquire, members) = (attempt.acquire.clone(), attempt.members.clone());
        let hold = QuorumHold::new(self.inner.clone(), acquire, members, &self.options, granted);
        attempt.hand_over();
        Ok(Some(hold))
    }

    /// Acquires the lock, runs the work, and releases. The work is dropped at its next `.await` when the hold
    /// is lost meanwhile.
    ///
    /// # Errors
    ///
    /// Those of [`QuorumRequest::acquire`], and [`Error::Lost`] when the hold was lost before the work was
    /// done.
    pub async fn run<T, F>(&self, work: impl FnOnce(QuorumHoldView) -> F) -> Result<T, Error>
    where
        F: Future<Output = T>,
    {
        let hold = self.acquire().await?;
        let result = hold.run(work(hold.view())).await;
        // Servers that do not answer the release say nothing about the time before.
        hold.release().await;
        result
    }

    /// A hold from what the token of this request holds already: another process took it and handed the token
    /// over. It counts when a majority of the servers extends it: its deadline is set anew. Dropping the
    /// future releases nothing.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] when the token does not hold on a majority or the request was given no token,
    /// [`Error::WrongMode`] when it holds in the other mode, [`Error::QuorumMissed`] when too few servers
    /// answered to know.
    pub async fn adopt(&self) -> Result<QuorumHold, Error> {
        if self.options.token.is_none() {
            return Err(Error::NotHeld);
        }
        self.inner.closing.unless_closed()?;
        let acquire = self.one_use()?;
        let until = Instant::now() + acquire.ttl;
        let ended = self.inner.given_tokens.ended(&acquire.owner);
        if !given_tokens::within(Some(until), ended).await {
            return Err(given_tokens::still_running().into());
        }
        let members = Arc::new(Members::new(&self.inner.nodes));
        let granted = adoption::adopt(&self.inner, &acquire, &members).await?;
        Ok(QuorumHold::new(self.inner.clone(), acquire, members, &self.options, granted))
    }

    fn one_use(&self) -> Result<Arc<Acquire>, Error> {
        self.inner.check_ttl(self.options.ttl)?;
        self.options.acquire(&self.keys, self.mode).map(Arc::new)
    }
}
