//! Locks on several independent servers: N servers, and arithmetic. The algorithm is that of redsync and of the Redis
//! documentation ("Distributed Locks with Redis").

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::{Cmd, RedisError};
use tokio::sync::mpsc;
use tokio::time::{sleep_until, timeout_at};
use tracing::{Instrument, Span};

use crate::acquisition::Grant;
use crate::clock::Moment;
use crate::errors::{Error, NodeReply, passes};
use crate::keeper::{Backend, Keeper, Kept, ending};
use crate::node::{Answer, Extension, Node};
use crate::options::Options;
use crate::protocol::Wanted;
use crate::server::{Place, Quorum};
use crate::transport::{Call, Transport, silent};

/// How long after the end of a wait the ends of its last attempt are waited for.
const LATE_END: Duration = Duration::from_millis(500);

/// The nodes of a quorum.
pub(crate) struct Majority {
    nodes: Vec<Arc<Node>>,
    options: Quorum,
}

impl Majority {
    pub(crate) fn new(mut quorum: Quorum, node: impl Fn(Arc<dyn Transport>) -> Arc<Node>) -> Arc<Self> {
        let transports = quorum.servers.drain(..).filter_map(|server| match server.0 {
            Place::One(transport) => Some(transport),
            Place::Quorum(_) => None, // refused by `check`
        });
        Arc::new(Self { nodes: transports.map(node).collect(), options: quorum })
    }
}

/// The replies of all nodes. Of a node that has not replied, the error is a timeout.
#[derive(Clone, Default)]
struct Tally(Vec<NodeReply>);

impl Tally {
    fn count(&self, is: impl Fn(&NodeReply) -> bool) -> usize {
        self.0.iter().filter(|reply| is(reply)).count()
    }

    fn is_granted(&self) -> bool {
        self.count(|reply| reply.granted) > self.0.len() / 2
    }

    /// Others have the lock at so many nodes that there can be no majority, whatever the rest says.
    fn is_refused(&self) -> bool {
        self.count(|reply| !reply.granted && reply.error.is_none()) > (self.0.len() - 1) / 2
    }

    fn is_certain(&self) -> bool {
        self.is_granted() || self.is_refused()
    }

    /// A majority is out of reach.
    fn is_lost(&self) -> bool {
        let is_silent = |error: &Error| error.redis().is_some_and(RedisError::is_timeout);
        self.count(|reply| !reply.granted && !reply.error.as_ref().is_some_and(is_silent))
            > (self.0.len() - 1) / 2
    }

    /// A majority gives errors that last.
    fn is_final(&self) -> bool {
        let lasts = |error: &Error| !error.passes();
        self.count(|reply| reply.error.as_ref().is_some_and(lasts)) > self.0.len() / 2
    }

    /// The error of a call that got no majority.
    fn missed(self, wanted: &Wanted, within: Duration) -> Error {
        let keys = wanted.owner.keys.clone();
        if self.is_refused() {
            return Error::TimedOut { keys, waited: within, holders: Vec::new(), nodes: self.0 };
        }
        Error::QuorumMissed { keys, within, nodes: self.0 }
    }
}

impl Backend for Arc<Majority> {
    fn check(&self, ttl: Duration) -> Result<(), Error> {
        let (nodes, factor) = (self.nodes.len(), self.options.drift_factor);
        if nodes == 0 || !(0.0..1.0).contains(&factor) || self.counted(ttl).is_zero() {
            return Err(Error::Invalid(format!(
                "a quorum needs servers that are no quorums, a drift factor of at least 0 and less than 1, and a ttl above \
                 2 ms and the drift, not {nodes} servers, {factor} and {ttl:?}"
            )));
        }
        Ok(())
    }

    fn counted(&self, ttl: Duration) -> Duration {
        let drift = ttl.mul_f64(self.options.drift_factor.clamp(0.0, 1.0)) + Duration::from_millis(2);
        ttl.saturating_sub(drift)
    }

    fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    fn acquire(&self, wanted: Arc<Wanted>, is_try: bool) -> BoxFuture<'_, Result<Option<Kept>, Error>> {
        async move {
            let (began, retry_for) = (Instant::now(), self.nodes[0].settings.retry_for);
            let is_once = is_try || wanted.options.wait.is_some_and(|wait| wait.is_zero());
            let deadline = wanted.options.wait.filter(|_| !is_once).map(|wait| began + wait);
            let is_over = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
            let (mut replied, mut last) = (began, Tally::default());
            for attempts in 0.. {
                let votes = Votes::new(self, &wanted);
                let (tally, is_held) = votes.attempt(deadline).await;
                if is_held {
                    return Ok(Some(votes.kept()));
                }
                let is_refused = tally.is_refused();
                if is_refused && is_try {
                    return Ok(None);
                }
                replied = if is_refused { Instant::now() } else { replied };
                // One that was cut short may tell less than the one before.
                if attempts == 0 || is_refused || !is_over() {
                    last = tally;
                }
                let limit = replied
                    + if replied == began { retry_for } else { self.nodes[0].settings.retry_wait_for };
                let Some(pause) = self.options.poll.pause(attempts) else { break };
                if is_once || last.is_final() || is_over() || !is_refused && Instant::now() + pause >= limit {
                    break;
                }
                let next = Instant::now() + pause;
                sleep_until(deadline.map_or(next, |deadline| next.min(deadline)).into()).await;
                if is_over() {
                    break;
                }
            }
            Err(last.missed(&wanted, began.elapsed()))
        }
        .boxed()
    }

    fn adopt(&self, wanted: Arc<Wanted>) -> BoxFuture<'_, Result<Kept, Error>> {
        async move {
            let (votes, ttl) = (Votes::new(self, &wanted), wanted.options.ttl);
            let command = Arc::new(wanted.owner.adopt(wanted.mode, ttl));
            let take = |vote: Arc<Vote>, until| vote.take(until, command.clone(), false);
            let tally = votes.ask(ttl, None, |_| false, take).await;
            if tally.is_granted() {
                return Ok(votes.kept());
            }
            if tally.is_refused() {
                return Err(Error::NotHeld { keys: wanted.owner.keys.clone(), mode: Some(wanted.mode) });
            }
            Err(tally.missed(&wanted, Moment::now().since(votes.sent)))
        }
        .boxed()
    }

    fn release(&self, wanted: Arc<Wanted>) -> BoxFuture<'_, Result<usize, Error>> {
        async move {
            let votes = Votes::new(self, &wanted);
            let end = |vote: Arc<Vote>, until| vote.end(until, Duration::ZERO);
            Ok(votes.ask(wanted.options.ttl, None, |_| false, end).await.count(|reply| reply.granted))
        }
        .boxed()
    }
}

/// What the nodes gave one owner: the keeper of a hold.
pub(crate) struct Votes {
    majority: Arc<Majority>,
    wanted: Arc<Wanted>,
    /// Before the first command was sent.
    sent: Moment,
    votes: Vec<Arc<Vote>>,
    /// It has not been ended, and is no hold that will be.
    is_open: AtomicBool,
}

impl Drop for Votes {
    fn drop(&mut self) {
        if *self.is_open.get_mut() {
            self.votes.iter().for_each(|vote| vote.leave(Duration::ZERO));
        }
    }
}

/// What one node gave.
struct Vote {
    node: Arc<Node>,
    wanted: Arc<Wanted>,
    /// A command that asks for the lock is on its way.
    is_asked: AtomicBool,
    /// 0 if it gave none.
    fence: AtomicI64,
}

