//! One use of a request: asks until the lock is granted or its limit has come, and leaves nothing behind when
//! it ends without a hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout_at};

use crate::answers::{self, Failure, Kind};
use crate::blocking::Own;
use crate::clock::Moment;
use crate::commands::{self, Owner};
use crate::connection::{Noted, REPLY_TIMEOUT};
use crate::errors::Error;
use crate::lease::{Granted, validity};
use crate::node::Node;
use crate::options::LONGEST;
use crate::polling;
use crate::shared::{GRACE, Shared, Single};

/// How often a request is sent again whose earlier copy may still come and take its place.
const BETWEEN_COPIES: Duration = Duration::from_secs(5);
/// No two acquisitions of this process have the same tag.
static NEXT_TAG: AtomicU64 = AtomicU64::new(1);

/// What is asked for.
#[derive(PartialEq)]
pub(crate) enum Goal {
    Hold,
    /// Who asks for it also gives it up.
    Upgrade,
}

/// How long to ask.
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

pub(crate) struct Acquisition<'a> {
    shared: &'a Arc<Shared<Single>>,
    owner: &'a Owner,
    goal: Goal,
    /// Without a wait.
    command: Cmd,
    limits: Limits,
    /// All copies have one tag: a message is for the acquisition, whichever copy it answers.
    tag: u64,
    runtime: Handle,
    /// It was refused, and waits from now on.
    must_wait: bool,
    /// The last copy is on its way, waits on the server, or was granted.
    stands: bool,
    /// A copy had no answer.
    in_doubt: bool,
    /// When to end if nothing is answered until then; nothing while the server answers.
    patience_ends: Option<Instant>,
    /// The error of the last copy; nothing when it was answered.
    last_error: Option<Error>,
    /// How many errors there were since it last waited on the server.
    failures: u32,
}

impl<'a> Acquisition<'a> {
    pub(crate) fn new(
        shared: &'a Arc<Shared<Single>>,
        owner: &'a Owner,
        goal: Goal,
        command: Cmd,
        limits: Limits,
    ) -> Self {
        Self {
            shared,
            owner,
            goal,
            command,
            patience_ends: Some(Instant::now() + limits.retry_for),
            limits,
            tag: NEXT_TAG.fetch_add(1, Ordering::Relaxed),
            runtime: Handle::current(),
            must_wait: false,
            stands: false,
            in_doubt: false,
            last_error: None,
            failures: 0,
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
            Box::pin(self.shared.check_permission(self.owner, until)).await?;
            self.heard();
        }
        let mut polls = 0;
        loop {
            let pause = match self.ask().await {
                Ok(Some(granted)) => {
                    // The hold knows of the doubt.
                    (self.stands, self.in_doubt) = (false, false);
                    return Ok(Some(granted));
                }
                Ok(None) if self.limits.once => return Ok(None),
                Ok(None) => match &self.shared.poll {
                    Some(poll) => {
                        polls += 1;
                        poll.pause(polls - 1).ok_or_else(|| self.timed_out())?
                    }
                    None => Duration::ZERO,
                },
                Err(failure) => self.pause_after(failure)?,
            };
            let left = self.time_left();
            if !pause.min(left).is_zero() {
                Box::pin(sleep(pause.min(left))).await;
            }
            if left <= pause {
                return Err(self.timed_out());
            }
        }
    }

