//! What all requests and holds of one `Locks` share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::answers::Failure;
use crate::background::{Background, Closing};
use crate::commands::{self, Owner};
use crate::errors::Error;
use crate::hooks::Reporter;
use crate::node::Words;
use crate::options::{Mode, Waiting};
use crate::servers::{Answered, Servers};
use crate::watchdog::Watchdog;

pub(crate) struct Shared {
    pub(crate) servers: Servers,
    pub(crate) waiting: Waiting,
    pub(crate) retry_for: Duration,
    pub(crate) retry_wait_for: Duration,
    pub(crate) reporter: Reporter,
    pub(crate) watchdog: Watchdog,
    pub(crate) closing: Closing,
    pub(crate) background: Background,
    must_block: AtomicBool,
    /// That the user may release was asked: one key to write, one to read, several.
    may_release: [AtomicBool; 3],
    tags: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        servers: Servers,
        waiting: Waiting,
        retry_for: Duration,
        retry_wait_for: Duration,
        reporter: Reporter,
    ) -> Self {
        Self {
            must_block: AtomicBool::new(waiting == Waiting::Block),
            servers,
            waiting,
            retry_for,
            retry_wait_for,
            reporter,
            watchdog: Watchdog::default(),
            closing: Closing::default(),
            background: Background::default(),
            may_release: Default::default(),
            tags: AtomicU64::new(1),
        }
    }

    /// Whether waits block a connection each.
    pub(crate) fn must_block(&self) -> bool {
        self.must_block.load(Ordering::Relaxed)
    }

    pub(crate) fn block_from_now_on(&self) {
        if !self.must_block.swap(true, Ordering::Relaxed) {
            self.reporter.blocks();
        }
    }

    /// Whether it was asked that the user may release such a hold.
    pub(crate) fn may_release(&self, owner: &Owner, mode: Mode) -> &AtomicBool {
        match (owner.keys.len(), mode) {
            (1, Mode::Write) => &self.may_release[0],
            (1, Mode::Read) => &self.may_release[1],
            _ => &self.may_release[2],
        }
    }

    /// What could not be released is not taken. Asked about a hold that nobody has.
    pub(crate) async fn ask_whether_it_can_be_released(
        &self,
        owner: &Owner,
        mode: Mode,
        until: Instant,
    ) -> Result<(), Error> {
        self.closing.unless_closed()?;
        let nobody = Owner::new(owner.keys.clone(), None);
        match self.call(&nobody, Words::Several(&commands::may_release(&nobody, mode)), until).await {
            Err(error @ (Error::TimedOut { .. } | Error::ModuleNotLoaded)) => return Err(error),
            Err(Error::Redis(error)) if error.code() == Some("NOPERM") => return Err(error.into()),
            _ => {}
        }
        self.may_release(owner, mode).store(true, Ordering::Relaxed);
        Ok(())
    }

    /// A tag that no other acquisition of this process has or had.
    pub(crate) fn next_tag(&self) -> u64 {
        self.tags.fetch_add(1, Ordering::Relaxed)
    }

    /// The limit of a call from now on.
    pub(crate) fn limit(&self) -> Instant {
        Instant::now() + self.retry_for
    }

    /// Sends this until it is answered or this moment has come.
    pub(crate) async fn call(
        &self,
        owner: &Owner,
        words: Words<'_>,
        until: Instant,
    ) -> Result<Answered, Error> {
        let goes_on = || !self.closing.is_closed();
        let answered = self.servers.until_answered(owner.first_key(), words, until, goes_on).await;
        if self.closing.is_closed() {
            // What is sent after the connections were closed has opened one.
            self.servers.close();
        }
        answered.map_err(|failure| out_of_time(failure, &owner.keys))
    }
}

/// The error for the caller when its limit of time was over.
pub(crate) fn out_of_time(failure: Failure, keys: &Arc<[String]>) -> Error {
    match failure {
        Failure::Final(error) => error,
        other => Error::TimedOut { keys: keys.clone(), source: Some(Box::new(other.into_error())) },
    }
}
