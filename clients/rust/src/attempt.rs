//! One use of a request: asks until the lock is granted, and leaves nothing behind when it is dropped before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use redis::{Cmd, cmd};
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;

use crate::answer::{self, Failure};
use crate::backoff::Backoff;
use crate::blocked::Blocked;
use crate::command::{self, Acquire, Owner, Wait};
use crate::give_up::{self, Remains};
use crate::hold::Core;
use crate::lease::counted;
use crate::locks::{Inner, Waiting};
use crate::node::Link;
use crate::route::{Route, time_left};
use crate::{Error, Outcome, given_tokens, replicas};

/// An answer or a message that is late by this much after the wait does not come any more.
const LATE: Duration = Duration::from_secs(2);
/// How often a server is asked whether it lives while a wait blocks a connection.
const BETWEEN_TESTS: Duration = Duration::from_secs(5);

/// What is asked for.
#[derive(Clone)]
pub(crate) enum Purpose {
    Acquire(Arc<Acquire>),
    Upgrade {
        hold: Arc<Core>,
        ttl: Duration,
        /// Keeps other changes of the hold away, until what a dropped upgrade left is cleared.
        _operation: Arc<OwnedMutexGuard<()>>,
    },
}

impl Purpose {
    pub(crate) fn owner(&self) -> &Owner {
        match self {
            Purpose::Acquire(request) => &request.owner,
            Purpose::Upgrade { hold, .. } => &hold.owner,
        }
    }

    pub(crate) fn ttl(&self) -> Duration {
        match self {
            Purpose::Acquire(request) => request.ttl,
            Purpose::Upgrade { ttl, .. } => *ttl,
        }
    }

    fn command(&self, wait: &Wait<'_>) -> Cmd {
        match self {
            Purpose::Acquire(request) => command::acquire(request, wait),
            Purpose::Upgrade { hold, ttl, .. } => command::upgrade(&hold.owner, *ttl, wait),
        }
    }
}

/// How long to ask.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// The first answer counts.
    FirstAnswer,
    /// Until the lock is granted, or this moment has come.
    At(Option<Instant>),
}

pub(crate) struct Granted {
    pub(crate) fence: i64,
    /// The validity counts from here.
    pub(crate) sent: Instant,
    /// Connections on which an earlier attempt got no answer, and may still be executed.
    pub(crate) unanswered: Vec<Link>,
    /// A command that sets the deadline got no answer.
    pub(crate) late: bool,
}

enum Asked {
    Granted { fence: i64, sent: Instant },
    Refused,
    TimedOut,
}

