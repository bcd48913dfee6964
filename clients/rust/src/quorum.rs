//! The servers of a `Locks`: one, or several independent ones, of which a majority decides. The algorithm of a quorum is that of
//! redsync and of the Redis documentation ("Distributed Locks with Redis").

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{Cmd, RedisError};
use tokio::time::timeout_at;
use tracing::{Instrument, Span};

use crate::acquisition::{Acquisition, Grant, Pace};
use crate::clock::Moment;
use crate::errors::{Error, NodeReply, Result, passes};
use crate::node::{Node, OnDrop, counted};
use crate::options::SHORTEST_TTL;
use crate::protocol::Wanted;
use crate::server::{Quorum, Server};
use crate::shared::Shared;
use crate::transport::{Call, silent};

/// How long after the end of a wait the ends of its last attempt are waited for.
const LATE_END: Duration = Duration::from_millis(500);

/// What keeps a hold, and the grant.
pub(crate) type Kept = (Votes, Grant);

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
        let (nodes, factor) = (self.nodes.len(), quorum.drift_factor);
        if nodes == 0 || !(0.0..1.0).contains(&factor) || self.counted(ttl).is_zero() {
            return Err(Error::Invalid(format!(
                "a quorum needs servers that are no quorums, a drift factor of at least 0 and less than 1, and a ttl above \
                 2 ms and the drift, not {nodes} servers, {factor} and {ttl:?}"
            )));
        }
        Ok(())
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

    pub(crate) async fn acquire(
        self: &Arc<Self>,
        wanted: &Arc<Wanted>,
        is_try: bool,
    ) -> Result<Option<Kept>> {
        let Some(quorum) = &self.quorum else {
            let command = wanted.lock(wanted.options.ttl);
            let mut acquisition = Acquisition::new(&self.nodes[0], wanted, command, is_try);
            acquisition.ends = true;
            let grant = acquisition.run().await?;
            return Ok(grant.map(|grant| (Votes::new(self, wanted.clone()), grant)));
        };
        let (mut pace, mut last) = (Pace::new(wanted, &self.shared.settings, is_try), Tally::default());
        loop {
            // Each attempt has an owner token of its own, unless the program gave one.
            let (votes, sent) = (Votes::new(self, Arc::new(wanted.again())), Moment::now());
            let (tally, is_held) = votes.attempt(sent, pace.deadline).await;
            let is_refused = tally.is_refused();
            if is_held || is_refused && is_try {
                return Ok(is_held.then_some((votes, Grant { fence: 0, from: sent })));
            }
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
        let command = wanted.adopt(wanted.mode, wanted.options.ttl);
        let (votes, from) = (Votes::new(self, wanted.clone()), Moment::now());
        let grant = match self.single() {
            Some(node) => Acquisition::new(node, wanted, command, true).run().await,
            None => {
                let is_held = votes.decide(&Ask::Take(Arc::new(command))).await;
                is_held.map(|is_held| is_held.then_some(Grant { fence: 0, from }))
            }
        };
        match grant {
            Ok(None) | Err(Error::WrongMode(_)) => {
                Err(Error::NotHeld { keys: wanted.keys.clone(), mode: Some(wanted.mode) })
            }
            grant => Ok((votes, grant?.expect("it is held"))),
        }
    }

    /// Gives on how many keys, or on how many nodes, it released what the token holds.
    pub(crate) async fn release(self: &Arc<Self>, wanted: &Arc<Wanted>) -> Result<usize> {
        let none = Duration::ZERO;
        if let Some(node) = self.single() {
            let (end, until) = (wanted.ending(None, none).0, Instant::now() + self.shared.settings.retry_for);
            let answer = node.ask(wanted, passes, wanted.call(&end, until)).await?;
            return Ok(usize::try_from(answer.number).unwrap_or(0));
        }
        let (votes, end) = (Votes::new(self, wanted.clone()), Ask::End(None, none));
        Ok(votes.ask(None, |_| false, &end).await.count(|reply| reply.granted))
    }
}

/// The replies of all nodes. Of a node that has not replied, the error is a timeout.
#[derive(Default)]
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
        self.count(|reply| reply.error.as_ref().is_some_and(|error| !error.passes())) > self.0.len() / 2
    }

    /// The error of a call that got no majority.
    fn missed(self, wanted: &Wanted, began: Instant) -> Error {
        let (keys, within) = (wanted.keys.clone(), began.elapsed());
        if self.is_refused() {
            return Error::TimedOut { keys, waited: within, holders: Vec::new(), nodes: self.0 };
        }
        Error::QuorumMissed { keys, within, nodes: self.0 }
    }
}

