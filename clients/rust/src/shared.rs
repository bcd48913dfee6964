//! What all requests and holds of one `Locks` share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::Cmd;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answers::{Failure, Kind};
use crate::commands::{self, Owner};
use crate::errors::Error;
use crate::hooks::Reporter;
use crate::options::{Mode, Options, Waiting, Wanted};
use crate::servers::{Answered, Server, Servers};
use crate::watchdog::Watchdog;

/// Of one server or of a quorum: the `site`.
pub struct Shared<S> {
    pub(crate) site: S,
    pub(crate) retry_for: Duration,
    pub(crate) retry_wait_for: Duration,
    pub(crate) reporter: Reporter,
    pub(crate) watchdog: Watchdog,
    /// Whoever waits is told that all is closed, and whoever comes later.
    pub(crate) closing: CancellationToken,
    /// What goes on when its caller has gone: releases and withdrawals.
    pub(crate) background: TaskTracker,
}

impl<S> Shared<S> {
    pub(crate) fn unless_closed(&self) -> Result<(), Error> {
        if self.closing.is_cancelled() { Err(Error::Closed) } else { Ok(()) }
    }

    /// The limit of a call from now on.
    pub(crate) fn limit(&self) -> Instant {
        Instant::now() + self.retry_for
    }

    /// Spawns on the runtime of the caller, or else on this one, which may have shut down meanwhile.
    pub(crate) fn spawn(&self, runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn_on(work, &Handle::try_current().unwrap_or_else(|_| runtime.clone()));
    }

    /// Waits for all work that goes on in the background.
    pub(crate) async fn finish(&self) {
        self.background.close();
        self.background.wait().await;
    }
}

/// The site of locks on one server, a primary that Sentinels name, or a cluster.
pub struct Single {
    pub(crate) servers: Servers,
    pub(crate) waiting: Waiting,
    /// The user may not use the channels.
    must_block: AtomicBool,
    /// That the user may release was asked: one key to write, one to read, several.
    may_release: [AtomicBool; 3],
    tags: AtomicU64,
}

impl Single {
    pub(crate) fn new(server: Server) -> Self {
        Self {
            servers: server.0,
            waiting: Waiting::default(),
            must_block: AtomicBool::default(),
            may_release: Default::default(),
            tags: AtomicU64::new(1),
        }
    }

    /// Whether waits block a connection each.
    pub(crate) fn must_block(&self) -> bool {
        self.waiting == Waiting::Block || self.must_block.load(Ordering::Relaxed)
    }

    /// Whether it was asked that the user may release such a hold.
    pub(crate) fn may_release(&self, owner: &Owner) -> &AtomicBool {
        match (owner.keys().len(), owner.wanted.mode) {
            (1, Mode::Write) => &self.may_release[0],
            (1, Mode::Read) => &self.may_release[1],
            _ => &self.may_release[2],
        }
    }

    /// A tag that no other acquisition of this process has or had.
    pub(crate) fn next_tag(&self) -> u64 {
        self.tags.fetch_add(1, Ordering::Relaxed)
    }
}

impl Shared<Single> {
    pub(crate) fn block_from_now_on(&self) {
        if !self.site.must_block.swap(true, Ordering::Relaxed) {
            self.reporter.blocks();
        }
    }

    /// What could not be released is not taken. Asked about a hold that nobody has.
    pub(crate) async fn ask_whether_it_can_be_released(
        &self,
        owner: &Owner,
        until: Instant,
    ) -> Result<(), Error> {
        self.unless_closed()?;
        let options = Options { token: None, ..Options::default() };
        let nobody = Owner::new(Arc::new(Wanted { options, ..(*owner.wanted).clone() }));
        match self.call(&nobody, &commands::may_release(&nobody), until).await {
            Err(error @ (Error::TimedOut { .. } | Error::ModuleNotLoaded)) => return Err(error),
            Err(Error::Redis(error)) if error.code() == Some("NOPERM") => return Err(error.into()),
            _ => {}
        }
        self.site.may_release(owner).store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Sends this until it is answered or this moment has come.
    pub(crate) async fn call(
        &self,
        owner: &Owner,
        commands: &[Cmd],
        until: Instant,
    ) -> Result<Answered, Error> {
        let (servers, closing) = (&self.site.servers, &self.closing);
        let answered = servers.until_answered(owner.first_key(), commands, until, closing).await;
        if closing.is_cancelled() {
            // What is sent after the connections were closed has opened one.
            servers.close();
        }
        answered.map_err(|failure| out_of_time(failure, owner.keys()))
    }
}

/// The error for the caller when its limit of time was over.
pub(crate) fn out_of_time(failure: Failure, keys: &Arc<[String]>) -> Error {
    match failure.kind {
        Kind::Final => failure.error,
        _ => Error::TimedOut { keys: keys.clone(), source: Some(Box::new(failure.error)) },
    }
}
