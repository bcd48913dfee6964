//! One use of a request: asks until the lock is granted or its limit has come, and leaves nothing behind when
//! it ends without a hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout, timeout_at};

use crate::answers::{self, Failure, Kind};
use crate::blocking::Own;
use crate::clock::Moment;
use crate::commands::{self, Owner, Wait};
use crate::connection::{Noted, REPLY_TIMEOUT};
use crate::errors::Error;
use crate::give_up;
use crate::lease::{Granted, validity};
use crate::node::Node;
use crate::options::{LONGEST, Waiting};
use crate::polling;
use crate::shared::{GRACE, Shared, Single};

/// How often a request is sent again whose earlier copy may still come and take its place.
const BETWEEN_COPIES: Duration = Duration::from_secs(5);
/// No two acquisitions of this process have the same tag.
static NEXT_TAG: AtomicU64 = AtomicU64::new(1);

/// What is asked for.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    Hold,
    /// Who asks for it also gives it up.
    Upgrade {
        ttl: Duration,
        fence: i64,
    },
}

/// How long to ask.
#[derive(Clone)]
pub(crate) struct Limits {
    /// The first answer counts.
    pub(crate) once: bool,
    /// When the wait is over.
    pub(crate) deadline: Option<Instant>,
    /// How long to go on until the first answer.
    pub(crate) retry_for: Duration,
    /// Of one server of a quorum: set when a copy may still be carried out. The quorum gives it up then.
    pub(crate) doubt: Option<Arc<AtomicBool>>,
}

/// What asking once comes to.
enum Step {
    Granted(Granted),
    /// It was granted, and may be over by now.
    Over,
    Refused,
    TimedOut,
}

pub(crate) struct Acquisition<'a> {
    shared: &'a Arc<Shared<Single>>,
    owner: &'a Owner,
    goal: Goal,
    limits: Limits,
    /// All copies have one tag: a message is for the acquisition, whichever copy it answers.
    tag: u64,
    runtime: Handle,
    /// A refused request has to wait from now on.
    must_wait: bool,
    /// The last copy is on its way, waits on the server, or was granted.
    stands: bool,
    /// A copy had no answer.
    in_doubt: bool,
    /// When to end if nothing is answered until then; nothing while the server answers.
    patience_ends: Option<Instant>,
    /// The error of the last copy; nothing when it was answered.
    last_error: Option<Error>,
}

impl<'a> Acquisition<'a> {
    pub(crate) fn new(shared: &'a Arc<Shared<Single>>, owner: &'a Owner, goal: Goal, limits: Limits) -> Self {
        let patience_ends = Some(Instant::now() + limits.retry_for);
        Self {
            shared,
            owner,
            goal,
            limits,
            tag: NEXT_TAG.fetch_add(1, Ordering::Relaxed),
            runtime: Handle::current(),
            must_wait: false,
            stands: false,
            in_doubt: false,
            patience_ends,
            last_error: None,
        }
    }

    /// Whether something may be on the server, or on its way there, although nothing was granted.
    pub(crate) fn may_stand(&self) -> bool {
        self.stands || self.in_doubt
    }

    /// Gives nothing when the first answer was a refusal and nothing else was asked for.
    pub(crate) async fn run(&mut self) -> Result<Option<Granted>, Error> {
        if !self.shared.site.may_release(self.owner).load(Ordering::Relaxed) {
            let until = self.ends().expect("nothing was answered yet");
            let asks = self.shared.ask_whether_it_can_be_released(self.owner, until);
            Box::pin(asks).await?;
            self.heard();
        }
        let (mut failures, mut polls) = (0, 0);
        loop {
            self.shared.unless_closed()?;
            let pause = match self.ask().await {
                Ok(Step::Granted(granted)) => {
                    // The hold knows of the doubt.
                    (self.stands, self.in_doubt) = (false, false);
                    return Ok(Some(granted));
                }
                Ok(Step::TimedOut) => return Err(self.timed_out()),
                Ok(Step::Refused) if self.limits.once => return Ok(None),
                Ok(Step::Refused) => match &self.shared.site.waiting {
                    Waiting::Poll(poll) => {
                        polls += 1;
                        poll.pause(polls - 1).ok_or_else(|| self.timed_out())?
                    }
                    _ => {
                        self.must_wait = true;
                        failures = 0;
                        Duration::ZERO
                    }
                },
                Ok(Step::Over) => polling::after_error(0),
                Err(failure) => self.pause_after(failure, &mut failures)?,
            };
            let is_over = self.time_left() <= pause;
            if is_over || !pause.is_zero() {
                Box::pin(self.pause(pause, is_over)).await?;
            }
        }
    }

    async fn pause(&self, pause: Duration, is_over: bool) -> Result<(), Error> {
        let pauses = self.shared.closing.run_until_cancelled(sleep(pause.min(self.time_left())));
        pauses.await.ok_or(Error::Closed)?;
        if is_over { Err(self.timed_out()) } else { Ok(()) }
    }

