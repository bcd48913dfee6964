//! Where holds are kept: at one server, or at the nodes of a quorum. It has what is done at one server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::Cmd;
use tokio::runtime::Handle;
use tracing::Span;

use crate::acquisition::{Acquisition, Grant};
use crate::clock::Moment;
use crate::errors::Error;
use crate::node::{Answer, Node};
use crate::options::{Mode, Options};
use crate::protocol::{self, Owner, REFUSED_FOR};
use crate::transport::Call;

/// What is wanted, and by whom.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
    pub(crate) options: Arc<Options>,
    /// On which the call runs.
    pub(crate) runtime: Handle,
    /// In which the call was made.
    pub(crate) span: Span,
}

impl Wanted {
    pub(crate) fn label(&self) -> &str {
        self.options.label.as_deref().unwrap_or(&self.owner.keys[0])
    }
}

/// What keeps a hold, what was wanted, which has its owner token, and the grant.
pub(crate) type Kept = (Arc<dyn Keeper>, Arc<Wanted>, Grant);

/// What carries requests out.
pub(crate) trait Backend: Send + Sync {
    /// What is wrong with a ttl, if anything.
    fn check(&self, ttl: Duration) -> Result<(), Error>;
    /// The part of a ttl that counts for the validity.
    fn counted(&self, ttl: Duration) -> Duration;
    fn nodes(&self) -> &[Arc<Node>];
    fn acquire(&self, wanted: Arc<Wanted>, is_try: bool) -> BoxFuture<'_, Result<Option<Kept>, Error>>;
    fn adopt(&self, wanted: Arc<Wanted>) -> BoxFuture<'_, Result<Kept, Error>>;
    /// Gives on how many keys, or on how many nodes, it released what the token holds.
    fn release(&self, wanted: Arc<Wanted>) -> BoxFuture<'_, Result<usize, Error>>;
}

/// What keeps one hold.
pub(crate) trait Keeper: Send + Sync {
    /// Sends one extension. The number of the answer is 0 if the hold is gone.
    fn extend<'a>(
        &'a self,
        until: Instant,
        wanted: &'a Wanted,
        by: Extension<'a>,
    ) -> BoxFuture<'a, Result<Answer, Error>>;
    /// Releases, or has the hold end after a time, and gives whether it was still there. Without a reply, or if the future is
    /// dropped, that goes on in the background.
    fn end<'a>(
        self: Arc<Self>,
        wanted: &'a Wanted,
        fence: Option<i64>,
        after: Duration,
    ) -> BoxFuture<'a, Result<bool, Error>>;
    /// The same in the background.
    fn leave(self: Arc<Self>, wanted: &Wanted, fence: Option<i64>, after: Duration);
    /// The fencing tokens of the nodes of a quorum.
    fn fences(&self) -> Option<Vec<Option<i64>>> {
        None
    }
    /// The one server.
    fn node(self: Arc<Self>) -> Option<Arc<Node>> {
        None
    }
}

/// A command that prolongs a hold.
#[derive(Clone, Copy)]
pub(crate) struct Extension<'a> {
    pub(crate) ttl: Duration,
    /// Nothing: whatever the owner holds.
    pub(crate) fence: Option<i64>,
    pub(crate) options: &'a Options,
}

/// The part of a ttl that counts at one server. A clock that is slewed runs up to 500 ppm fast, on both sides, and the server
/// counts in milliseconds.
pub(crate) fn counted(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 1000 + Duration::from_millis(1))
}

/// The command that ends a hold, now or after a time, and for how long it is sent.
pub(crate) fn ending(owner: &Owner, fence: Option<i64>, after: Duration) -> (Cmd, Duration) {
    if after.is_zero() { (owner.end(fence), REFUSED_FOR) } else { (owner.shorten(after, fence), after) }
}

/// Sends a command in the background when it is dropped, if that is open.
struct Unanswered<'a> {
    node: &'a Arc<Node>,
    wanted: &'a Wanted,
    /// The command, and for how long it is sent.
    ending: (Cmd, Duration),
    is_open: AtomicBool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if *self.is_open.get_mut() {
            let (command, limit) = std::mem::take(&mut self.ending);
            self.node.deliver(self.wanted, command, limit);
        }
    }
}

/// One server.
pub(crate) struct Single(pub(crate) [Arc<Node>; 1]);

impl Backend for Single {
    fn check(&self, _: Duration) -> Result<(), Error> {
        Ok(())
    }

    fn counted(&self, ttl: Duration) -> Duration {
        counted(ttl)
    }

    fn nodes(&self) -> &[Arc<Node>] {
        &self.0
    }

