//! The life of an acquisition at a server, from its first command to a grant or an error. All its commands have one owner token,
//! so each may be sent again: it is the same hold, or the same request in its place in the queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError};
use tokio::time::{sleep_until, timeout, timeout_at};

use crate::clock::Moment;
use crate::errors::{Error, Result, is_reply, passes};
use crate::listener::Ticket;
use crate::node::{Node, counted, more_telling};
use crate::options::{AFTER_ERRORS, POLLING, shortened};
use crate::protocol::{self, SERVER_WAIT, Wanted};

/// How long a request waits for its message before it is sent again. So a lost message costs no more.
const SEND_AGAIN: Duration = Duration::from_secs(5);
/// How long after the end of a wait a reply is still waited for.
const LATE_REPLY: Duration = Duration::from_millis(500);
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
enum Next {
    Done(Result<Option<Grant>>),
    /// The request has to be sent again at once.
    Again,
    /// The lock was refused, and the request cannot wait by a message.
    Poll,
    /// After this error the request may succeed.
    Passed(RedisError),
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
    /// Pauses, one after the other.
    pauses: u32,
    /// Others had the lock, so the request waits by a message from now on.
    waits: bool,
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
    pub(crate) async fn run(&mut self) -> Result<Option<Grant>> {
        loop {
            let (now, progress) = (Instant::now(), &self.progress);
            let is_over = self.deadline.is_some_and(|deadline| now >= deadline);
            if is_over || progress.last.is_some() && now >= self.limit() {
                return Err(self
                    .failed(is_over && progress.last.is_none() && progress.contact.is_some())
                    .await);
            }
            let pauses = match self.send().await {
                Next::Done(result) => {
                    self.ends &= !matches!(result, Ok(Some(_)));
                    return result;
                }
                Next::Again => continue,
                Next::Poll => POLLING,
                Next::Passed(error) => {
                    self.progress.last = Some(more_telling(self.progress.last.take(), error));
                    AFTER_ERRORS
                }
            };
            let next = Instant::now() + pauses.pause(self.progress.pauses).unwrap_or_default();
            self.progress.pauses += 1;
            let next = self.deadline.map_or(next, |deadline| next.min(deadline)).min(self.limit());
            sleep_until(next.into()).await;
        }
    }

    /// Until when the server has to reply.
    fn limit(&self) -> Instant {
        match self.progress.contact {
            Some(contact) if !self.is_once() => contact + self.node.shared.settings.retry_wait_for,
            _ => self.began + self.node.shared.settings.retry_for,
        }
    }

    /// The error of a call that is over: because others have the lock, or without a reply.
    async fn failed(&self, is_timed_out: bool) -> Error {
        let (keys, waited) = (self.wanted.keys.clone(), self.began.elapsed());
        if !is_timed_out {
            return Error::NoAnswer { keys, within: waited, last: self.progress.last.clone() };
        }
        let holders = self.node.holders(&self.wanted.full, HOLDERS_REPLY).await;
        Error::TimedOut { keys, waited, holders, nodes: Vec::new() }
    }

    fn after(&self, error: Error) -> Next {
        match error {
            Error::Redis(error) if passes(&error) => Next::Passed(error),
            error => Next::Done(Err(error.explained(&self.wanted.keys))),
        }
    }

