//! Where holds are kept: at one server, or at the nodes of a quorum. It has what is done at one server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::Cmd;
use tokio::runtime::Handle;

use crate::acquisition::{Acquisition, Grant, Request, State};
use crate::clock::Moment;
use crate::errors::Error;
use crate::node::{Answer, Node};
use crate::options::{Mode, Options, POLLING};
use crate::protocol::{self, Owner, REFUSED_FOR};
use crate::quorum::{Majority, Votes};
use crate::transport::Call;

/// What carries requests out.
pub(crate) enum Backend {
    Server(Arc<Node>),
    Quorum(Arc<Majority>),
}

/// What keeps one hold.
#[derive(Clone)]
pub(crate) enum Keeper {
    Server(Arc<Node>),
    Votes(Arc<Votes>),
}

/// What keeps a hold, what was wanted, which has its owner token, and the grant.
pub(crate) type Kept = (Keeper, Arc<Wanted>, Grant);

/// What is wanted of a backend.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
    pub(crate) options: Arc<Options>,
    pub(crate) runtime: Handle,
}

/// A command that prolongs a hold.
#[derive(Clone, Copy)]
pub(crate) struct Extension<'a> {
    pub(crate) ttl: Duration,
    /// Nothing: whatever the owner holds.
    pub(crate) fence: Option<i64>,
    pub(crate) options: &'a Options,
}

/// The part of a ttl that counts for the validity. A clock that is slewed runs up to 500 ppm fast, on both sides, and the
/// server counts in milliseconds.
pub(crate) fn counted(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 1000 + Duration::from_millis(1))
}

impl Backend {
    pub(crate) fn counted(&self, ttl: Duration) -> Duration {
        match self {
            Backend::Server(_) => counted(ttl),
            Backend::Quorum(quorum) => quorum.counted(ttl),
        }
    }

    /// The first server answers questions.
    pub(crate) fn first(&self) -> &Arc<Node> {
        match self {
            Backend::Server(node) => node,
            Backend::Quorum(quorum) => &quorum.nodes[0],
        }
    }

    pub(crate) async fn acquire(&self, wanted: &Arc<Wanted>, is_try: bool) -> Result<Option<Kept>, Error> {
        match self {
            Backend::Server(node) => {
                let grant = node.acquire(wanted, is_try).await?;
                Ok(grant.map(|grant| (Keeper::Server(node.clone()), wanted.clone(), grant)))
            }
            Backend::Quorum(quorum) => {
                let grant = quorum.acquire(wanted, is_try).await?;
                Ok(grant.map(|(votes, grant)| (Keeper::Votes(votes.clone()), votes.wanted.clone(), grant)))
            }
        }
    }

    pub(crate) async fn adopt(&self, wanted: &Arc<Wanted>) -> Result<Kept, Error> {
        match self {
            Backend::Server(node) => {
                let grant = node.adopt(wanted).await?;
                Ok((Keeper::Server(node.clone()), wanted.clone(), grant))
            }
            Backend::Quorum(quorum) => {
                let (votes, grant) = quorum.adopt(wanted).await?;
                Ok((Keeper::Votes(votes), wanted.clone(), grant))
            }
        }
    }

    /// On how many keys, or on how many nodes, it released what the token holds.
    pub(crate) async fn release(&self, wanted: &Arc<Wanted>) -> Result<usize, Error> {
        match self {
            Backend::Server(node) => {
                let (owner, end) = (&wanted.owner, wanted.owner.end(None));
                let call = Call::new(owner.key(), &end, Instant::now());
                let answer = node.ask(&owner.keys, node.settings.retry_for, call).await?;
                Ok(usize::try_from(answer.number).unwrap_or(0))
            }
            Backend::Quorum(quorum) => quorum.release(wanted).await,
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Backend::Server(node) => node.close(),
            Backend::Quorum(quorum) => quorum.nodes.iter().for_each(|node| node.close()),
        }
    }
}

impl Keeper {
    /// Sends one extension. The number of the answer is 0 if the hold is gone.
    pub(crate) async fn extend(
        &self,
        until: Instant,
        wanted: &Wanted,
        extension: Extension<'_>,
    ) -> Result<Answer, Error> {
        match self {
            Keeper::Server(node) => node.extend(until, &wanted.owner, extension).await,
            Keeper::Votes(votes) => votes.extend(extension.ttl).await,
        }
    }

    /// Releases, or has the hold end after a time, and gives whether it was still there. Without a reply, or if the future
    /// is dropped, that goes on in the background.
    pub(crate) async fn end(
        &self,
        wanted: &Wanted,
        fence: Option<i64>,
        after: Duration,
    ) -> Result<bool, Error> {
        match self {
            Keeper::Server(node) => node.end(wanted, fence, after).await,
            Keeper::Votes(votes) => votes.end(after).await,
        }
    }

