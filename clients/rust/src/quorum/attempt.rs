//! One use of a request to a quorum.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use rand::seq::SliceRandom;
use tokio::runtime::Handle;

use super::Inner;
use super::members::Members;
use crate::command::{self, Acquire, Wait};
use crate::error::Answer;
use crate::{Error, Outcome, given_tokens, random};

/// Asks until a majority granted. When it is dropped before, it releases on all servers.
pub(super) struct Attempt {
    inner: Arc<Inner>,
    pub(super) acquire: Arc<Acquire>,
    pub(super) members: Arc<Members>,
    /// Each further try takes a token of its own, so that no late release of an earlier one can touch it.
    new_tokens: bool,
    label: Arc<str>,
    started: Instant,
    runtime: Handle,
    may_stand: bool,
    /// A command of this token that sets the deadline got no answer.
    late: bool,
    finished: bool,
}

pub(super) struct Granted {
    pub(super) sent: Instant,
    pub(super) fences: Vec<Option<i64>>,
    /// A command that sets the deadline got no answer from one of the servers.
    pub(super) late: bool,
}

impl Attempt {
    pub(super) fn new(inner: Arc<Inner>, acquire: Arc<Acquire>, new_tokens: bool, label: Arc<str>) -> Self {
        Self {
            members: Arc::new(Members::new(&inner.nodes)),
            inner,
            acquire,
            new_tokens,
            label,
            started: Instant::now(),
            runtime: Handle::current(),
            may_stand: false,
            late: false,
            finished: false,
        }
    }

    pub(super) async fn run(
        &mut self,
        once: bool,
        deadline: Option<Instant>,
    ) -> Result<Option<Granted>, Error> {
        let inner = self.inner.clone();
        // Boxed, so that the depth of types in the programs of users stays small.
        let asks: BoxFuture<'_, _> = Box::pin(self.ask_until(once, deadline));
        let result = tokio::select! {
            biased;
            result = asks => result,
            () = inner.closing.closed() => Err(Error::Closed),
        };
        self.finished = true;
        if let Some(observer) = &self.inner.observer {
            let outcome = match &result {
                Ok(Some(_)) => Outcome::Granted,
                Ok(None) => Outcome::Refused,
                Err(error) => Outcome::from(error),
            };
            observer.waited(&self.label, self.started.elapsed(), outcome);
        }
        result
    }

    /// The hold is somebody's now.
    pub(super) fn hand_over(&mut self) {
        self.may_stand = false;
    }

    async fn ask_until(&mut self, once: bool, deadline: Option<Instant>) -> Result<Option<Granted>, Error> {
        let end_of_releases = if once { Some(self.started + self.acquire.ttl) } else { deadline };
        let ended = self.inner.given_tokens.ended(&self.acquire.owner);
        if !given_tokens::within(end_of_releases, ended).await {
            let error = given_tokens::still_running().into();
            if once {
                return Err(error);
            }
            let keys = self.acquire.owner.keys.clone();
            return Err(Error::TimedOut { keys, source: Some(Box::new(error)) });
        }
        for number in 0.. {
            self.inner.closing.unless_closed()?;
            let answers = match self.ask_all().await {
                Ok(granted) => return Ok(Some(granted)),
                Err(answers) => answers,
            };
            self.release();
            if once {
                return self.refused(&answers).map(|()| None);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match self.inner.poll.pause(number) {
                Some(pause) if left.is_none_or(|left| pause < left) => tokio::time::sleep(pause).await,
                pause => {
                    if let (Some(_), Some(deadline)) = (pause, deadline) {
                        tokio::time::sleep_until(deadline.into()).await;
                    }
                    self.refused(&answers)?;
                    let source = Some(Box::new(self.inner.missed(&answers)));
                    return Err(Error::TimedOut { keys: self.acquire.owner.keys.clone(), source });
                }
            }
            if self.new_tokens {
                let mut acquire = (*self.acquire).clone();
                acquire.owner.token = random::name();
                self.acquire = Arc::new(acquire);
                self.late = false;
                self.members = Arc::new(Members::new(&self.inner.nodes));
            }
        }
        unreachable!("the loop ends only by returning")
    }

    /// An error unless a majority answered, and it was others who had the lock.
    fn refused(&self, answers: &[Answer]) -> Result<(), Error> {
        let answered = answers.iter().filter(|answer| matches!(answer, Answer::Granted | Answer::Refused));
        if answered.count() >= self.inner.majority() {
            return Ok(());
        }
        Err(self.inner.missed(answers))
    }

    async fn ask_all(&mut self) -> Result<Granted, Vec<Answer>> {
        let count = self.inner.nodes.len();
        let ttl = self.acquire.ttl;
        let limit = self.inner.node_timeout(ttl);
        let command = command::acquire(&self.acquire, &Wait::No);
        let mut order: Vec<_> = (0..count).collect();
        order.shuffle(&mut rand::rng());
        let mut answers = vec![Answer::NoAnswer; count];
        let mut fences = vec![None; count];
        let (mut granted, mut failed) = (0, 0);
        self.may_stand = true;
        let late = AtomicBool::new(false);
        let note = || late.store(true, Ordering::Relaxed);
        let sent = Instant::now();
        let mut asked: FuturesUnordered<_> = order
            .into_iter()
            .map(|number| {
                let (members, command, note) = (&self.members, &command, &note);
                async move { (number, members.grant(number, command, limit, note).await) }
            })
            .collect();
        while let Some((number, (answer, fence))) = asked.next().await {
            match answer {
                Answer::Granted => granted += 1,
                _ => failed += 1,
            }
            answers[number] = answer;
            fences[number] = fence;
            if self.inner.fail_fast && count - failed < self.inner.majority() {
                break;
            }
        }
        drop(asked);
        self.late |= late.into_inner();
        if granted >= self.inner.majority() && sent.elapsed() < self.inner.validity(ttl) {
            Ok(Granted { sent, fences, late: self.late })
        } else {
            Err(answers)
        }
    }

    /// On all servers: one that gave no answer may have granted the lock.
    fn release(&mut self) {
        self.may_stand = false;
        let release = command::release(&self.acquire.owner, Some(self.acquire.mode));
        let until = Instant::now() + self.acquire.ttl.max(Duration::from_secs(1));
        let ending = self.inner.given_tokens.ending(&self.acquire.owner).map(Arc::new);
        self.members.release(&self.inner, &self.runtime, &release, until, ending);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.finished
            && let Some(observer) = &self.inner.observer
        {
            observer.waited(&self.label, self.started.elapsed(), Outcome::Cancelled);
        }
        if self.may_stand {
            self.release();
        }
    }
}