/// What the servers gave one owner: it keeps a hold.
pub(crate) struct Votes {
    pub(crate) servers: Arc<Servers>,
    pub(crate) wanted: Arc<Wanted>,
    votes: Vec<Arc<Vote>>,
}

/// What one server gave.
struct Vote {
    node: Arc<Node>,
    wanted: Arc<Wanted>,
    /// After which errors a command is sent again before its time is over.
    again: fn(&RedisError) -> bool,
    /// A command that asks for the lock is on its way.
    is_asked: AtomicBool,
    /// In a quorum; 0 if it gave none.
    fence: AtomicI64,
}

impl Votes {
    fn new(servers: &Arc<Servers>, wanted: Arc<Wanted>) -> Self {
        let vote = |node: &Arc<Node>| {
            let again = if servers.quorum.is_some() { RedisError::is_timeout } else { passes };
            let (node, wanted, (is_asked, fence)) = (node.clone(), wanted.clone(), Default::default());
            Arc::new(Vote { node, wanted, again, is_asked, fence })
        };
        let votes = servers.nodes.iter().map(vote).collect();
        Self { servers: servers.clone(), wanted, votes }
    }

    /// How long each server is waited for.
    fn limit(&self) -> Duration {
        let retry_for = self.servers.shared.settings.retry_for;
        let Some(quorum) = &self.servers.quorum else { return retry_for };
        let ttl = self.wanted.options.ttl;
        let default = (ttl / 20).max(Duration::from_millis(50)).min(retry_for);
        quorum.node_timeout.unwrap_or(default).min(ttl.mul_f64(0.9))
    }

