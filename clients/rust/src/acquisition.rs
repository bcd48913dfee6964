//! One use of a request: asks until the lock is granted or its limit has come, and leaves nothing behind when
//! it ends without a hold.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio::runtime::Handle;

use crate::answers::{self, Failure};
use crate::clock::Moment;
use crate::commands::{self, Acquire, Owner, Wait};
use crate::errors::Error;
use crate::hooks::Waited;
use crate::lease::validity;
use crate::listener::Listener;
use crate::node::{Node, REPLY_TIMEOUT, Words, in_time};
use crate::options::{LONGEST, Label, Waiting};
use crate::polling::Backoff;
use crate::replicas::{self, Replicas};
use crate::servers::{GRACE, Route, no_answer};
use crate::shared::Shared;
use crate::{blocking, give_up};

/// How often a request is sent again whose earlier copy may still come and take its place.
const BETWEEN_COPIES: Duration = Duration::from_secs(5);

/// What is asked for.
#[derive(Clone)]
pub(crate) enum Goal {
    Hold {
        acquire: Arc<Acquire>,
        label: Label,
        replicas: Option<Replicas>,
    },
    /// Who asks for it also gives it up.
    Upgrade {
        owner: Owner,
        ttl: Duration,
        fence: i64,
    },
}

impl Goal {
    fn owner(&self) -> &Owner {
        match self {
            Goal::Hold { acquire, .. } => &acquire.owner,
            Goal::Upgrade { owner, .. } => owner,
        }
    }

    fn command(&self, wait: &Wait<'_>) -> Cmd {
        match self {
            Goal::Hold { acquire, .. } => commands::acquire(acquire, wait),
            Goal::Upgrade { owner, ttl, fence } => commands::upgrade(owner, *ttl, wait, *fence),
        }
    }
}

/// How long to ask.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// The first answer counts.
    pub(crate) once: bool,
    /// When the wait is over.
    pub(crate) deadline: Option<Instant>,
    /// How long to go on without any answer: until the first one, and once it waits.
    pub(crate) retry_for: Duration,
    pub(crate) retry_wait_for: Duration,
}

pub(crate) struct Granted {
    pub(crate) fence: i64,
    /// The validity counts from here.
    pub(crate) sent: Moment,
    /// An earlier copy may still be carried out.
    pub(crate) in_doubt: bool,
}

enum Answer {
    Granted {
        fence: i64,
        sent: Moment,
        /// It may be the grant of an earlier copy, which set an earlier deadline.
        of_any_copy: bool,
    },
    Refused,
    TimedOut,
}

pub(crate) struct Acquisition {
    shared: Arc<Shared>,
    goal: Goal,
    limits: Limits,
    /// All copies have one tag: a message is for the acquisition, whichever copy it answers.
    tag: u64,
    started: Instant,
    runtime: Handle,
    /// A refused request has to wait from now on.
    must_wait: bool,
    /// Something may be on the server, or on its way there.
    may_stand: bool,
    /// A copy had no answer.
    in_doubt: bool,
    answered: bool,
    /// Nothing was answered since then.
    out_of_reach_since: Option<Instant>,
    /// The error of the last copy; nothing when it was answered.
    last_error: Option<Error>,
    waited: Option<Waited>,
}

impl Acquisition {
    pub(crate) fn new(shared: Arc<Shared>, goal: Goal, limits: Limits) -> Self {
        let started = Instant::now();
        let waited = match &goal {
            Goal::Hold { label, .. } => Some(Waited::begin(shared.reporter.clone(), label.clone(), started)),
            Goal::Upgrade { .. } => None,
        };
        Self {
            tag: shared.next_tag(),
            shared,
            goal,
            limits,
            started,
            runtime: Handle::current(),
            must_wait: false,
            may_stand: false,
            in_doubt: false,
            answered: false,
            out_of_reach_since: None,
            last_error: None,
            waited,
        }
    }

    /// Gives nothing when the first answer was a refusal and nothing else was asked for.
    pub(crate) async fn run(&mut self) -> Result<Option<Granted>, Error> {
        let result = self.ask_until_granted().await;
        if let Ok(Some(_)) = result {
            self.may_stand = false;
        }
        if let Some(waited) = &mut self.waited {
            waited.end(&result);
        }
        result
    }

    /// Whether something may stand on the server although nothing was granted.
    pub(crate) fn may_stand(&self) -> bool {
        self.may_stand
    }

