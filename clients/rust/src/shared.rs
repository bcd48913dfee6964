//! What all parts of a `Locks` share.

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::errors::{Error, Result};
use crate::hooks::Reporter;
use crate::options::Settings;

pub(crate) struct Shared {
    /// Of the `Locks` in this process.
    pub(crate) id: u64,
    pub(crate) settings: Settings,
    pub(crate) reporter: Reporter,
    /// Done when `close` begins.
    pub(crate) closing: CancellationToken,
    /// Done when `close` has ended.
    pub(crate) closed: CancellationToken,
    /// Acquisitions and ends that are under way, for which `close` waits.
    pub(crate) tracker: TaskTracker,
}

impl Shared {
    pub(crate) fn unless_closed(&self) -> Result<()> {
        if self.closing.is_cancelled() { Err(Error::Closed) } else { Ok(()) }
    }
}
