//! Where holds are kept: at one server, or at the nodes of a quorum. It has what is done at one server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::Cmd;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::acquisition::{Acquisition, Grant};
use crate::errors::Error;
use crate::hooks::Reporter;
use crate::node::{Answer, Extension, Node, counted};
use crate::options::Settings;
use crate::protocol::{Owner, REFUSED_FOR, Wanted};
use crate::transport::Call;
use crate::watchdog::Holds;

/// What all clones of a `Locks` and all its holds share.
pub(crate) struct Shared {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) holds: Arc<Holds>,
    /// Done when `close` begins.
    pub(crate) closing: CancellationToken,
    /// Acquisitions and ends that are under way.
    pub(crate) tracker: TaskTracker,
}

impl Shared {
    pub(crate) fn unless_closed(&self) -> Result<(), Error> {
        if self.closing.is_cancelled() { Err(Error::Closed) } else { Ok(()) }
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