    async fn ask_until_granted(&mut self) -> Result<Option<Granted>, Error> {
        if !self.can_be_released() {
            Box::pin(self.ask_whether_it_can_be_released()).await?;
        }
        let mut backoff = Backoff::new();
        let mut polls = 0;
        loop {
            self.shared.closing.unless_closed()?;
            let answer = self.ask().await;
            if answer.is_ok() {
                self.heard();
                self.last_error = None;
            }
            let pause = match answer {
                Ok(Answer::Granted { fence, sent, of_any_copy }) => {
                    if !self.is_to_be_confirmed(sent, of_any_copy) {
                        return Ok(Some(Granted { fence, sent, in_doubt: self.in_doubt }));
                    }
                    match Box::pin(self.confirm(fence, sent, of_any_copy)).await {
                        Ok(Some(granted)) => return Ok(Some(granted)),
                        Ok(None) => backoff.next(),
                        Err(failure) => self.pause_after(failure, &mut backoff)?,
                    }
                }
                Ok(Answer::Refused) if self.limits.once => return Ok(None),
                Ok(Answer::Refused) => match &self.shared.waiting {
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
                Ok(Answer::TimedOut) => return Err(self.timed_out()),
                Err(failure) => self.pause_after(failure, &mut backoff)?,
            };
            if let Some(deadline) = self.limits.deadline
                && time_left(deadline) <= pause
            {
                Box::pin(unless_closed(&self.shared, tokio::time::sleep_until(deadline.into()))).await;
                return Err(self.timed_out());
            }
            if !pause.is_zero() {
                Box::pin(unless_closed(&self.shared, tokio::time::sleep(pause))).await;
            }
        }
    }

    /// Whether it was asked already.
    fn can_be_released(&self) -> bool {
        match &self.goal {
            Goal::Hold { acquire, .. } => {
                self.shared.may_release(&acquire.owner, acquire.mode).load(Ordering::Relaxed)
            }
            Goal::Upgrade { .. } => true,
        }
    }

    /// What could not be released is not taken. Asked once for each kind of request.
    async fn ask_whether_it_can_be_released(&mut self) -> Result<(), Error> {
        let Goal::Hold { acquire, .. } = &self.goal else { return Ok(()) };
        let (shared, acquire) = (self.shared.clone(), acquire.clone());
        shared.closing.unless_closed()?;
        let nobody = Owner::new(acquire.owner.keys.clone(), None);
        let patience_ends = self.started + self.limits.retry_for;
        let until = self.limits.deadline.map_or(patience_ends, |deadline| deadline.min(patience_ends));
        match shared.call(&nobody, &commands::may_release(&nobody, acquire.mode), until).await {
            Err(error @ (Error::TimedOut { .. } | Error::ModuleNotLoaded)) => return Err(error),
            Err(Error::Redis(error)) if error.code() == Some("NOPERM") => return Err(error.into()),
            _ => {}
        }
        self.heard();
        shared.may_release(&acquire.owner, acquire.mode).store(true, Ordering::Relaxed);
        Ok(())
    }

    fn timed_out(&self) -> Error {
        let source = self.last_error.clone().map(Box::new);
        Error::TimedOut { keys: self.goal.owner().keys.clone(), source }
    }

    /// The server has said something.
    fn heard(&mut self) {
        self.answered = true;
        self.out_of_reach_since = None;
        self.shared.reporter.reached();
    }

    /// When to end if nothing is answered until then; nothing while the server answers.
    fn patience_ends(&self) -> Option<Instant> {
        if self.limits.once || !self.answered {
            return Some(self.started + self.limits.retry_for);
        }
        self.out_of_reach_since.map(|since| since + self.limits.retry_wait_for)
    }

    /// Until when the next answer has to be there.
    fn answer_until(&self) -> Instant {
        let until = Instant::now() + REPLY_TIMEOUT;
        let ends = [self.limits.deadline, self.patience_ends()].into_iter().flatten().min();
        ends.map_or(until, |end| until.min(end + GRACE))
    }

    fn pause_after(&mut self, failure: Failure, backoff: &mut Backoff) -> Result<Duration, Error> {
        if let Failure::Final(error) = failure {
            return Err(error);
        }
        self.shared.servers.doubt();
        let pause = backoff.next();
        let is_answer = failure.is_answer();
        let error = failure.into_error();
        if is_answer {
            self.heard();
        } else {
            self.out_of_reach_since.get_or_insert_with(Instant::now);
            self.shared.reporter.out_of_reach(&error);
        }
        self.last_error = Some(error);
        // The last copy is sent at the end itself.
        match self.patience_ends().map(time_left) {
            Some(Duration::ZERO) => Err(self.timed_out()),
            Some(left) => Ok(pause.min(left)),
            None => Ok(pause),
        }
    }

    async fn ask(&mut self) -> Result<Answer, Failure> {
        let is_over = self.limits.deadline.is_some_and(|deadline| time_left(deadline).is_zero());
        if self.limits.once || is_over || matches!(self.shared.waiting, Waiting::Poll(_)) {
            return self.ask_at_once().await;
        }
        // Boxed, so that the commonest way is small.
        if self.shared.must_block() {
            return if self.must_wait {
                Box::pin(self.ask_blocked()).await
            } else {
                self.ask_at_once().await
            };
        }
        match self.shared.servers.listening(self.goal.owner().first_key()) {
            None if !self.must_wait => self.ask_at_once().await,
            listening => Box::pin(self.ask_notified(listening)).await,
        }
    }

    /// Notes what may come of one copy: before its answer is there, since this future may be dropped.
    async fn noting<T>(&mut self, sends: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let before = self.in_doubt;
        (self.may_stand, self.in_doubt) = (true, true);
        let answer = sends.await;
        if !matches!(answer, Err(Failure::Unanswered(_))) {
            self.in_doubt = before;
        }
        if answer.is_err() {
            self.nothing_stands();
        }
        answer
    }

    /// The last copy has ended without a hold. An earlier one may be another matter.
    fn nothing_stands(&mut self) {
        self.may_stand = self.in_doubt;
    }

    fn granted(&mut self, value: &Value, sent: Moment) -> Option<Answer> {
        match answers::number(value) {
            0 => {
                self.nothing_stands();
                None
            }
            fence => Some(Answer::Granted { fence, sent, of_any_copy: false }),
        }
    }

    async fn ask_at_once(&mut self) -> Result<Answer, Failure> {
        let (shared, goal) = (self.shared.clone(), self.goal.clone());
        let command = goal.command(&Wait::No);
        let sent = Moment::now();
        let sends = shared.servers.send(goal.owner().first_key(), Words::One(&command), self.answer_until());
        let value = self.noting(sends).await?;
        Ok(self.granted(&value, sent).unwrap_or(Answer::Refused))
    }

    /// The user may not use channels.
    async fn block_instead(&mut self) -> Result<Answer, Failure> {
        self.shared.block_from_now_on();
        self.ask_blocked().await
    }

    async fn ask_notified(
        &mut self,
        mut listening: Option<(Arc<Node>, Arc<Listener>)>,
    ) -> Result<Answer, Failure> {
        let (shared, goal) = (self.shared.clone(), self.goal.clone());
        let mut route = shared.servers.route(goal.owner().first_key());
        loop {
            let (node, listener) = match listening.take() {
                Some(found) => found,
                None => match Box::pin(self.listen(&mut route)).await? {
                    Some(found) => found,
                    None => return Box::pin(self.block_instead()).await,
                },
            };
            let Some((mut noted, channel)) = listener.note(route.slot(), self.tag) else {
                return Err(Failure::Unreachable(answers::listening_lost()));
            };
            let most = self.limits.deadline.map(time_left);
            let command = goal.command(&Wait::Notified { most, channel: &channel, tag: self.tag });
            let sent = Moment::now();
            match self.noting(node.send(Words::One(&command), self.answer_until())).await {
                Ok(Value::Nil) => {}
                Ok(value) => return Ok(self.granted(&value, sent).unwrap_or(Answer::TimedOut)),
                Err(failure @ Failure::Moved { .. }) if route.follow(&failure, &node) => continue,
                Err(failure) if failure.denies_the_channel() => return Box::pin(self.block_instead()).await,
                Err(failure) => {
                    if let Failure::NoSubscriber(_) = failure {
                        noted.end_listening();
                    }
                    return Err(failure);
                }
            }
            self.heard();
            return match self.until_over(noted.end()).await {
                Some(Some(Ok(0))) => {
                    self.nothing_stands();
                    Ok(Answer::TimedOut)
                }
                Some(Some(Ok(fence))) => Ok(Answer::Granted { fence, sent, of_any_copy: self.in_doubt }),
                Some(Some(Err(failure))) => {
                    self.nothing_stands();
                    Err(failure)
                }
                Some(None) => {
                    // The server may not have noticed yet, and grant what waits.
                    self.in_doubt = true;
                    Err(Failure::Unanswered(answers::listening_lost()))
                }
                None => self.no_message(),
            };
        }
    }

    /// Subscribes where the key is served; nothing when the user may not.
    async fn listen(&mut self, route: &mut Route<'_>) -> Result<Option<(Arc<Node>, Arc<Listener>)>, Failure> {
        loop {
            let until = self.answer_until();
            let node = in_time(until, route.node()).await?;
            let subscribes = async {
                node.subscribe(route.slot(), self.goal.owner().first_key()).await.map_err(answers::failure)
            };
            match in_time(until, subscribes).await {
                Ok(listener) => {
                    self.heard();
                    return Ok(Some((node, listener)));
                }
                Err(failure) if route.follow(&failure, &node) => {}
                Err(failure) if failure.denies_to_subscribe() => return Ok(None),
                Err(failure) => return Err(failure.before_sending()),
            }
        }
    }

    /// A wait of the server: until its own end should long have come, or an earlier copy may have come.
    async fn until_over<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        let over = self.limits.deadline.map(|deadline| time_left(deadline + GRACE));
        let again = self.in_doubt.then_some(BETWEEN_COPIES);
        let limit = [over, again].into_iter().flatten().min().unwrap_or(LONGEST);
        unless_closed(&self.shared, tokio::time::timeout(limit, wait)).await?.ok()
    }