impl Votes {
    fn new(majority: &Arc<Majority>, wanted: &Arc<Wanted>) -> Arc<Self> {
        // Each attempt has an owner token of its own, unless the program gave one.
        let owner = wanted.owner.again();
        let wanted = Arc::new(Wanted { owner, ..Wanted::clone(wanted) });
        let vote = |node: &Arc<Node>| {
            let (node, wanted) = (node.clone(), wanted.clone());
            Arc::new(Vote { node, wanted, is_asked: AtomicBool::new(false), fence: AtomicI64::new(0) })
        };
        let votes = majority.nodes.iter().map(vote).collect();
        let (majority, sent, is_open) = (majority.clone(), Moment::now(), AtomicBool::new(false));
        Arc::new(Self { majority, wanted, sent, votes, is_open })
    }

    fn node_timeout(&self, ttl: Duration) -> Duration {
        let default =
            (ttl / 20).max(Duration::from_millis(50)).min(self.majority.nodes[0].settings.retry_for);
        self.majority.options.node_timeout.unwrap_or(default).min(ttl.mul_f64(0.9))
    }

    /// Asks all nodes at once. Gives the replies that came until they were enough, or until the time for nodes or the
    /// deadline was over. A node that has not replied by then may still do so.
    async fn ask<F>(
        &self,
        ttl: Duration,
        deadline: Option<Instant>,
        is_enough: impl Fn(&Tally) -> bool,
        of: impl Fn(Arc<Vote>, Instant) -> F,
    ) -> Tally
    where
        F: Future<Output = Result<bool, Error>> + Send + 'static,
    {
        let until = Instant::now() + self.node_timeout(ttl);
        let until = deadline.map_or(until, |deadline| until.min(deadline));
        let (sender, mut replies) = mpsc::unbounded_channel();
        let mut tally = Tally::default();
        for (at, vote) in self.votes.iter().enumerate() {
            let (node, error) = (vote.node.topology.name.clone(), Some(silent().into()));
            tally.0.push(NodeReply { node, granted: false, error });
            let (reply, sender) = (of(vote.clone(), until), sender.clone());
            let reply = async move { drop(sender.send((at, reply.await))) };
            self.wanted.runtime.spawn(reply.instrument(Span::current()));
        }
        drop(sender);
        let count = async {
            while let Some((at, reply)) = replies.recv().await {
                let error =
                    reply.as_ref().err().map(|error| error.clone().explained(&self.wanted.owner.keys));
                (tally.0[at].granted, tally.0[at].error) = (reply.unwrap_or(false), error);
                if is_enough(&tally) {
                    break;
                }
            }
        };
        let _ = timeout_at(until.into(), count).await;
        tally
    }

    /// Asks all nodes once for the lock. Gives their replies, and whether a majority granted in time. Else it ends what they
    /// gave, which it waits for: the next attempt would find it.
    async fn attempt(&self, deadline: Option<Instant>) -> (Tally, bool) {
        let (ttl, fail_fast) = (self.wanted.options.ttl, self.majority.options.fail_fast);
        let command = Arc::new(self.wanted.owner.lock(self.wanted.mode, &self.wanted.options));
        self.is_open.store(true, Ordering::Relaxed);
        let is_enough = |tally: &Tally| tally.is_granted() || fail_fast && tally.is_lost();
        let tally =
            self.ask(ttl, deadline, is_enough, |vote, until| vote.take(until, command.clone(), false)).await;
        if tally.is_granted() && Moment::now().since(self.sent) < self.majority.counted(ttl) {
            return (tally, true); // the other nodes may still grant
        }
        let deadline = deadline.map(|deadline| deadline.max(Instant::now()) + LATE_END);
        self.ask(ttl, deadline, |_| false, |vote, until| vote.end(until, Duration::ZERO)).await;
        self.is_open.store(false, Ordering::Relaxed);
        (tally, false)
    }

    fn kept(self: Arc<Self>) -> Kept {
        self.is_open.store(false, Ordering::Relaxed);
        let (wanted, grant) = (self.wanted.clone(), Grant { fence: 0, from: self.sent });
        (self, wanted, grant)
    }
}