    /// Asks all servers at once. Gives the replies that came until they were enough, or until their time or the deadline was
    /// over. A server that has not replied by then may still do so.
    async fn ask(&self, deadline: Option<Instant>, is_enough: impl Fn(&Tally) -> bool, what: &Ask) -> Tally {
        let until = Instant::now() + self.limit();
        let until = deadline.map_or(until, |deadline| until.min(deadline));
        let silent = |vote: &Arc<Vote>| {
            let (node, error) = (vote.node.topology().name.clone(), Some(silent().into()));
            NodeReply { node, granted: false, error }
        };
        let mut tally = Tally(self.votes.iter().map(silent).collect());
        let ask = |(at, vote): (usize, &Arc<Vote>)| {
            let reply = vote.clone().run(until, what.clone());
            self.wanted.runtime.spawn(async move { (at, reply.await) }.instrument(Span::current()))
        };
        let mut replies: FuturesUnordered<_> = self.votes.iter().enumerate().map(ask).collect();
        let count = async {
            while let Some(reply) = replies.next().await {
                let Ok((at, reply)) = reply else { continue }; // its runtime shuts down
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
    async fn decide(&self, what: &Ask) -> Result<bool> {
        let began = Instant::now();
        if self.servers.quorum.is_none() {
            return self.votes[0].clone().run(began + self.limit(), what.clone()).await;
        }
        let tally = self.ask(None, Tally::is_certain, what).await;
        if tally.is_certain() { Ok(tally.is_granted()) } else { Err(tally.missed(&self.wanted, began)) }
    }

    /// Asks all nodes once for the lock. Gives their replies, and whether a majority granted in time. Else it ends what they
    /// gave, which it waits for: the next attempt would find it.
    async fn attempt(&self, sent: Moment, deadline: Option<Instant>) -> (Tally, bool) {
        let ttl = self.wanted.options.ttl;
        let fail_fast = self.servers.quorum.as_ref().is_some_and(|quorum| quorum.fail_fast);
        let take = Ask::Take(Arc::new(self.wanted.lock(ttl)));
        let mut unended = OnDrop(Some(|| self.leave(None, Duration::ZERO)));
        let is_enough = |tally: &Tally| tally.is_granted() || fail_fast && tally.is_lost();
        let tally = self.ask(deadline, is_enough, &take).await;
        let is_held = tally.is_granted() && Moment::now().since(sent) < self.servers.counted(ttl);
        if !is_held {
            let deadline = deadline.map(|deadline| deadline.max(Instant::now()) + LATE_END);
            self.ask(deadline, |_| false, &Ask::End(None, Duration::ZERO)).await;
        }
        unended.0 = None; // if it is held, the other nodes may still grant
        (tally, is_held)
    }

    /// Sends one extension, and gives whether the hold is still there. In a quorum the nodes count that still have the hold with
    /// the fencing token that they gave. All are sent the command that asks for the lock: for the same owner it extends the
    /// hold, and it brings a node back that has lost it.
    pub(crate) async fn extend(&self, until: Instant, ttl: Duration, fence: Option<i64>) -> Result<bool> {
        let wanted = &self.wanted;
        if let Some(node) = self.servers.single() {
            return node.extend(until, wanted, ttl, fence).await;
        }
        let command = wanted.lock(ttl);
        self.decide(&Ask::Extend(Arc::new(command))).await
    }

    /// Releases, or has the hold end after a time, and gives whether it was still there. Without a reply, or if the future is
    /// dropped, that goes on in the background.
    pub(crate) async fn end(&self, fence: Option<i64>, after: Duration) -> Result<bool> {
        self.decide(&Ask::End(fence, after)).await
    }

    /// The same in the background.
    pub(crate) fn leave(&self, fence: Option<i64>, after: Duration) {
        self.votes.iter().for_each(|vote| vote.leave(fence, after));
    }

    /// The fencing tokens of the nodes of a quorum.
    pub(crate) fn fences(&self) -> Option<Vec<Option<i64>>> {
        self.servers.quorum.as_ref().map(|_| self.votes.iter().map(|vote| vote.fence()).collect())
    }
}

/// What is asked of one server.
#[derive(Clone)]
enum Ask {
    /// A command that gives a fencing token, or 0.
    Take(Arc<Cmd>),
    /// The same command, for a hold.
    Extend(Arc<Cmd>),
    /// The end of what has this fencing token, or of whatever the owner has, after a time.
    End(Option<i64>, Duration),
}

impl Vote {
    fn fence(&self) -> Option<i64> {
        Some(self.fence.load(Ordering::Relaxed)).filter(|fence| *fence != 0)
    }

    /// Asks until a time, and gives whether the server granted it.
    async fn run(self: Arc<Self>, until: Instant, what: Ask) -> Result<bool> {
        let (command, before, is_reserved) = match &what {
            Ask::End(fence, after) => return self.end(until, *fence, *after).await,
            Ask::Take(command) => (command, None, false),
            Ask::Extend(command) => (command, self.fence(), true),
        };
        if self.is_asked.swap(true, Ordering::Relaxed) {
            return Err(silent().into()); // the command before has no reply yet
        }
        let call = Call { is_reserved, ..self.wanted.call(command, until) };
        let answer = self.node.ask(&self.wanted, self.again, call).await;
        self.is_asked.store(false, Ordering::Relaxed);
        let fence = match answer {
            Ok(answer) => answer.number,
            Err(Error::WrongMode(_) | Error::NotHeld { .. }) => 0,
            Err(error) if error.is_another_type() => 0,
            // It gives no new hold, so it has not got this one.
            Err(Error::Redis(error)) if is_reserved && error.code() == Some("GRACE") => return Ok(false),
            Err(error) => return Err(error),
        };
        self.fence.store(fence, Ordering::Relaxed);
        Ok(fence > 0 && (!is_reserved || before == Some(fence)))
    }

    /// Ends the hold, in the background if the server does not reply in time.
    async fn end(&self, until: Instant, fence: Option<i64>, after: Duration) -> Result<bool> {
        let mut unanswered = OnDrop(Some(|| self.leave(fence, after)));
        let wanted = &self.wanted;
        let (command, _) = wanted.ending(fence.or(self.fence()), after);
        let answer = self.node.ask(wanted, self.again, wanted.call(&command, until)).await;
        if !answer.as_ref().is_err_and(Error::passes) {
            unanswered.0 = None;
        }
        let (answer, whole) = (answer?, if after.is_zero() { wanted.full.len() } else { 1 });
        // The server does not remember the end of a token of the program's: of two copies the second finds nothing.
        Ok(usize::try_from(answer.number) == Ok(whole) || wanted.is_given() && !answer.is_alone)
    }

    fn leave(&self, fence: Option<i64>, after: Duration) {
        self.node.leave(&self.wanted, fence.or(self.fence()), after);
    }
}