    /// The message did not come. What was asked stands.
    fn no_message(&mut self) -> Result<Answer, Failure> {
        match self.limits.deadline {
            Some(deadline) if time_left(deadline).is_zero() => {
                self.last_error = Some(no_answer().into_error());
                Ok(Answer::TimedOut)
            }
            _ => Ok(Answer::Refused),
        }
    }

    async fn ask_blocked(&mut self) -> Result<Answer, Failure> {
        let (shared, goal) = (self.shared.clone(), self.goal.clone());
        let mut route = shared.servers.route(goal.owner().first_key());
        loop {
            let node = in_time(self.answer_until(), route.node()).await?;
            let connects = async { node.connect().await.map_err(answers::failure) };
            let connection = in_time(self.answer_until(), connects).await.map_err(Failure::before_sending)?;
            self.heard();
            let command = goal.command(&Wait::Blocked { most: self.limits.deadline.map(time_left) });
            let sent = Moment::now();
            let over = self.limits.deadline.map_or(LONGEST, |deadline| time_left(deadline + GRACE));
            let waits = async {
                let waits = tokio::time::timeout(over, blocking::wait(&node, connection, &command));
                let answer = unless_closed(&shared, waits).await.and_then(Result::ok);
                answer.unwrap_or_else(|| Err(no_answer()))
            };
            match self.noting(waits).await {
                Ok(value) => return Ok(self.granted(&value, sent).unwrap_or(Answer::TimedOut)),
                Err(failure) if route.follow(&failure, &node) => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    fn is_to_be_confirmed(&self, sent: Moment, of_any_copy: bool) -> bool {
        match &self.goal {
            Goal::Hold { acquire, replicas, .. } => {
                of_any_copy || replicas.is_some() || sent.elapsed() > acquire.ttl / 3
            }
            Goal::Upgrade { .. } => false,
        }
    }

    /// Makes sure of the validity. Gives nothing when the hold may be over by now.
    async fn confirm(
        &mut self,
        fence: i64,
        sent: Moment,
        of_any_copy: bool,
    ) -> Result<Option<Granted>, Failure> {
        let in_doubt = self.in_doubt;
        let Goal::Hold { acquire, replicas, .. } = self.goal.clone() else {
            return Ok(Some(Granted { fence, sent, in_doubt }));
        };
        let (shared, owner, ttl) = (self.shared.clone(), &acquire.owner, acquire.ttl);
        let mut sent = sent;
        if of_any_copy || sent.elapsed() > ttl / 3 {
            let extend = commands::extend(owner, ttl, fence);
            sent = Moment::now();
            let until = self.answer_until();
            let extends = shared.servers.send(owner.first_key(), Words::One(&extend), until);
            let extended = Box::pin(extends).await?;
            if answers::number(&extended) != 1 {
                return Ok(None);
            }
        }
        if let Some(wanted) = replicas {
            let until = self.answer_until() + wanted.timeout;
            let confirms = Box::pin(replicas::confirm(&shared.servers, owner, ttl, fence, wanted));
            match in_time(until, confirms).await? {
                Some(confirmed_from) => sent = confirmed_from,
                None => return Ok(None),
            }
        }
        let is_valid = sent.elapsed() < validity(ttl);
        Ok(is_valid.then_some(Granted { fence, sent, in_doubt }))
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        if let Goal::Hold { acquire, .. } = &self.goal
            && self.may_stand
        {
            let gives_up = give_up::give_up(self.shared.clone(), acquire.owner.clone(), acquire.mode);
            self.shared.in_background(&self.runtime, gives_up);
        }
    }
}

fn time_left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Waits, or gives nothing when the locks are closed. Commands are not cut short by that.
async fn unless_closed<T>(shared: &Shared, wait: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        ended = wait => Some(ended),
        () = shared.closing.closed() => None,
    }
}
