//! That locks were closed: whoever waits is told, and whoever comes later.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::Error;

#[derive(Default)]
pub(crate) struct Closing {
    closed: AtomicBool,
    told: Notify,
}

impl Closing {
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.told.notify_waiters();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn unless_closed(&self) -> Result<(), Error> {
        if self.is_closed() { Err(Error::Closed) } else { Ok(()) }
    }

    /// Ends when the locks are closed.
    pub(crate) async fn closed(&self) {
        let mut told = std::pin::pin!(self.told.notified());
        told.as_mut().enable();
        if !self.is_closed() {
            told.await;
        }
    }
}