    fn pause_after(&mut self, failure: Failure, failures: &mut u32) -> Result<Duration, Error> {
        if failure.kind == Kind::Final {
            return Err(failure.error);
        }
        self.shared.noticed(&failure);
        if failure.is_answer() {
            self.heard();
        } else {
            self.patience_ends.get_or_insert_with(|| Instant::now() + self.shared.retry_wait_for);
        }
        self.last_error = Some(failure.error);
        // The last copy is sent at the end itself.
        match self.patience_ends.map_or(LONGEST, time_left) {
            Duration::ZERO => Err(self.timed_out()),
            left => {
                *failures += 1;
                Ok(polling::after_error(*failures - 1).min(left))
            }
        }
    }

    fn timed_out(&self) -> Error {
        let source = self.last_error.clone().map(Box::new);
        Error::TimedOut { keys: self.owner.keys().clone(), source }
    }

    /// The server has said something.
    fn heard(&mut self) {
        if !self.limits.once {
            self.patience_ends = None;
        }
        self.shared.reporter.reached();
    }

    /// What is left of the wait.
    fn time_left(&self) -> Duration {
        self.limits.deadline.map_or(LONGEST, time_left)
    }

    /// When to end, as far as that is known.
    fn ends(&self) -> Option<Instant> {
        [self.limits.deadline, self.patience_ends].into_iter().flatten().min()
    }

    /// Until when the next answer has to be there.
    fn answer_until(&self) -> Instant {
        let until = Instant::now() + REPLY_TIMEOUT;
        self.ends().map_or(until, |end| until.min(end + GRACE))
    }

    async fn ask(&mut self) -> Result<Step, Failure> {
        let site = &self.shared.site;
        let at_once =
            self.limits.once || self.time_left().is_zero() || matches!(site.waiting, Waiting::Poll(_));
        let blocks = site.must_block();
        let listens =
            if at_once || blocks { None } else { site.server.note(self.owner.first_key(), self.tag) };
        // Boxed, so that the commonest way is small.
        let answer = if let Some((node, noted)) = listens {
            Box::pin(self.ask_notified(&node, noted)).await?
        } else if at_once || !self.must_wait {
            self.ask_at_once().await?
        } else if blocks {
            Box::pin(self.ask_blocked()).await?
        } else {
            Box::pin(self.listen_and_ask()).await?
        };
        self.heard();
        self.last_error = None;
        match answer {
            Step::Granted(granted) if self.is_to_be_confirmed(&granted) => {
                Box::pin(self.confirm(granted)).await
            }
            answer => Ok(answer),
        }
    }

    fn command(&self, wait: &Wait<'_>) -> Cmd {
        match self.goal {
            Goal::Hold => commands::acquire(self.owner, wait),
            Goal::Upgrade { ttl, fence } => commands::upgrade(self.owner, ttl, wait, fence),
        }
    }

    /// A copy is sent from this moment on. What may come of it is noted before the answer is there, since the
    /// future may be dropped.
    fn sends(&mut self) -> Moment {
        self.stands = true;
        Moment::now()
    }

    fn failed(&mut self, failure: Failure) -> Failure {
        self.stands = false;
        self.in_doubt |= failure.kind == Kind::Unanswered;
        failure
    }

    /// The fence of a hold, or 0.
    fn granted(&mut self, fence: i64, sent: Moment, otherwise: Step) -> Step {
        if fence == 0 {
            self.stands = false;
            return otherwise;
        }
        Step::Granted(Granted { fence, sent, in_doubt: self.in_doubt })
    }

    async fn ask_at_once(&mut self) -> Result<Step, Failure> {
        let (site, key) = (&self.shared.site, self.owner.first_key());
        let command = [self.command(&Wait::No)];
        let (until, sent) = (self.answer_until(), self.sends());
        let answer = site.server.send(key, &command, until).await.map_err(|failure| self.failed(failure))?;
        Ok(self.granted(answers::number(&answer), sent, Step::Refused))
    }

    async fn listen_and_ask(&mut self) -> Result<Step, Failure> {
        let (server, key) = (&self.shared.site.server, self.owner.first_key());
        if !server.listen(key, self.answer_until()).await? {
            return self.block_from_now_on().await;
        }
        self.heard();
        let (node, noted) = server.note(key, self.tag).ok_or_else(Failure::connection_lost)?;
        self.ask_notified(&node, noted).await
    }

    async fn ask_notified(&mut self, node: &Node, noted: Noted) -> Result<Step, Failure> {
        let most = self.limits.deadline.map(time_left);
        let command = [self.command(&Wait::Notified { most, channel: &noted.channel, tag: noted.tag })];
        let (until, sent) = (self.answer_until(), self.sends());
        match node.send(&command, until).await.map_err(|failure| self.failed(failure)) {
            Ok(Value::Nil) => self.until_told(noted, sent).await,
            Ok(value) => Ok(self.granted(answers::number(&value), sent, Step::TimedOut)),
            Err(failure) if failure.denies_the_channel() => Box::pin(self.block_from_now_on()).await,
            Err(failure) => {
                if failure.kind == Kind::NoSubscriber {
                    noted.end_all();
                }
                Err(self.shared.site.server.redirected(self.owner.first_key(), node, failure))
            }
        }
    }

