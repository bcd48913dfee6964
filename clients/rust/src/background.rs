//! What goes on when its caller has gone, releases and withdrawals, and that all is closed.

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::errors::Error;

/// Whether everything was closed: whoever waits is told, and whoever comes later.
#[derive(Default)]
pub(crate) struct Closing(watch::Sender<bool>);

impl Closing {
    pub(crate) fn close(&self) {
        self.0.send_replace(true);
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) fn unless_closed(&self) -> Result<(), Error> {
        if self.is_closed() { Err(Error::Closed) } else { Ok(()) }
    }

    /// Waits, or gives nothing when all is closed. Commands are not cut short by that.
    pub(crate) async fn unless_closing<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        let mut closed = self.0.subscribe();
        tokio::select! {
            biased;
            ended = wait => Some(ended),
            _ = closed.wait_for(|closed| *closed) => None,
        }
    }
}

#[derive(Default)]
pub(crate) struct Background(TaskTracker);

impl Background {
    /// Spawns on the runtime of the caller, or else on this one, which may have shut down meanwhile.
    pub(crate) fn spawn(&self, runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn_on(work, &Handle::try_current().unwrap_or_else(|_| runtime.clone()));
    }

    /// Waits for all work that has begun.
    pub(crate) async fn finish(&self) {
        self.0.close();
        self.0.wait().await;
    }
}
