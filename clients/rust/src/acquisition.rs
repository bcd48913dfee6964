// SPDX-License-Identifier: MIT OR Apache-2.0

//! The life of an acquisition at a server, from its first command to a grant or an error. All its commands have one owner token,
//! so each may be sent again: it is the same hold, or the same request in its place in the queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError};
use tokio::time::{sleep_until, timeout_at};

use crate::clock::Moment;
use crate::errors::{Details, Error, Result, is_reply, passes, rounded};
use crate::listener::Ticket;
use crate::node::{LATE_REPLY, Node, counted, extended, more_telling};
use crate::options::{AFTER_ERRORS, POLLING, Poll, shortened};
use crate::protocol::{self, SERVER_WAIT, Wanted};
use crate::shared::Shared;

/// How long a request waits for its message before it is sent again. So a lost message costs no more.
const SEND_AGAIN: Duration = Duration::from_secs(5);
/// In less time no reply comes, so a shorter wait is none.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
/// How long after the end of a wait the message that says so is still waited for.
const LATE_MESSAGE: Duration = Duration::from_millis(50);
/// How long the confirmation of a new channel is waited for before a request is sent.
const SUBSCRIBING: Duration = Duration::from_millis(100);
/// How long a call that has timed out waits to learn who has the lock.
const HOLDERS_REPLY: Duration = Duration::from_millis(250);

/// What an acquisition gives.
#[derive(Clone, Copy)]
pub(crate) struct Grant {
    /// 0 for a quorum.
    pub(crate) fence: i64,
    /// The validity counts from then.
    pub(crate) from: Moment,
}

/// What follows from one copy of a request.
enum Step {
    Granted(Grant),
    /// The request has to be sent again at once.
    Again,
    /// The lock was refused, and the request cannot wait by a message.
    Poll,
}

/// How long a call that asks for a lock goes on.
pub(crate) struct Pace<'a> {
    shared: &'a Shared,
    /// A refusal ends the call.
    pub(crate) is_once: bool,
    pub(crate) began: Instant,
    pub(crate) deadline: Option<Instant>,
    /// When a server last replied.
    pub(crate) contact: Option<Instant>,
    /// Pauses, one after the other.
    pub(crate) pauses: u32,
    /// Until when it goes on at least, because this process stood still.
    least: Option<Instant>,
}

impl<'a> Pace<'a> {
    pub(crate) fn new(wanted: &Wanted, shared: &'a Shared, is_try: bool) -> Self {
        let (began, wait) = (Instant::now(), wanted.options.wait);
        let is_once = is_try || wait.is_some_and(|wait| wait < SHORTEST_WAIT);
        let deadline = wait.filter(|_| !is_once).map(|wait| began + wait);
        Self { shared, is_once, began, deadline, contact: None, pauses: 0, least: None }
    }

    /// Until when a server has to reply.
    fn limit(&self) -> Instant {
        let limit = match self.contact {
            Some(contact) if !self.is_once => contact + self.shared.retry_wait_for,
            _ => self.began + self.shared.retry_for,
        };
        self.least.map_or(limit, |least| limit.max(least))
    }

    /// Until when a reply is waited for.
    fn end(&self) -> Instant {
        self.deadline.map_or(self.limit(), |deadline| self.limit().min(deadline + LATE_REPLY))
    }

    /// An attempt had no reply.
    fn excuse(&mut self) {
        let (end, more) = (self.end(), extended(self.end()));
        if self.least.is_none() && more != end {
            self.least = Some(more);
            self.deadline = self.deadline.map(|deadline| deadline.max(more));
        }
    }