    fn acquire(&self, wanted: Arc<Wanted>, is_try: bool) -> BoxFuture<'_, Result<Option<Kept>, Error>> {
        async move {
            let (node, owner, options) = (&self.0[0], &wanted.owner, &wanted.options);
            let ending = ending(owner, None, Duration::ZERO);
            let end = Unanswered { node, wanted: &wanted, ending, is_open: AtomicBool::new(false) };
            let command = owner.lock(wanted.mode, options);
            let acquisition = Acquisition::new(node, owner, options, command, is_try, &end.is_open);
            let Some(grant) = acquisition.run().await? else { return Ok(None) };
            end.is_open.store(false, Ordering::Relaxed);
            drop(end);
            let keeper: Arc<dyn Keeper> = node.clone();
            Ok(Some((keeper, wanted, grant)))
        }
        .boxed()
    }

    fn adopt(&self, wanted: Arc<Wanted>) -> BoxFuture<'_, Result<Kept, Error>> {
        async move {
            let (node, owner, mode) = (&self.0[0], &wanted.owner, wanted.mode);
            let command = owner.adopt(mode, wanted.options.ttl);
            let answer =
                node.ask(&owner.keys, node.settings.retry_for, Call::new(owner.key(), &command)).await;
            if matches!(answer, Ok(Answer { number: 0, .. }) | Err(Error::WrongMode(_))) {
                return Err(Error::NotHeld { keys: owner.keys.clone(), mode: Some(mode) });
            }
            let (keeper, answer): (Arc<dyn Keeper>, _) = (node.clone(), answer?);
            Ok((keeper, wanted, Grant { fence: answer.number, from: answer.sent }))
        }
        .boxed()
    }

    fn release(&self, wanted: Arc<Wanted>) -> BoxFuture<'_, Result<usize, Error>> {
        async move {
            let (node, owner, end) = (&self.0[0], &wanted.owner, wanted.owner.end(None));
            let answer = node.ask(&owner.keys, node.settings.retry_for, Call::new(owner.key(), &end)).await?;
            Ok(usize::try_from(answer.number).unwrap_or(0))
        }
        .boxed()
    }
}

impl Keeper for Node {
    fn extend<'a>(
        &'a self,
        until: Instant,
        wanted: &'a Wanted,
        by: Extension<'a>,
    ) -> BoxFuture<'a, Result<Answer, Error>> {
        self.prolong(until, &wanted.owner, by).boxed()
    }

    fn end<'a>(
        self: Arc<Self>,
        wanted: &'a Wanted,
        fence: Option<i64>,
        after: Duration,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        async move {
            let (owner, whole) = (&wanted.owner, if after.is_zero() { wanted.owner.full.len() } else { 1 });
            let ending = ending(owner, fence, after);
            let end = Unanswered { node: &self, wanted, ending, is_open: AtomicBool::new(true) };
            let call = Call::new(owner.key(), &end.ending.0);
            let answer = self.ask(&owner.keys, self.settings.retry_for, call).await;
            end.is_open.store(matches!(answer, Err(Error::NoAnswer { .. })), Ordering::Relaxed);
            let answer = answer?;
            // The server does not remember the end of a token of the program's: of two copies the second finds nothing.
            Ok(usize::try_from(answer.number) == Ok(whole) || owner.is_given && !answer.is_alone)
        }
        .boxed()
    }

    fn leave(self: Arc<Self>, wanted: &Wanted, fence: Option<i64>, after: Duration) {
        let (command, limit) = ending(&wanted.owner, fence, after);
        self.deliver(wanted, command, limit);
    }

    fn node(self: Arc<Self>) -> Option<Arc<Node>> {
        Some(self)
    }
}

impl Node {
    /// Sends an extension, and waits for replicas if it has to.
    pub(crate) async fn prolong(
        &self,
        until: Instant,
        owner: &Owner,
        by: Extension<'_>,
    ) -> Result<Answer, Error> {
        let (wanted, timeout) = (by.options.min_replicas, by.options.replica_timeout);
        // WAIT counts the replicas that have what its connection wrote last. An extension to the same millisecond would
        // write nothing, and any replica would do.
        let longer = Duration::from_millis(u64::from(wanted > 0));
        let (command, wait) = (owner.extend(by.ttl + longer, by.fence), protocol::replicas(wanted, timeout));
        let then = (wanted > 0).then_some((&wait, timeout));
        let call = Call { then, is_reserved: true, until, ..Call::new(owner.key(), &command) };
        let sent = Moment::now();
        let reply = self.send(call).await?;
        let number = protocol::number(&reply.value);
        let acknowledged = u32::try_from(protocol::number(&reply.then)).unwrap_or(0);
        if number > 0 && acknowledged < wanted {
            return Err(Error::TooFewReplicas { keys: owner.keys.clone(), wanted, acknowledged });
        }
        Ok(Answer { number, sent, is_alone: reply.is_alone })
    }
}