impl Keeper for Votes {
    /// Counts the nodes that still have the hold with the fencing token that they gave. All are sent the command that asks for
    /// the lock: for the same owner it extends the hold, and it brings a node back that has lost it.
    fn extend<'a>(
        &'a self,
        _: Instant,
        wanted: &'a Wanted,
        by: Extension<'a>,
    ) -> BoxFuture<'a, Result<Answer, Error>> {
        async move {
            let options = Options { ttl: by.ttl, ..by.options.clone() };
            let (command, sent) = (Arc::new(wanted.owner.lock(wanted.mode, &options)), Moment::now());
            let extend = |vote: Arc<Vote>, until| vote.extend(until, command.clone());
            let tally = self.ask(by.ttl, None, Tally::is_certain, extend).await;
            if tally.is_certain() {
                return Ok(Answer { number: i64::from(tally.is_granted()), sent, is_alone: true });
            }
            Err(tally.missed(wanted, Moment::now().since(sent)))
        }
        .boxed()
    }

    fn end<'a>(
        self: Arc<Self>,
        wanted: &'a Wanted,
        _: Option<i64>,
        after: Duration,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        async move {
            let (ttl, sent) = (wanted.options.ttl, Moment::now());
            let end = |vote: Arc<Vote>, until| vote.end(until, after);
            let tally = self.ask(ttl, None, Tally::is_certain, end).await;
            if tally.is_certain() {
                return Ok(tally.is_granted());
            }
            Err(tally.missed(wanted, Moment::now().since(sent)))
        }
        .boxed()
    }

    fn leave(self: Arc<Self>, _: &Wanted, _: Option<i64>, after: Duration) {
        self.votes.iter().for_each(|vote| vote.leave(after));
    }

    fn fences(&self) -> Option<Vec<Option<i64>>> {
        let fence = |vote: &Arc<Vote>| Some(vote.fence.load(Ordering::Relaxed)).filter(|fence| *fence != 0);
        Some(self.votes.iter().map(fence).collect())
    }
}

impl Vote {
    /// Sends a command that gives a fencing token or 0, until a time.
    async fn take(
        self: Arc<Self>,
        until: Instant,
        command: Arc<Cmd>,
        is_reserved: bool,
    ) -> Result<bool, Error> {
        if self.is_asked.swap(true, Ordering::Relaxed) {
            return Err(silent().into()); // the command before has no reply yet
        }
        let call = Call { is_reserved, until, ..Call::new(self.wanted.owner.key(), &command) };
        let answer = self.node.number_until(call).await;
        self.is_asked.store(false, Ordering::Relaxed);
        match answer {
            Ok(answer) => {
                self.fence.store(answer.number, Ordering::Relaxed);
                Ok(answer.number > 0)
            }
            Err(error) if matches!(error.code(), Some("WRONGMODE" | "NOTHELD" | "WRONGTYPE")) => {
                self.fence.store(0, Ordering::Relaxed);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn extend(self: Arc<Self>, until: Instant, command: Arc<Cmd>) -> Result<bool, Error> {
        let before = self.fence.load(Ordering::Relaxed);
        match self.clone().take(until, command, true).await {
            Ok(_) => Ok(before != 0 && self.fence.load(Ordering::Relaxed) == before),
            // It gives no new hold, so it has not got this one.
            Err(Error::Redis(error)) if error.code() == Some("GRACE") => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn named(&self) -> Option<i64> {
        Some(self.fence.swap(0, Ordering::Relaxed)).filter(|fence| *fence != 0)
    }

    /// Ends the hold at one node, in the background if the node does not reply in time.
    async fn end(self: Arc<Self>, until: Instant, after: Duration) -> Result<bool, Error> {
        let owner = &self.wanted.owner;
        let (command, limit) = ending(owner, self.named(), after);
        let answer = self.node.number_until(Call { until, ..Call::new(owner.key(), &command) }).await;
        if answer.as_ref().is_err_and(passes) {
            self.node.deliver(&self.wanted, command, limit);
        }
        Ok(answer?.number > 0)
    }

    fn leave(&self, after: Duration) {
        let (command, limit) = ending(&self.wanted.owner, self.named(), after);
        self.node.deliver(&self.wanted, command, limit);
    }
}