pub(crate) struct Attempt<'a> {
    inner: &'a Arc<Inner>,
    purpose: Purpose,
    label: Arc<str>,
    started: Instant,
    runtime: Handle,
    /// A refused request has to wait from now on.
    must_wait: bool,
    /// Something may be on the server, or on its way there.
    may_stand: bool,
    /// Something was asked whose end is not known.
    doubtful: bool,
    last: Option<Link>,
    unanswered: Vec<Link>,
    /// A command that sets the deadline got no answer.
    late: bool,
    blocked: Option<Blocked>,
    /// The error of the last question; nothing when it was answered.
    last_error: Option<Error>,
    finished: bool,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(inner: &'a Arc<Inner>, purpose: Purpose, label: Arc<str>) -> Self {
        Self {
            inner,
            purpose,
            label,
            started: Instant::now(),
            runtime: Handle::current(),
            must_wait: false,
            may_stand: false,
            doubtful: false,
            last: None,
            unanswered: Vec::new(),
            late: false,
            blocked: None,
            last_error: None,
            finished: false,
        }
    }

    /// Gives nothing when the first answer was a refusal and nothing else was asked for.
    pub(crate) async fn run(&mut self, end: End) -> Result<Option<Granted>, Error> {
        let inner = self.inner;
        // Boxed, so that the depth of types in the programs of users stays small.
        let asks: BoxFuture<'_, _> = Box::pin(self.ask_until(end));
        let result = tokio::select! {
            biased;
            result = asks => result,
            () = inner.closing.closed() => Err(Error::Closed),
        };
        self.finished = true;
        if let (Some(observer), Purpose::Acquire(_)) = (&self.inner.observer, &self.purpose) {
            let outcome = match &result {
                Ok(Some(_)) => Outcome::Granted,
                Ok(None) => Outcome::Refused,
                Err(error) => Outcome::from(error),
            };
            observer.waited(&self.label, self.started.elapsed(), outcome);
        }
        result
    }

    /// The hold is somebody's now. Nothing is to be cleared any more.
    pub(crate) fn hand_over(&mut self) {
        self.may_stand = false;
    }

    async fn ask_until(&mut self, end: End) -> Result<Option<Granted>, Error> {
        let (once, deadline) = match end {
            End::FirstAnswer => (true, None),
            End::At(deadline) => (false, deadline),
        };
        let last_retry = if once { Some(self.started + self.inner.retry_for) } else { deadline };
        if !self.token_is_free(last_retry).await {
            let error = given_tokens::still_running().into();
            if once {
                return Err(error);
            }
            self.last_error = Some(error);
            return Err(self.timed_out());
        }
        let mut backoff = Backoff::new();
        let mut polls = 0;
        loop {
            let asked = match deadline {
                None => self.ask(once, deadline).await,
                Some(deadline) => {
                    let asked = self.ask(once, Some(deadline));
                    let asked = tokio::time::timeout_at((deadline + LATE).into(), asked).await;
                    asked.unwrap_or_else(|_| Err(Failure::Connection(answer::no_answer("the server"))))
                }
            };
            if let Ok(Asked::Granted { .. } | Asked::Refused | Asked::TimedOut) = asked {
                self.last_error = None;
            }
            let pause = match asked {
                Ok(Asked::Granted { fence, sent }) => match self.confirm(fence, sent).await {
                    Ok(Some(granted)) => return Ok(Some(granted)),
                    Ok(None) => backoff.next(),
                    Err(failure) => self.pause_after(failure, once, last_retry, &mut backoff)?,
                },
                Ok(Asked::Refused) if once => return Ok(None),
                Ok(Asked::Refused) => match &self.inner.waiting {
                    Waiting::Poll(poll) => {
                        let pause = poll.pause(polls).ok_or_else(|| self.timed_out())?;
                        polls += 1;
                        pause
                    }
                    _ => {
                        self.must_wait = true;
                        backoff = Backoff::new();
                        Duration::ZERO
                    }
                },
                Ok(Asked::TimedOut) => return Err(self.timed_out()),
                Err(failure) => self.pause_after(failure, once, last_retry, &mut backoff)?,
            };
            if let Some(deadline) = deadline
                && time_left(deadline) <= pause
            {
                tokio::time::sleep_until(deadline.into()).await;
                return Err(self.timed_out());
            }
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// Waits until no release of this token can end the new hold. An upgrade has no new hold.
    async fn token_is_free(&self, deadline: Option<Instant>) -> bool {
        let Purpose::Acquire(request) = &self.purpose else { return true };
        let ended = self.inner.given_tokens.ended(&request.owner);
        given_tokens::within(deadline, ended).await
    }

    fn timed_out(&self) -> Error {
        let keys = self.purpose.owner().keys.clone();
        Error::TimedOut { keys, source: self.last_error.clone().map(Box::new) }
    }

    fn pause_after(
        &mut self,
        failure: Failure,
        once: bool,
        last_retry: Option<Instant>,
        backoff: &mut Backoff,
    ) -> Result<Duration, Error> {
        if let Failure::Final(error) = failure {
            return Err(error);
        }
        self.inner.servers.doubt();
        let pause = backoff.next();
        let error = failure.into_error();
        self.last_error = Some(error.clone());
        match last_retry {
            Some(last) if once && time_left(last) < pause => Err(error),
            _ => Ok(pause),
        }
    }

    async fn ask(&mut self, once: bool, deadline: Option<Instant>) -> Result<Asked, Failure> {
        let left = deadline.map(time_left);
        let polls = matches!(self.inner.waiting, Waiting::Poll(_));
        if once || polls || left.is_some_and(|left| left.is_zero()) {
            return self.ask_at_once().await;
        }
        match (self.inner.must_block(), self.must_wait) {
            (false, true) => self.ask_notified(deadline).await,
            (true, true) => self.ask_blocked(deadline).await,
            (false, false) if self.listens().await? => self.ask_notified(deadline).await,
            (_, false) => self.ask_at_once().await,
        }
    }

    /// Whether a channel is there already, so that the first question can be one that waits.
    async fn listens(&self) -> Result<bool, Failure> {
        let mut route = Route::new(&self.inner.servers, self.purpose.owner());
        let listening = route.node().await?.listening();
        Ok(listening.is_some_and(|listening| listening.is_subscribed(route.slot())))
    }

    /// Sends one command and notes what may come of it.
    async fn send(&mut self, link: Link, asking: bool, command: &Cmd) -> Result<Option<i64>, Failure> {
        self.may_stand = true;
        self.last = Some(link.clone());
        // Put on record before the answer is awaited: this future may be dropped while it waits.
        let answer = link.ask(command, asking).await;
        match &answer {
            Err(Failure::Connection(_)) => {
                self.doubtful = true;
                self.note_late();
                self.unanswered.push(link);
            }
            Err(_) | Ok(Some(0)) => self.nothing_stands(),
            Ok(_) => {}
        }
        answer
    }

    /// A command that sets the deadline got no answer.
    fn note_late(&mut self) {
        self.late = true;
        if let Purpose::Upgrade { hold, ttl, .. } = &self.purpose {
            hold.lease.may_come_late(counted(*ttl));
        }
    }

    /// The request has ended without a hold. What was asked before may be another matter.
    fn nothing_stands(&mut self) {
        if !self.doubtful {
            self.may_stand = false;
        }
    }

    async fn ask_at_once(&mut self) -> Result<Asked, Failure> {
        let inner = self.inner;
        let purpose = self.purpose.clone();
        let command = purpose.command(&Wait::No);
        let mut route = Route::new(&inner.servers, purpose.owner());
        loop {
            let (link, asking) = route.link().await?;
            let node = link.node.clone();
            let sent = Instant::now();
            match self.send(link, asking, &command).await {
                Ok(Some(fence)) if fence != 0 => return Ok(Asked::Granted { fence, sent }),
                Ok(_) => return Ok(Asked::Refused),
                Err(failure) if route.follow(&failure, &node) => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    /// The user may not use channels.
    async fn block_instead(&mut self, deadline: Option<Instant>) -> Result<Asked, Failure> {
        self.inner.block_from_now_on();
        self.ask_blocked(deadline).await
    }

    async fn ask_notified(&mut self, deadline: Option<Instant>) -> Result<Asked, Failure> {
        let inner = self.inner;
        let purpose = self.purpose.clone();
        let mut route = Route::new(&inner.servers, purpose.owner());
        loop {
            let node = route.node().await?;
            let subscribed = node.listen(route.slot(), purpose.owner().first_key()).await;
            let listening = match subscribed.map_err(answer::failure) {
                Ok(listening) => listening,
                Err(failure @ Failure::Moved { .. }) if route.follow(&failure, &node) => continue,
                Err(failure) if failure.denies_to_subscribe() => return self.block_instead(deadline).await,
                Err(failure) => return Err(failure),
            };
            let Some((mut noted, channel)) = listening.note(route.slot(), inner.next_tag()) else {
                return Err(Failure::Connection(answer::listening_lost()));
            };
            let link = node.link().await.map_err(answer::failure)?;
            let most = deadline.map(time_left);
            let command =
                purpose.command(&Wait::Notified { most, channel: channel.as_ref(), tag: noted.tag });
            let sent = Instant::now();
            match self.send(link, false, &command).await {
                Ok(Some(0)) => return Ok(Asked::TimedOut),
                Ok(Some(fence)) => return Ok(Asked::Granted { fence, sent }),
                Ok(None) => {}
                Err(failure @ Failure::Moved { .. }) if route.follow(&failure, &node) => continue,
                Err(failure) if failure.denies_the_channel() => return self.block_instead(deadline).await,
                Err(failure) => {
                    if let Failure::NoSubscriber(_) = failure {
                        noted.end_listening();
                    }
                    return Err(failure);
                }
            }
            return match noted.end().await {
                Some(Ok(0)) => {
                    self.nothing_stands();
                    Ok(Asked::TimedOut)
                }
                Some(Ok(fence)) => Ok(Asked::Granted { fence, sent }),
                Some(Err(failure)) => {
                    self.nothing_stands();
                    Err(failure)
                }
                None => {
                    self.doubtful = true;
                    Err(Failure::Connection(answer::listening_lost()))
                }
            };
        }
    }

    async fn ask_blocked(&mut self, deadline: Option<Instant>) -> Result<Asked, Failure> {
        let inner = self.inner;
        let purpose = self.purpose.clone();
        let mut route = Route::new(&inner.servers, purpose.owner());
        loop {
            let node = route.node().await?;
            let connection = node.connect(None).await.map_err(answer::failure)?;
            let command = purpose.command(&Wait::Blocked { most: deadline.map(time_left) });
            let sent = Instant::now();
            self.may_stand = true;
            let blocked = self.blocked.insert(Blocked::send(connection, command));
            let mut tests = tokio::time::interval(BETWEEN_TESTS);
            tests.tick().await;
            let reply = loop {
                tokio::select! {
                    reply = blocked.reply() => break reply,
                    _ = tests.tick() => {
                        // The connection that waits cannot be tested itself.
                        let alive = match node.link().await {
                            Ok(link) => link.send(&cmd("PING")).await.map(drop),
                            Err(error) => Err(error),
                        };
                        if let Err(error) = alive {
                            break Err(error);
                        }
                    }
                }
            };
            self.blocked = None;
            let number = answer::number(reply);
            match &number {
                Err(Failure::Connection(_)) => {
                    self.doubtful = true;
                    self.note_late();
                }
                Err(_) | Ok(Some(0)) => self.nothing_stands(),
                Ok(_) => {}
            }
            match number {
                Ok(Some(fence)) if fence != 0 => return Ok(Asked::Granted { fence, sent }),
                Ok(_) => return Ok(Asked::TimedOut),
                Err(failure @ Failure::Moved { .. }) if route.follow(&failure, &node) => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Makes sure of the validity. Gives nothing when the hold may be over by now.
    async fn confirm(&mut self, fence: i64, sent: Instant) -> Result<Option<Granted>, Failure> {
        let mut sent = sent;
        let ttl = self.purpose.ttl();
        if sent.elapsed() > ttl / 3 {
            let owner = self.purpose.owner().clone();
            let extend = command::extend(&owner, ttl);
            let mut route = Route::new(&self.inner.servers, &owner);
            loop {
                let (link, asking) = route.link().await?;
                let extended_from = Instant::now();
                let answer = link.ask(&extend, asking).await;
                if let Err(Failure::Connection(_)) = answer {
                    self.note_late();
                }
                match answer {
                    Ok(Some(1)) => {
                        sent = extended_from;
                        break;
                    }
                    Ok(_) => return Ok(None),
                    Err(failure) if route.follow(&failure, &link.node) => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
        if let Purpose::Acquire(request) = self.purpose.clone()
            && let Some(wanted) = request.replicas
        {
            let confirmed = replicas::confirm(self.inner, &request.owner, ttl, wanted).await;
            if let Err(Failure::Connection(_)) = confirmed {
                self.note_late();
            }
            match confirmed? {
                Some(confirmed_from) => sent = confirmed_from,
                None => return Ok(None),
            }
        }
        if sent.elapsed() >= counted(ttl) {
            return Ok(None);
        }
        let unanswered = std::mem::take(&mut self.unanswered);
        Ok(Some(Granted { fence, sent, unanswered, late: self.late }))
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.finished
            && let (Some(observer), Purpose::Acquire(_)) = (&self.inner.observer, &self.purpose)
        {
            observer.waited(&self.label, self.started.elapsed(), Outcome::Cancelled);
        }
        if self.may_stand {
            let mut links = std::mem::take(&mut self.unanswered);
            links.extend(self.last.take());
            let remains = Remains {
                purpose: self.purpose.clone(),
                links,
                blocked: self.blocked.take(),
                until: Instant::now() + self.purpose.ttl().max(self.inner.retry_for),
            };
            let ending = self.inner.given_tokens.ending(self.purpose.owner());
            let clears = give_up::clear(self.inner.clone(), remains);
            self.inner.in_background(&self.runtime, async move {
                clears.await;
                drop(ending);
            });
        }
    }
}