    /// So long from now, but not after the deadline.
    fn within(&self, duration: Duration) -> Instant {
        let at = Instant::now() + duration;
        self.deadline.map_or(at, |deadline| at.min(deadline))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Waits before a further attempt. Gives whether there may be one.
    pub(crate) async fn pause(&mut self, pauses: &Poll) -> bool {
        let Some(pause) = pauses.pause(self.pauses) else { return false };
        self.pauses += 1;
        sleep_until(self.within(pause).min(self.limit()).into()).await;
        !self.is_over() && Instant::now() < self.limit()
    }
}

/// One use of a request at a server, or a change of mode that may have to wait.
pub(crate) struct Acquisition<'a> {
    node: &'a Arc<Node>,
    wanted: &'a Wanted,
    /// What the server has to take before the lock is asked for; nothing from then on.
    pub(crate) question: Option<Cmd>,
    /// The command without a wait.
    command: Cmd,
    /// Nobody reads who has the lock.
    is_try: bool,
    /// If it is dropped without a grant, what may be left of it on the server is ended in the background.
    pub(crate) ends: bool,
    pace: Pace<'a>,
    /// The last error that passes; nothing after a reply without one.
    last: Option<RedisError>,
    /// Others had the lock, so the request waits by a message from now on.
    waits: bool,
    /// The last copy was refused because of its channel, so the next one names none.
    is_deaf: bool,
    /// A copy may be on its way to the server.
    is_loose: bool,
    /// The request waits on the server, or is held.
    is_queued: bool,
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        if self.ends && self.is_open() {
            // Without REFUSE, MUNLOCK withdraws no request.
            let withdrawal = self.wanted.is_given().then(|| self.wanted.withdraw());
            self.node.leave(self.wanted, None, Duration::ZERO, withdrawal);
        }
    }
}

impl<'a> Acquisition<'a> {
    pub(crate) fn new(node: &'a Arc<Node>, wanted: &'a Wanted, command: Cmd, is_try: bool) -> Self {
        let pace = Pace::new(wanted, &node.shared, is_try);
        let (question, ends, last, waits, is_deaf, is_loose, is_queued) = Default::default();
        Self {
            node,
            wanted,
            question,
            command,
            is_try,
            ends,
            pace,
            last,
            waits,
            is_deaf,
            is_loose,
            is_queued,
        }
    }

    /// Something of the request may be left on the server, or may be on its way there.
    pub(crate) fn is_open(&self) -> bool {
        self.is_loose || self.is_queued
    }

    /// Sends the request until it is granted or over.
    pub(crate) async fn run(&mut self) -> Result<Grant> {
        loop {
            let is_over = self.pace.is_over();
            if is_over || self.last.is_some() && Instant::now() >= self.pace.limit() {
                return Err(self.failed(is_over && self.last.is_none() && self.pace.contact.is_some()).await);
            }
            let step = match self.ask().await {
                Ok(()) => self.send().await,
                Err(error) => Err(error),
            };
            let pauses = match step {
                Ok(Step::Granted(grant)) => {
                    self.ends = false;
                    return Ok(grant);
                }
                Ok(Step::Again) => continue,
                Ok(Step::Poll) => &POLLING,
                Err(Error::Redis(error)) if passes(&error) => {
                    if !is_reply(&error) {
                        self.pace.excuse();
                    }
                    self.last = Some(more_telling(self.last.take(), error));
                    &AFTER_ERRORS
                }
                Err(error) => return Err(error.explained(&self.wanted.keys)),
            };
            self.pace.pause(pauses).await;
        }
    }

    /// The error of a call that is over: because others have the lock, or without a reply.
    async fn failed(&self, is_timed_out: bool) -> Error {
        let (keys, waited) = (&self.wanted.keys, self.pace.began.elapsed());
        if !is_timed_out {
            return Error::no_answer(keys, waited, self.last.clone());
        }
        let mut details = Details::new(keys, format!("timed out after {}", rounded(waited)));
        if !self.is_try {
            details.holders = self.node.holders(&self.wanted.full, HOLDERS_REPLY).await;
        }
        Error::TimedOut(details)
    }

    /// Until when a reply to what is sent now is waited for.
    fn until(&self) -> Instant {
        self.pace.end().min(Instant::now() + self.node.shared.retry_for)
    }

    /// Sends the question once, if it has no reply yet.
    async fn ask(&mut self) -> Result<()> {
        let Some(question) = &self.question else { return Ok(()) };
        let reply = self.node.number(self.wanted.call(question, self.until())).await;
        if reply.as_ref().err().is_none_or(is_reply) {
            self.pace.contact = Some(Instant::now());
        }
        reply.map_err(|error| Error::from(error).of_at_least())?;
        (self.question, self.last) = (None, None);
        Ok(())
    }

