// SPDX-License-Identifier: MIT OR Apache-2.0

//! The servers of a `Locks`: one, or several independent ones, of which a majority decides. The algorithm of a quorum is that of
//! redsync and of the Redis documentation ("Distributed Locks with Redis").

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::{Cmd, RedisError};
use tokio::sync::mpsc;
use tokio::time::timeout_at;
use tracing::{Instrument, Span};

use crate::acquisition::{Acquisition, Grant, Pace};
use crate::clock::Moment;
use crate::errors::{Details, Error, NodeReply, Result, rounded};
use crate::node::{Answer, Node, OnDrop, counted};
use crate::options::{LONGEST, SHORTEST_TTL};
use crate::protocol::Wanted;
use crate::server::{Quorum, Server};
use crate::shared::Shared;
use crate::transport::{Call, silent};

/// How long after the end of a wait the ends of its last attempt are waited for.
const LATE_END: Duration = Duration::from_millis(500);

/// What keeps a hold, and the grant.
pub(crate) type Kept = (Arc<Votes>, Grant);

/// Asks the server with this index. Gives whether that granted, extended or released.
type Question<'a> = &'a (dyn Fn(Arc<Votes>, usize) -> BoxFuture<'static, Result<bool>> + Sync);

pub(crate) struct Servers {
    pub(crate) shared: Arc<Shared>,
    pub(crate) nodes: Vec<Arc<Node>>,
    quorum: Option<Quorum>,
}

impl Servers {
    pub(crate) fn new(server: Server, shared: Arc<Shared>) -> Self {
        let nodes = server.nodes.into_iter().map(|make| Node::new(make, &shared)).collect();
        Self { shared, nodes, quorum: server.quorum }
    }

    /// What is wrong with a ttl, or with the quorum, if anything.
    pub(crate) fn check(&self, ttl: Duration) -> Result<()> {
        if ttl < SHORTEST_TTL {
            return Err(Error::Invalid(format!("the ttl must be {SHORTEST_TTL:?} or more, not {ttl:?}")));
        }
        let Some(quorum) = &self.quorum else { return Ok(()) };
        let is_drift = (0.0..1.0).contains(&quorum.drift_factor);
        if !self.nodes.is_empty() && is_drift && !self.counted(ttl).is_zero() {
            return Ok(());
        }
        let wrong = "a quorum needs servers that are no quorums, a drift factor of 0 or more and less than 1, and a longer ttl";
        Err(Error::Invalid(wrong.into()))
    }

    /// The part of a ttl that counts for the validity.
    pub(crate) fn counted(&self, ttl: Duration) -> Duration {
        let Some(quorum) = &self.quorum else { return counted(ttl) };
        ttl.saturating_sub(ttl.mul_f64(quorum.drift_factor.clamp(0.0, 1.0)) + Duration::from_millis(2))
    }

    /// The one server.
    pub(crate) fn single(&self) -> Option<&Arc<Node>> {
        self.nodes.first().filter(|_| self.quorum.is_none())
    }

    pub(crate) async fn acquire(self: &Arc<Self>, wanted: &Arc<Wanted>, is_try: bool) -> Result<Kept> {
        let Some(quorum) = &self.quorum else {
            let command = wanted.lock(wanted.options.ttl);
            let mut acquisition = Acquisition::new(&self.nodes[0], wanted, command, is_try);
            (acquisition.question, acquisition.ends) = (wanted.question(), true);
            let grant = acquisition.run().await?;
            return Ok((Votes::new(self, wanted), grant));
        };
        let (mut pace, mut last) = (Pace::new(wanted, &self.shared, is_try), Tally::default());
        while let Some(question) = wanted.question() {
            let ask: Question<'_> = &|votes, at| votes.question(at, question.clone()).boxed();
            last = Votes::new(self, wanted).ask(pace.deadline, Tally::is_granted, ask).await;
            if last.is_granted() {
                pace.pauses = 0;
                break;
            }
            if pace.is_once || last.is_final() || !pace.pause(&quorum.poll).await {
                return Err(last.missed(wanted, pace.began));
            }
        }
        loop {
            // Each attempt has an owner token of its own, unless the program gave one.
            let (votes, sent) = (Votes::new(self, &Arc::new(wanted.again())), Moment::now());
            let abandoned = votes.clone();
            let mut unended = OnDrop(Some(move || abandoned.leave(None, Duration::ZERO)));
            let is_enough = |tally: &Tally| tally.is_granted() || quorum.fail_fast && tally.is_lost();
            let command = votes.wanted.lock(wanted.options.ttl);
            let take: Question<'_> = &|votes, at| votes.take(at, command.clone(), false).boxed();
            let tally = votes.ask(pace.deadline, is_enough, take).await;
            if tally.is_granted() && Moment::now().since(sent) < self.counted(wanted.options.ttl) {
                unended.0 = None; // the other nodes may still grant
                return Ok((votes, Grant { fence: 0, from: sent }));
            }
            // The next attempt would find what this one was given.
            votes.end_all(Instant::now() + LATE_END).await;
            unended.0 = None;
            let is_refused = tally.is_refused();
            if is_refused {
                pace.contact = Some(Instant::now());
            }
            // One that was cut short may tell less than the one before.
            if pace.pauses == 0 || is_refused || !pace.is_over() {
                last = tally;
            }
            if pace.is_once || last.is_final() || !pace.pause(&quorum.poll).await {
                return Err(last.missed(wanted, pace.began));
            }
        }
    }

    /// Never takes a lock.
    pub(crate) async fn adopt(self: &Arc<Self>, wanted: &Arc<Wanted>) -> Result<Kept> {
        let votes = Votes::new(self, wanted);
        if let Some(question) = wanted.question() {
            votes.decide(&|votes, at| votes.question(at, question.clone()).boxed()).await?;
        }
        let from = Moment::now();
        let command = wanted.adopt(wanted.mode, wanted.options.ttl);
        if !votes.decide(&|votes, at| votes.take(at, command.clone(), false).boxed()).await? {
            return Err(wanted.not_held(wanted.mode));
        }
        let fence = votes.fence(0).filter(|_| self.quorum.is_none());
        Ok((votes, Grant { fence: fence.unwrap_or(0), from }))
    }

    /// Gives on how many keys, or on how many nodes, it released what the token holds.
    pub(crate) async fn release(self: &Arc<Self>, wanted: &Arc<Wanted>) -> Result<usize> {
        let Some(node) = self.single() else {
            return Ok(Votes::new(self, wanted).end_all(Instant::now() + LONGEST).await.granted());
        };
        let (end, _) = wanted.ending(None, Duration::ZERO);
        let answer = node.ask(wanted, wanted.call(&end, Instant::now() + self.shared.retry_for)).await?;
        Ok(usize::try_from(answer.number).unwrap_or(0))
    }
}

/// The replies of all nodes. Of a node that has not replied, the error is a timeout.
#[derive(Default)]
struct Tally(Vec<NodeReply>);

impl Tally {
    fn count(&self, is: impl Fn(&NodeReply) -> bool) -> usize {
        self.0.iter().filter(|reply| is(reply)).count()
    }

    fn granted(&self) -> usize {
        self.count(|reply| reply.granted)
    }

    fn is_granted(&self) -> bool {
        self.granted() > self.0.len() / 2
    }

    /// Others have the lock at so many nodes that there can be no majority, whatever the rest says.
    fn is_refused(&self) -> bool {
        self.count(|reply| !reply.granted && reply.error.is_none()) >= self.0.len().div_ceil(2)
    }

    /// A majority is out of reach.
    fn is_lost(&self) -> bool {
        let is_no =
            |reply: &NodeReply| !reply.granted && !reply.error.as_ref().is_some_and(Error::is_silence);
        self.count(is_no) >= self.0.len().div_ceil(2)
    }

    /// A majority gives errors that last.
    fn is_final(&self) -> bool {
        self.count(|reply| reply.error.as_ref().is_some_and(|error| !error.passes())) > self.0.len() / 2
    }

    /// The error of a call that got no majority.
    fn missed(self, wanted: &Wanted, began: Instant) -> Error {
        let kind = if self.is_refused() { Error::TimedOut } else { Error::QuorumMissed };
        let text = format!("no majority of {} nodes after {}", self.0.len(), rounded(began.elapsed()));
        kind(Details { nodes: self.0, ..Details::new(&wanted.keys, text) })
    }
}

/// What the servers gave one owner: it keeps a hold.
pub(crate) struct Votes {
    pub(crate) servers: Arc<Servers>,
    pub(crate) wanted: Arc<Wanted>,
    /// Of each server; 0 if it gave none.
    fences: Vec<AtomicI64>,
    /// Of each server: locked while a command that asks for the lock has no reply. What it gives is known after that only.
    turns: Vec<tokio::sync::Mutex<()>>,
    /// No such command is sent any more: a server that has restarted does not know of the end, and would grant the lock.
    is_ended: AtomicBool,
}

impl Votes {
    fn new(servers: &Arc<Servers>, wanted: &Arc<Wanted>) -> Arc<Self> {
        let fences = servers.nodes.iter().map(|_| AtomicI64::new(0)).collect();
        let turns = servers.nodes.iter().map(|_| tokio::sync::Mutex::default()).collect();
        let is_ended = AtomicBool::new(false);
        Arc::new(Self { servers: servers.clone(), wanted: wanted.clone(), fences, turns, is_ended })
    }

    /// How long each server is waited for.
    fn limit(&self) -> Duration {
        let retry_for = self.servers.shared.retry_for;
        let Some(quorum) = &self.servers.quorum else { return retry_for };
        let ttl = self.wanted.options.ttl;
        let default = (ttl / 20).max(Duration::from_millis(50)).min(retry_for);
        quorum.node_timeout.unwrap_or(default).min(ttl.mul_f64(0.9))
    }

    /// Asks all servers at once. Gives the replies that came until they were enough, or until their time or the deadline was
    /// over. A server that has not replied by then may still do so.
    async fn ask(
        self: &Arc<Self>,
        deadline: Option<Instant>,
        is_enough: impl Fn(&Tally) -> bool,
        question: Question<'_>,
    ) -> Tally {
        let until = Instant::now() + self.limit();
        let until = deadline.map_or(until, |deadline| until.min(deadline));
        let (sender, mut replies) = mpsc::unbounded_channel();
        let ask = |(at, node): (usize, &Arc<Node>)| {
            let (reply, sender) = (question(self.clone(), at), sender.clone());
            let ask = async move { sender.send((at, reply.await)) };
            tokio::spawn(ask.instrument(Span::current()));
            NodeReply { node: node.topology().name.clone(), granted: false, error: Some(silent().into()) }
        };
        let mut tally = Tally(self.servers.nodes.iter().enumerate().map(ask).collect());
        drop(sender);
        let count = async {
            while let Some((at, reply)) = replies.recv().await {
                tally.0[at].granted = matches!(reply, Ok(true));
                tally.0[at].error = reply.err().map(|error| error.explained(&self.wanted.keys));
                if is_enough(&tally) {
                    break;
                }
            }
        };
        let _ = timeout_at(until.into(), count).await;
        tally
    }

    /// What a majority says; of one server, what that says.
    async fn decide(self: &Arc<Self>, question: Question<'_>) -> Result<bool> {
        let began = Instant::now();
        if self.servers.quorum.is_none() {
            return question(self.clone(), 0).await;
        }
        let tally = self.ask(None, |tally| tally.is_granted() || tally.is_refused(), question).await;
        match tally.is_granted() {
            false if !tally.is_refused() => Err(tally.missed(&self.wanted, began)),
            is_granted => Ok(is_granted),
        }
    }

    /// Sends one extension, and gives whether the hold is still there. In a quorum the nodes count that still have the hold with
    /// the fencing token that they gave. All are sent the command that asks for the lock: for the same owner it extends the
    /// hold, and it brings a node back that has lost it.
    pub(crate) async fn extend(
        self: &Arc<Self>,
        until: Instant,
        ttl: Duration,
        fence: Option<i64>,
    ) -> Result<bool> {
        if let Some(node) = self.servers.single() {
            return node.extend(until, &self.wanted, ttl, fence).await;
        }
        let command = self.wanted.lock(ttl);
        self.decide(&|votes, at| votes.take(at, command.clone(), true).boxed()).await
    }

    /// Releases, or has the hold end after a time, and gives whether it was still there. Without a reply, or if the future is
    /// dropped, that goes on in the background.
    pub(crate) async fn end(self: &Arc<Self>, fence: Option<i64>, after: Duration) -> Result<bool> {
        self.decide(&|votes, at| votes.end_at(at, fence, after).boxed()).await
    }

    async fn end_all(self: &Arc<Self>, deadline: Instant) -> Tally {
        self.ask(Some(deadline), |_| false, &|votes, at| votes.end_at(at, None, Duration::ZERO).boxed()).await
    }

    /// Releases in the background, or has the hold end after a time.
    pub(crate) fn leave(&self, fence: Option<i64>, after: Duration) {
        (0..self.fences.len()).for_each(|at| self.leave_at(at, fence, after));
    }

    fn leave_at(&self, at: usize, fence: Option<i64>, after: Duration) {
        self.is_ended.store(true, Ordering::Relaxed);
        self.servers.nodes[at].leave(&self.wanted, fence.or(self.fence(at)), after, None);
    }

    fn fence(&self, at: usize) -> Option<i64> {
        Some(self.fences[at].load(Ordering::Relaxed)).filter(|fence| *fence != 0)
    }

    /// The fencing tokens of the nodes of a quorum.
    pub(crate) fn fences(&self) -> Option<Vec<Option<i64>>> {
        self.servers.quorum.as_ref().map(|_| (0..self.fences.len()).map(|at| self.fence(at)).collect())
    }

    /// Sends a command: in a quorum once, because the next attempt or renewal asks all nodes again.
    async fn call(&self, at: usize, command: &Cmd, is_reserved: bool) -> Result<Answer> {
        let call = self.wanted.call(command, Instant::now() + self.limit());
        match self.servers.single() {
            Some(node) => node.ask(&self.wanted, call).await,
            None => Ok(self.servers.nodes[at].number(Call { is_reserved, ..call }).await?),
        }
    }

    /// Asks whether the server takes `at_least` as a ttl.
    async fn question(self: Arc<Self>, at: usize, question: Cmd) -> Result<bool> {
        self.call(at, &question, false).await.map_err(Error::of_at_least)?;
        Ok(true)
    }

    /// Sends a command that gives a fencing token, or 0, when the one before has its reply. An extension is of the hold that
    /// the server gave.
    async fn take(self: Arc<Self>, at: usize, command: Cmd, is_extension: bool) -> Result<bool> {
        let until = Instant::now() + self.limit();
        let turn = timeout_at(until.into(), self.turns[at].lock()).await;
        if turn.is_err() || self.is_ended.load(Ordering::Relaxed) {
            return Err(silent().into());
        }
        let before = self.fence(at);
        let fence = match self.call(at, &command, is_extension).await {
            Ok(answer) => answer.number,
            Err(error) => match error.redis().and_then(RedisError::code) {
                Some("WRONGMODE" | "NOTHELD" | "WRONGTYPE") => 0,
                Some("GRACE") if is_extension => return Ok(false), // it gives no new hold, so it has not got this one
                _ => return Err(error),
            },
        };
        self.fences[at].store(fence, Ordering::Relaxed);
        Ok(fence > 0 && (!is_extension || before == Some(fence)))
    }

    /// Ends the hold, in the background if the server does not reply in time.
    async fn end_at(self: Arc<Self>, at: usize, fence: Option<i64>, after: Duration) -> Result<bool> {
        self.is_ended.store(true, Ordering::Relaxed);
        let mut unanswered = OnDrop(Some(|| self.leave_at(at, fence, after)));
        let (command, _) = self.wanted.ending(fence.or(self.fence(at)), after);
        let answer = self.call(at, &command, false).await;
        if !answer.as_ref().is_err_and(Error::passes) {
            unanswered.0 = None;
        }
        let (answer, whole) = (answer?, if after.is_zero() { self.wanted.full.len() } else { 1 });
        // The server does not remember the end of a token of the program's: of two copies the second finds nothing.
        Ok(usize::try_from(answer.number) == Ok(whole) || self.wanted.is_given() && !answer.is_alone)
    }
}