    /// It waits on the server: until the message comes, or should long have come, or an earlier copy may have
    /// come and taken its place.
    async fn until_told(&mut self, mut noted: Noted, sent: Moment) -> Result<Step, Failure> {
        self.heard();
        let over = self.limits.deadline.map(|deadline| deadline + GRACE);
        let again = self.in_doubt.then(|| Instant::now() + BETWEEN_COPIES);
        let told = async {
            match [over, again].into_iter().flatten().min() {
                Some(until) => timeout_at(until.into(), noted.end()).await,
                None => Ok(noted.end().await),
            }
        };
        match self.shared.closing.run_until_cancelled(told).await {
            Some(Ok(Ok(fence))) => Ok(self.granted(fence, sent, Step::TimedOut)),
            Some(Ok(Err(failure))) => Err(self.failed(failure)),
            // What was asked stands.
            Some(Err(_)) if !self.time_left().is_zero() => Ok(Step::Refused),
            Some(Err(_)) => Err(Failure::no_answer("the server")),
            None => Err(Failure::last(Error::Closed)),
        }
    }

    /// The user may not use channels.
    async fn block_from_now_on(&mut self) -> Result<Step, Failure> {
        self.shared.block_from_now_on();
        self.ask_blocked().await
    }

    async fn ask_blocked(&mut self) -> Result<Step, Failure> {
        let shared = self.shared;
        let over = self.limits.deadline.map_or(LONGEST, |deadline| time_left(deadline + GRACE));
        let waits = timeout(over, Box::pin(self.ask_on_own()));
        let step = shared.closing.run_until_cancelled(waits).await;
        step.and_then(Result::ok).unwrap_or_else(|| {
            self.in_doubt |= self.stands;
            Err(Failure::no_answer("the server"))
        })
    }

    /// On a connection of its own.
    async fn ask_on_own(&mut self) -> Result<Step, Failure> {
        let (server, key) = (&self.shared.site.server, self.owner.first_key());
        let own = Own::open(server, key, self.answer_until()).await?;
        self.heard();
        let command = [self.command(&Wait::Blocked { most: self.limits.deadline.map(time_left) })];
        let sent = self.sends();
        let answer = own.ask(server, key, &command).await.map_err(|failure| self.failed(failure))?;
        Ok(self.granted(answers::number(&answer), sent, Step::TimedOut))
    }

    /// What is granted to an earlier copy, or long after the request, has less validity.
    fn is_to_be_confirmed(&self, granted: &Granted) -> bool {
        let options = &self.owner.wanted.options;
        let is_late = granted.in_doubt || granted.sent.elapsed() > options.ttl / 3;
        self.goal == Goal::Hold && (options.min_replicas > 0 || is_late)
    }

    /// Makes sure of the validity, and of the replicas. The server's `WAIT` blocks the connection and asks for
    /// what this connection wrote, so both go over one that nobody else uses.
    async fn confirm(&mut self, mut granted: Granted) -> Result<Step, Failure> {
        let (server, options) = (&self.shared.site.server, &self.owner.wanted.options);
        let (key, until, wanted) = (self.owner.first_key(), self.answer_until(), options.min_replicas);
        // To the same millisecond it would write nothing, and any replica would do.
        let longer = if wanted > 0 { Duration::from_millis(1) } else { Duration::ZERO };
        let extend = commands::extend(self.owner, options.ttl + longer, granted.fence);
        granted.sent = Moment::now();
        let confirmed = if wanted == 0 {
            server.send(key, &[extend], until).await?
        } else {
            let both = [extend, commands::wait_for_replicas(wanted, options.replica_timeout)];
            let own = Own::open(server, key, until).await?;
            let answer = timeout_at((until + options.replica_timeout).into(), own.ask(server, key, &both));
            answer.await.unwrap_or_else(|_| Err(Failure::no_answer("the server")))?
        };
        match answers::numbers(&confirmed).collect::<Vec<_>>()[..] {
            [1, reached] if reached < i64::from(wanted) => {
                let reached = u32::try_from(reached).unwrap_or(0);
                Err(Failure::last(Error::TooFewReplicas { wanted, reached }))
            }
            [1, ..] if granted.sent.elapsed() < validity(options.ttl) => Ok(Step::Granted(granted)),
            _ => Ok(Step::Over),
        }
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        if self.goal != Goal::Hold || !self.may_stand() {
            return;
        }
        if let Some(doubt) = &self.limits.doubt {
            doubt.store(true, Ordering::Relaxed);
        } else {
            let gives_up = give_up::give_up(self.shared.clone(), self.owner.clone());
            self.shared.spawn(&self.runtime, gives_up);
        }
    }
}

fn time_left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}