    /// Releases in the background.
    pub(crate) fn leave(&self, wanted: &Wanted, fence: Option<i64>, after: Duration) {
        match self {
            Keeper::Server(node) => {
                let (command, limit) = ending(&wanted.owner, fence, after);
                node.deliver(&wanted.runtime, wanted.owner.key(), command, limit);
            }
            Keeper::Votes(votes) => votes.leave(after),
        }
    }
}

/// The command that ends a hold, now or after a time, and for how long it is sent.
pub(crate) fn ending(owner: &Owner, fence: Option<i64>, after: Duration) -> (Cmd, Duration) {
    if after.is_zero() { (owner.end(fence), REFUSED_FOR) } else { (owner.shorten(after, fence), after) }
}

/// Sends a command in the background when it is dropped, unless it is disarmed.
pub(crate) struct Unanswered<'a> {
    pub(crate) node: &'a Arc<Node>,
    pub(crate) wanted: &'a Wanted,
    pub(crate) command: Cmd,
    pub(crate) limit: Duration,
    pub(crate) is_open: AtomicBool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if *self.is_open.get_mut() {
            let command = std::mem::take(&mut self.command);
            self.node.deliver(&self.wanted.runtime, self.wanted.owner.key(), command, self.limit);
        }
    }
}

impl Node {
    async fn acquire(self: &Arc<Self>, wanted: &Wanted, is_try: bool) -> Result<Option<Grant>, Error> {
        let (owner, options) = (&wanted.owner, &wanted.options);
        let (command, limit) = ending(owner, None, Duration::ZERO);
        let end = Unanswered { node: self, wanted, command, limit, is_open: AtomicBool::new(false) };
        let command = owner.lock(wanted.mode, options);
        let mut request =
            Request { node: self, owner, options, command, is_open: &end.is_open, state: State::default() };
        let acquisition = Acquisition::new(&self.settings, options.wait, is_try, POLLING);
        let granted = acquisition.run(&mut request).await;
        if let Ok(Some(_)) = granted {
            end.is_open.store(false, Ordering::Relaxed);
        }
        granted
    }

    async fn adopt(&self, wanted: &Wanted) -> Result<Grant, Error> {
        let (owner, mode) = (&wanted.owner, wanted.mode);
        let command = owner.adopt(mode, wanted.options.ttl);
        let call = Call::new(owner.key(), &command, Instant::now());
        match self.ask(&owner.keys, self.settings.retry_for, call).await {
            Ok(Answer { number: 0, .. }) | Err(Error::WrongMode { .. }) => {
                Err(Error::NotHeld { keys: owner.keys.clone(), mode: Some(mode) })
            }
            answer => answer.map(|answer| Grant { fence: answer.number, from: answer.sent }),
        }
    }

    /// Sends an extension, and waits for replicas if it has to.
    pub(crate) async fn extend(
        &self,
        until: Instant,
        owner: &Owner,
        extension: Extension<'_>,
    ) -> Result<Answer, Error> {
        let Extension { ttl, fence, options } = extension;
        let wanted = options.min_replicas;
        if wanted == 0 {
            let command = owner.extend(ttl, fence);
            let call = Call { is_reserved: true, ..Call::new(owner.key(), &command, until) };
            return Ok(self.number(call).await?);
        }
        // WAIT counts the replicas that have what its connection wrote last. An extension to the same millisecond would
        // write nothing, and any replica would do.
        let command = owner.extend(ttl + Duration::from_millis(1), fence);
        let wait = protocol::replicas(wanted, options.replica_timeout);
        let then = Some((&wait, options.replica_timeout));
        let call = Call { then, is_reserved: true, ..Call::new(owner.key(), &command, until) };
        let sent = Moment::now();
        let reply = self.send(call).await?;
        let acknowledged = u32::try_from(protocol::number(&reply.then)).unwrap_or(0);
        let number = protocol::number(&reply.value);
        if number > 0 && acknowledged < wanted {
            return Err(Error::TooFewReplicas { keys: owner.keys.clone(), wanted, acknowledged });
        }
        Ok(Answer { number, sent, is_alone: reply.is_alone })
    }

    async fn end(
        self: &Arc<Self>,
        wanted: &Wanted,
        fence: Option<i64>,
        after: Duration,
    ) -> Result<bool, Error> {
        let owner = &wanted.owner;
        let (command, limit) = ending(owner, fence, after);
        let end = Unanswered { node: self, wanted, command, limit, is_open: AtomicBool::new(true) };
        let call = Call::new(owner.key(), &end.command, Instant::now());
        let answer = self.ask(&owner.keys, self.settings.retry_for, call).await;
        if !matches!(answer, Err(Error::NoAnswer { .. })) {
            end.is_open.store(false, Ordering::Relaxed);
        }
        let (answer, whole) = (answer?, if after.is_zero() { owner.full.len() } else { 1 });
        // The server does not remember the end of a token of the program's: of two copies the second finds nothing.
        Ok(usize::try_from(answer.number) == Ok(whole) || owner.is_given && !answer.is_alone)
    }
}
