//! The life of an acquisition at a server, from its first command to a grant or an error. All its commands have one owner token,
//! so each may be sent again: it is the same hold, or the same request in its place in the queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError};
use tokio::time::{sleep_until, timeout, timeout_at};

use crate::clock::Moment;
use crate::errors::{Error, is_reply, passes};
use crate::listener::{Message, Ticket};
use crate::node::{Node, counted, more_telling};
use crate::options::{AFTER_ERRORS, POLLING, shortened};
use crate::protocol::{self, SERVER_WAIT, Wanted};
use crate::transport::Call;

/// How long a request waits for its message before it is sent again. So a lost message costs no more.
const SEND_AGAIN: Duration = Duration::from_secs(5);
/// How long after the end of a wait a reply is still waited for.
const LATE_REPLY: Duration = Duration::from_millis(500);
/// How long after the end of a wait the message that says so is still waited for.
const LATE_MESSAGE: Duration = Duration::from_millis(50);
/// How long the confirmation of a new channel is waited for before the request is sent.
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

/// What a command of an acquisition gives if it is no grant.
enum Stop {
    /// The request has to be sent again at once.
    Again,
    /// The lock was refused, and the request cannot wait by a message.
    Poll,
    /// The lock was refused, and the caller wanted to know just that.
    Refused,
    /// After this error the request may succeed.
    Passing(RedisError),
    Final(Error),
}

/// One use of a request at a server, or a change of mode that may have to wait.
pub(crate) struct Acquisition<'a> {
    node: &'a Arc<Node>,
    wanted: &'a Wanted,
    /// The command without a wait.
    command: Cmd,
    /// A refusal gives nothing, and is no error.
    is_try: bool,
    /// If it is dropped without a grant, what may be left of it on the server is ended in the background.
    pub(crate) ends: bool,
    began: Instant,
    deadline: Option<Instant>,
    progress: Progress,
}

/// How far an acquisition is.
#[derive(Default)]
struct Progress {
    /// When the server last replied.
    contact: Option<Instant>,
    /// The last error that passes; nothing after a reply without one.
    last: Option<RedisError>,
    /// Such errors, one after the other.
    failures: u32,
    polls: u32,
    /// Others had the lock, so the request waits by a message from now on.
    waits: bool,
    /// By which its last copy waits; nothing if it has not waited.
    ticket: Option<Ticket>,
    /// Before the last copy was sent that was answered null.
    sent: Moment,
    /// How long the server lets that copy wait.
    queued_for: Duration,
    /// A copy may be on its way to the server.
    is_loose: bool,
    /// The request waits on the server, or is held.
    is_queued: bool,
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        if self.ends && self.is_open() {
            self.node.leave(self.wanted, None, Duration::ZERO);
        }
    }
}

impl<'a> Acquisition<'a> {
    pub(crate) fn new(node: &'a Arc<Node>, wanted: &'a Wanted, command: Cmd, is_try: bool) -> Self {
        let began = Instant::now();
        let (deadline, progress) = (wanted.deadline(began, is_try), Progress::default());
        Self { node, wanted, command, is_try, ends: false, began, deadline, progress }
    }

    /// Something of the request may be left on the server, or may be on its way there.
    pub(crate) fn is_open(&self) -> bool {
        self.progress.is_loose || self.progress.is_queued
    }

    fn is_once(&self) -> bool {
        self.wanted.is_once(self.is_try)
    }

    /// Sends the request until it is granted or over. A refusal gives nothing if the caller wanted to know just that.
    pub(crate) async fn run(&mut self) -> Result<Option<Grant>, Error> {
        loop {
            let now = Instant::now();
            let is_over = self.deadline.is_some_and(|deadline| now >= deadline);
            if is_over || self.progress.last.is_some() && now >= self.limit() {
                return Err(self
                    .failed(is_over && self.progress.last.is_none() && self.progress.contact.is_some())
                    .await);
            }
            let pause = match self.send().await {
                Ok(grant) => {
                    self.ends = false;
                    return Ok(Some(grant));
                }
                Err(Stop::Refused) => return Ok(None),
                Err(Stop::Final(error)) => return Err(error),
                Err(Stop::Again) => continue,
                Err(Stop::Poll) => {
                    self.progress.polls += 1;
                    POLLING.pause(self.progress.polls - 1)
                }
                Err(Stop::Passing(error)) => {
                    self.progress.last = Some(more_telling(self.progress.last.take(), error));
                    self.progress.failures += 1;
                    AFTER_ERRORS.pause(self.progress.failures - 1)
                }
            };
            let next = (Instant::now() + pause.unwrap_or_default()).min(self.limit());
            sleep_until(self.deadline.map_or(next, |deadline| next.min(deadline)).into()).await;
        }
    }

    /// Until when the server has to reply.
    fn limit(&self) -> Instant {
        match self.progress.contact {
            Some(contact) if !self.is_once() => contact + self.node.settings.retry_wait_for,
            _ => self.began + self.node.settings.retry_for,
        }
    }

    /// The error of a call that is over: because others have the lock, or without a reply.
    async fn failed(&self, is_timed_out: bool) -> Error {
        let (keys, waited) = (self.wanted.owner.keys.clone(), self.began.elapsed());
        if !is_timed_out {
            return Error::NoAnswer { keys, within: waited, last: self.progress.last.clone() };
        }
        let holders = self.node.holders(&self.wanted.owner.full, HOLDERS_REPLY).await;
        Error::TimedOut { keys, waited, holders, nodes: Vec::new() }
    }

