// SPDX-License-Identifier: MIT OR Apache-2.0

//! What all parts of a `Locks` share.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::errors::{Error, Result};
use crate::hooks::Reporter;

pub(crate) struct Shared {
    pub(crate) prefix: String,
    pub(crate) retry_for: Duration,
    pub(crate) retry_wait_for: Duration,
    pub(crate) reporter: Reporter,
    /// Done when `close` begins.
    pub(crate) closing: CancellationToken,
    /// Done when `close` has ended.
    pub(crate) closed: CancellationToken,
    /// Acquisitions and ends that are under way, for which `close` waits.
    pub(crate) tracker: TaskTracker,
}

impl Shared {
    pub(crate) fn new() -> Self {
        let (retry_for, retry_wait_for) = (Duration::from_secs(3), Duration::from_secs(60));
        let (reporter, tracker) = (Reporter(Box::new(())), TaskTracker::new());
        let (prefix, closing, closed) = Default::default();
        Self { prefix, retry_for, retry_wait_for, reporter, closing, closed, tracker }
    }

    pub(crate) fn unless_closed(&self) -> Result<()> {
        if self.closing.is_cancelled() { Err(Error::Closed) } else { Ok(()) }
    }
}