    /// Sends the request once, and waits for what comes of it.
    async fn send(&mut self) -> Result<Step> {
        let (wanted, listener) = (self.wanted, &self.node.listener);
        // A request that has not been refused waits only if there is a channel already.
        let is_deaf = std::mem::take(&mut self.is_deaf);
        let may_wait = Some(self.waits).filter(|_| !self.pace.is_once && !is_deaf);
        let mut ticket = may_wait.and_then(|opens| listener.ticket(wanted.key(), opens));
        if let Some(ticket) = ticket.as_mut().filter(|ticket| ticket.is_channel_new)
            && timeout_at(self.pace.within(SUBSCRIBING).into(), &mut ticket.message).await.is_ok()
        {
            return Ok(Step::Again);
        }
        let now = Instant::now();
        let wait = self.pace.within(SERVER_WAIT).saturating_duration_since(now).max(Duration::from_millis(1));
        let until = self.until();
        let waiting = |ticket: &Ticket| protocol::waiting(&self.command, wait, &ticket.channel, &ticket.tag);
        let waiting = ticket.as_ref().map(waiting);
        let command = waiting.as_ref().unwrap_or(&self.command);
        let was_loose = std::mem::replace(&mut self.is_loose, true); // also if this future is dropped
        let answer = self.node.number(wanted.call(command, until)).await;
        let is_answered = answer.as_ref().err().is_none_or(is_reply);
        // The end of a token of the program's might end another hold of it, so there only copies count that are known.
        let is_alone = wanted.is_given() || answer.as_ref().is_ok_and(|answer| answer.is_alone);
        self.is_loose = was_loose || !is_answered || !is_alone;
        if is_answered {
            self.pace.contact = Some(Instant::now());
        }
        let answer = match answer {
            Ok(answer) if answer.number > 0 => return self.confirm(answer.number, answer.sent, false).await,
            Ok(answer) => Some(answer),
            Err(error) if ticket.is_some() && listener.refused(wanted.key(), &error) => None,
            Err(error) => return Err(error.into()),
        };
        (self.last, self.is_deaf) = (None, answer.is_none());
        match (ticket, answer) {
            (Some(ticket), Some(answer)) => {
                (self.is_queued, self.waits, self.pace.pauses) = (true, true, 0);
                self.wait(ticket, answer.sent, wait).await
            }
            _ if self.pace.is_once => Err(self.failed(true).await),
            // If it has waited already, it wants a channel and may not have one.
            _ if std::mem::replace(&mut self.waits, true) => Ok(Step::Poll),
            _ => Ok(Step::Again),
        }
    }

    /// Waits for the message of a request that is in the queue, where the server lets it wait for a time.
    async fn wait(&mut self, mut ticket: Ticket, sent: Moment, queued_for: Duration) -> Result<Step> {
        let again = Instant::now() + shortened(SEND_AGAIN).min(self.node.shared.retry_wait_for / 4);
        let until = self.pace.deadline.map_or(again, |deadline| again.min(deadline + LATE_MESSAGE));
        let Ok(Ok(message)) = timeout_at(until.into(), &mut ticket.message).await else {
            return Ok(Step::Again);
        };
        let fence = message?;
        if fence > 0 {
            return self.confirm(fence, sent, true).await;
        }
        // The wait has run out on the server, which may be because no copy arrived in time. Before that, an operator has
        // withdrawn the request.
        self.is_queued = false;
        if Moment::now().since(sent) < queued_for { Err(self.failed(true).await) } else { Ok(Step::Again) }
    }

    /// Makes sure of how long the hold is valid, and that enough replicas have it. The ttl began at a grant that may be long
    /// ago, if a message told of it, and at a server that may not be the primary any more.
    async fn confirm(&mut self, fence: i64, from: Moment, is_message: bool) -> Result<Step> {
        self.is_queued = true;
        let (ttl, since) = (self.wanted.options.ttl, Moment::now().since(from));
        let is_sure = !is_message || since <= ttl / 3 && !self.node.topology().is_failover;
        if self.wanted.options.min_replicas == 0 && is_sure && since < counted(ttl) {
            return Ok(Step::Granted(Grant { fence, from }));
        }
        let (until, from) = (Instant::now() + self.node.shared.retry_for, Moment::now());
        let is_held = self.node.extend(until, self.wanted, ttl, Some(fence)).await?;
        // If it is over by now, the lock is asked for again.
        Ok(if is_held { Step::Granted(Grant { fence, from }) } else { Step::Again })
    }
}