    fn stop(&self, error: Error) -> Stop {
        match error {
            Error::Redis(error) if passes(&error) => Stop::Passing(error),
            error => Stop::Final(error.explained(&self.wanted.owner.keys)),
        }
    }

    /// Sends the request once, and waits for what comes of it.
    async fn send(&mut self) -> Result<Grant, Stop> {
        let channel = if self.is_once() { None } else { self.channel().await };
        let mut wait = SERVER_WAIT;
        let mut until = self.limit().min(Instant::now() + self.node.settings.retry_for);
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            (wait, until) = (wait.min(left.max(Duration::from_millis(1))), until.min(deadline + LATE_REPLY));
        }
        let waiting = self.progress.ticket.as_ref().zip(channel.as_ref());
        let waiting = waiting.map(|(ticket, name)| protocol::waiting(&self.command, wait, name, &ticket.tag));
        let command = waiting.as_ref().unwrap_or(&self.command);
        let (was_loose, owner) = (self.progress.is_loose, &self.wanted.owner);
        self.progress.is_loose = true; // also if this future is dropped
        let answer = self.node.number(Call::new(owner.key(), command, until)).await;
        let is_answered = answer.as_ref().err().is_none_or(is_reply);
        // The end of a token of the program's might end another hold of it, so there only copies count that are known.
        let is_alone = owner.is_given || answer.as_ref().is_ok_and(|answer| answer.is_alone);
        self.progress.is_loose = was_loose || !is_answered || !is_alone;
        if is_answered {
            self.progress.contact = Some(Instant::now());
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) if waiting.is_some() && self.node.listener.failed(owner.key(), &error) => {
                return Err(Stop::Again);
            }
            Err(error) => return Err(self.stop(error.into())),
        };
        if answer.number > 0 {
            return self.confirm(answer.number, answer.sent, false).await;
        }
        (self.progress.last, self.progress.failures) = (None, 0);
        if waiting.is_some() {
            let progress = &mut self.progress;
            (progress.is_queued, progress.waits) = (true, true);
            (progress.sent, progress.queued_for) = (answer.sent, wait);
            return self.wait().await;
        }
        if self.is_try {
            return Err(Stop::Refused);
        }
        if self.is_once() {
            return Err(Stop::Final(self.failed(true).await));
        }
        // If it has waited already, it wants a channel and may not have one.
        Err(if std::mem::replace(&mut self.progress.waits, true) { Stop::Poll } else { Stop::Again })
    }

    /// The channel to wait by. A request that has not been refused waits only if there is one already. If it is new, the
    /// confirmation of the server is waited for, but not for long.
    async fn channel(&mut self) -> Option<Arc<str>> {
        let listener = &self.node.listener;
        let (name, is_new) = listener.channel(self.wanted.owner.key(), self.progress.waits)?;
        // A message that is late may tell of a hold that ended before this copy is sent.
        let ticket = self.progress.ticket.insert(listener.ticket(self.wanted.owner.key()));
        if is_new {
            let _ = timeout(SUBSCRIBING, ticket.messages.recv()).await;
        }
        Some(name)
    }

    /// Waits for the message of a request that is in the queue.
    async fn wait(&mut self) -> Result<Grant, Stop> {
        let again = Instant::now() + shortened(SEND_AGAIN).min(self.node.settings.retry_wait_for / 4);
        let until = self.deadline.map_or(again, |deadline| again.min(deadline + LATE_MESSAGE));
        let Some(ticket) = &mut self.progress.ticket else { return Err(Stop::Again) };
        match timeout_at(until.into(), ticket.messages.recv()).await {
            Ok(Some(Message::Number(0))) => {
                // The wait has run out on the server, which may be because no copy arrived in time. Before that, an operator
                // has withdrawn the request.
                self.progress.is_queued = false;
                if Moment::now().since(self.progress.sent) < self.progress.queued_for {
                    return Err(Stop::Final(self.failed(true).await));
                }
                Err(Stop::Again)
            }
            Ok(Some(Message::Number(fence))) => self.confirm(fence, self.progress.sent, true).await,
            Ok(Some(Message::Failed(error))) => Err(self.stop(error.into())),
            Ok(Some(Message::Missed) | None) | Err(_) => Err(Stop::Again),
        }
    }

    /// Makes sure of how long the hold is valid, and that enough replicas have it. The ttl began at a grant that may be long
    /// ago, if a message told of it, and at a server that may not be the primary any more.
    async fn confirm(&mut self, fence: i64, from: Moment, is_message: bool) -> Result<Grant, Stop> {
        self.progress.is_queued = true;
        let (ttl, since) = (self.wanted.options.ttl, Moment::now().since(from));
        let is_sure = !is_message || since <= ttl / 3 && !self.node.topology().is_failover;
        if self.wanted.options.min_replicas == 0 && is_sure && since < counted(ttl) {
            return Ok(Grant { fence, from });
        }
        let (until, from) = (Instant::now() + self.node.settings.retry_for, Moment::now());
        match self.node.extend(until, self.wanted, ttl, Some(fence)).await {
            Ok(true) => Ok(Grant { fence, from }),
            Ok(false) => Err(Stop::Again), // it is over by now
            Err(error) => Err(self.stop(error)),
        }
    }
}