    /// Sends the request once, and waits for what comes of it.
    async fn send(&mut self) -> Next {
        let (wanted, listener) = (self.wanted, &self.node.listener);
        // A request that has not been refused waits only if there is a channel already.
        let mut ticket = listener.ticket(wanted.key(), self.progress.waits).filter(|_| !self.is_once());
        if let Some(ticket) = ticket.as_mut().filter(|ticket| ticket.is_channel_new) {
            let _ = timeout(SUBSCRIBING, ticket.missed.changed()).await;
        }
        let mut wait = SERVER_WAIT;
        let mut until = self.limit().min(Instant::now() + self.node.shared.settings.retry_for);
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            (wait, until) = (wait.min(left.max(Duration::from_millis(1))), until.min(deadline + LATE_REPLY));
        }
        let waiting = ticket
            .as_ref()
            .map(|ticket| protocol::waiting(&self.command, wait, &ticket.channel, &ticket.tag));
        let command = waiting.as_ref().unwrap_or(&self.command);
        let was_loose = std::mem::replace(&mut self.progress.is_loose, true); // also if this future is dropped
        let answer = self.node.number(wanted.call(command, until)).await;
        let is_answered = answer.as_ref().err().is_none_or(is_reply);
        // The end of a token of the program's might end another hold of it, so there only copies count that are known.
        let is_alone = wanted.is_given() || answer.as_ref().is_ok_and(|answer| answer.is_alone);
        self.progress.is_loose = was_loose || !is_answered || !is_alone;
        if is_answered {
            self.progress.contact = Some(Instant::now());
        }
        let answer = match answer {
            Ok(answer) if answer.number > 0 => return self.confirm(answer.number, answer.sent, false).await,
            Ok(answer) => Some(answer),
            Err(error) if ticket.is_some() && listener.refused(wanted.key(), &error) => None,
            Err(error) => return self.after(error.into()),
        };
        self.progress.last = None;
        match (ticket, answer) {
            (Some(ticket), Some(answer)) => {
                (self.progress.is_queued, self.progress.waits, self.progress.pauses) = (true, true, 0);
                self.wait(ticket, answer.sent, wait).await
            }
            _ if self.is_try => Next::Done(Ok(None)),
            _ if self.is_once() => Next::Done(Err(self.failed(true).await)),
            // If it has waited already, it wants a channel and may not have one.
            _ if std::mem::replace(&mut self.progress.waits, true) => Next::Poll,
            _ => Next::Again,
        }
    }

    /// Waits for the message of a request that is in the queue, where the server lets it wait for a time.
    async fn wait(&mut self, mut ticket: Ticket, sent: Moment, queued_for: Duration) -> Next {
        let again = Instant::now() + shortened(SEND_AGAIN).min(self.node.shared.settings.retry_wait_for / 4);
        let until = self.deadline.map_or(again, |deadline| again.min(deadline + LATE_MESSAGE));
        let message = async {
            tokio::select! {
                message = &mut ticket.message => message.ok(),
                _ = ticket.missed.changed() => None,
            }
        };
        match timeout_at(until.into(), message).await.ok().flatten() {
            Some(Ok(0)) => {
                // The wait has run out on the server, which may be because no copy arrived in time. Before that, an operator
                // has withdrawn the request.
                self.progress.is_queued = false;
                match Moment::now().since(sent) < queued_for {
                    true => Next::Done(Err(self.failed(true).await)),
                    false => Next::Again,
                }
            }
            Some(Ok(fence)) => self.confirm(fence, sent, true).await,
            Some(Err(error)) => self.after(error.into()),
            None => Next::Again,
        }
    }

    /// Makes sure of how long the hold is valid, and that enough replicas have it. The ttl began at a grant that may be long
    /// ago, if a message told of it, and at a server that may not be the primary any more.
    async fn confirm(&mut self, fence: i64, from: Moment, is_message: bool) -> Next {
        self.progress.is_queued = true;
        let (ttl, since) = (self.wanted.options.ttl, Moment::now().since(from));
        let is_sure = !is_message || since <= ttl / 3 && !self.node.topology().is_failover;
        if self.wanted.options.min_replicas == 0 && is_sure && since < counted(ttl) {
            return Next::Done(Ok(Some(Grant { fence, from })));
        }
        let (until, from) = (Instant::now() + self.node.shared.settings.retry_for, Moment::now());
        match self.node.extend(until, self.wanted, ttl, Some(fence)).await {
            Ok(true) => Next::Done(Ok(Some(Grant { fence, from }))),
            Ok(false) => Next::Again, // it is over by now
            Err(error) => self.after(error),
        }
    }
}
