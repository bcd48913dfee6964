//! What goes on when its caller has gone, releases and withdrawals, and that all is closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::errors::Error;

/// Whether everything was closed: whoever waits is told, and whoever comes later.
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

    /// Ends when all is closed.
    pub(crate) async fn closed(&self) {
        let mut told = std::pin::pin!(self.told.notified());
        told.as_mut().enable();
        if !self.is_closed() {
            told.await;
        }
    }
}

#[derive(Default)]
pub(crate) struct Background {
    running: Arc<Running>,
}

#[derive(Default)]
struct Running {
    count: AtomicUsize,
    ended: Notify,
}

/// Counts one piece of work, also when its task is dropped by a runtime that shuts down.
struct Counted(Arc<Running>);

impl Counted {
    fn new(running: &Arc<Running>) -> Self {
        running.count.fetch_add(1, Ordering::AcqRel);
        Self(running.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.ended.notify_waiters();
    }
}

impl Background {
    /// Spawns on the runtime of the caller, or else on this one, which may have shut down meanwhile.
    pub(crate) fn spawn(&self, runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
        let counted = Counted::new(&self.running);
        let work = async move {
            work.await;
            drop(counted);
        };
        Handle::try_current().unwrap_or_else(|_| runtime.clone()).spawn(work);
    }

    /// Waits for all work that has begun.
    pub(crate) async fn finish(&self) {
        loop {
            let mut ended = std::pin::pin!(self.running.ended.notified());
            ended.as_mut().enable();
            if self.running.count.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }
}
