//! What all clones of a `Locks` and all its holds share.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::errors::{Error, Result};
use crate::hooks::Reporter;
use crate::options::Settings;
use crate::quorum::Servers;

pub(crate) struct Shared {
    /// Of the `Locks` in this process.
    pub(crate) id: u64,
    pub(crate) servers: Arc<Servers>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) reporter: Arc<Reporter>,
    /// Done when `close` begins.
    pub(crate) closing: CancellationToken,
    /// Acquisitions and ends that are under way.
    pub(crate) tracker: TaskTracker,
}

impl Shared {
    pub(crate) fn unless_closed(&self) -> Result<()> {
        if self.closing.is_cancelled() { Err(Error::Closed) } else { Ok(()) }
    }
}