    fn pause_after(&mut self, failure: Failure) -> Result<Duration, Error> {
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
        self.failures += 1;
        // The last copy is sent at the end itself.
        match self.patience_ends.map_or(LONGEST, time_left) {
            Duration::ZERO => Err(self.timed_out()),
            left => Ok(polling::after_error(self.failures - 1).min(left)),
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

    /// Asks once, and gives nothing when it is to ask again. Most locks are free: only what has to wait needs a
    /// subscription or a connection of its own.
    async fn ask(&mut self) -> Result<Option<Granted>, Failure> {
        let site = &self.shared.site;
        let only_asks = self.limits.once || self.time_left().is_zero() || self.shared.poll.is_some();
        let may_listen = !only_asks && !site.must_block.load(Ordering::Relaxed);
        let listens = if may_listen { site.server.note(self.owner.first_key(), self.tag) } else { None };
        // Boxed, so that the commonest way is small.
        let answer = match listens {
            Some((node, noted)) => Box::pin(self.ask_notified(&node, noted)).await?,
            None if self.must_wait && !only_asks => Box::pin(self.wait()).await?,
            None => match self.ask_at_once().await? {
                None if !only_asks => Box::pin(self.wait()).await?,
                answer => answer,
            },
        };
        match answer {
            Some(granted) if self.is_to_be_confirmed(&granted) => Box::pin(self.confirm(granted)).await,
            answer => Ok(answer),
        }
    }

    /// A copy is sent now. What may come of it is noted before the answer is there, since the future may be dropped.
    /// Gives until when the answer has to be there.
    fn sends(&mut self) -> (Instant, Moment) {
        self.stands = true;
        (self.answer_until(), Moment::now())
    }

    /// The answer to the copy that was sent then: a fence, or 0.
    fn answered(&mut self, sent: Moment, answer: Result<i64, Failure>) -> Result<Option<Granted>, Failure> {
        let fence = answer.inspect_err(|failure| {
            self.stands = false;
            self.in_doubt |= failure.kind == Kind::Unanswered;
        })?;
        self.heard();
        self.last_error = None;
        self.stands = fence != 0;
        Ok(self.stands.then_some(Granted { fence, sent, in_doubt: self.in_doubt }))
    }

    /// The same after a wait, where 0 means that it is over.
    fn told(&mut self, sent: Moment, answer: Result<i64, Failure>) -> Result<Option<Granted>, Failure> {
        let granted = self.answered(sent, answer)?.ok_or_else(|| Failure::last(self.timed_out()));
        granted.map(Some)
    }

    async fn ask_at_once(&mut self) -> Result<Option<Granted>, Failure> {
        let (until, sent) = self.sends();
        let asks = std::slice::from_ref(&self.command);
        let answer = self.shared.site.server.send(self.owner.first_key(), asks, until).await;
        self.answered(sent, answer.map(|value| answers::number(&value)))
    }

    /// It was refused before.
    async fn wait(&mut self) -> Result<Option<Granted>, Failure> {
        self.must_wait = true;
        let (site, key) = (&self.shared.site, self.owner.first_key());
        if !site.must_block.load(Ordering::Relaxed) {
            if site.server.listen(key, self.answer_until()).await? {
                let (node, noted) = site.server.note(key, self.tag).ok_or_else(Failure::connection_lost)?;
                return self.ask_notified(&node, noted).await;
            }
            self.shared.block_from_now_on();
        }
        self.ask_blocked().await
    }

    /// The command with what is left of the wait.
    fn waiting(&self, message: Option<(&str, u64)>) -> [Cmd; 1] {
        [commands::waiting(&self.command, self.limits.deadline.map(time_left), message)]
    }

    async fn ask_notified(&mut self, node: &Node, noted: Noted) -> Result<Option<Granted>, Failure> {
        let command = self.waiting(Some((&noted.channel, self.tag)));
        let (until, sent) = self.sends();
        match node.send(&command, until).await {
            Ok(Value::Nil) => self.until_told(noted, sent).await,
            Err(failure) if failure.denies_the_channel() => {
                self.stands = false;
                self.shared.block_from_now_on();
                Box::pin(self.ask_blocked()).await
            }
            Ok(value) => self.told(sent, Ok(answers::number(&value))),
            Err(failure) => {
                if failure.kind == Kind::NoSubscriber {
                    // The subscription is not what it seemed.
                    noted.connection.end_waits();
                }
                let failure = self.shared.site.server.redirected(self.owner.first_key(), node, failure);
                self.told(sent, Err(failure))
            }
        }
    }

    /// It waits on the server: until the message comes, or should long have come, or an earlier copy may have
    /// come and taken its place.
    async fn until_told(&mut self, mut noted: Noted, sent: Moment) -> Result<Option<Granted>, Failure> {
        self.heard();
        self.failures = 0;
        let over = Instant::now() + self.time_left() + GRACE;
        let until = if self.in_doubt { over.min(Instant::now() + BETWEEN_COPIES) } else { over };
        match timeout_at(until.into(), noted.end()).await {
            Ok(ended) => self.told(sent, ended),
            // What was asked stands.
            Err(_) if !self.time_left().is_zero() => Ok(None),
            Err(_) => Err(Failure::no_answer("the server")),
        }
    }

    /// Waits on a connection of its own.
    async fn ask_blocked(&mut self) -> Result<Option<Granted>, Failure> {
        let (server, key) = (&self.shared.site.server, self.owner.first_key());
        let own = Own::open(server, key, self.answer_until()).await?;
        self.heard();
        let command = self.waiting(None);
        let over = Instant::now() + self.time_left() + GRACE;
        let (_, sent) = self.sends();
        let answer = own.ask(&command, over).await;
        self.told(sent, answer.map(|value| answers::number(&value)))
    }

    /// What is granted to an earlier copy, or long after the request, has less validity.
    fn is_to_be_confirmed(&self, granted: &Granted) -> bool {
        let options = &self.owner.wanted.options;
        let is_late = granted.in_doubt || granted.sent.elapsed() > options.ttl / 3;
        self.goal == Goal::Hold && (options.min_replicas > 0 || is_late)
    }

    /// Makes sure of the validity, and of the replicas. The server's `WAIT` blocks the connection and asks for
    /// what this connection wrote, so both go over one that nobody else uses.
    async fn confirm(&mut self, mut granted: Granted) -> Result<Option<Granted>, Failure> {
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
            own.ask(&both, until + options.replica_timeout).await?
        };
        match answers::numbers(&confirmed).collect::<Vec<_>>()[..] {
            [1, reached] if reached < i64::from(wanted) => {
                let reached = u32::try_from(reached).unwrap_or(0);
                Err(Failure::last(Error::TooFewReplicas { wanted, reached }))
            }
            [1, ..] if granted.sent.elapsed() < validity(options.ttl) => Ok(Some(granted)),
            // It may be over by now.
            _ => Err(Failure { kind: Kind::Passing, error: Error::NotHeld }),
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
            self.shared.spawn(&self.runtime, self.shared.clone().give_up(self.owner.clone()));
        }
    }
}

fn time_left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}
