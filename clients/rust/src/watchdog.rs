//! The one task that renews all holds. When and how a hold is renewed is in `hold.rs`.

use std::sync::{Arc, Mutex, Weak};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

type Renewals = mpsc::UnboundedSender<BoxFuture<'static, ()>>;

/// The task runs from the first hold on, and ends with this or when all is closed.
#[derive(Default)]
pub(crate) struct Watchdog(Mutex<Option<Renewals>>);

impl Watchdog {
    /// Runs the renewals of a hold until they end. Starts the task, also when the runtime has shut down on which it was.
    /// The result is alive as long as the hold is renewed.
    pub(crate) fn add(
        &self,
        of_a_hold: impl Future<Output = ()> + Send + 'static,
        closing: &CancellationToken,
    ) -> Weak<()> {
        let alive = Arc::new(());
        let renewed = Arc::downgrade(&alive);
        let mut renewals = self.0.lock().expect("no panic while the watchdog is locked");
        if renewals.as_ref().is_none_or(Renewals::is_closed)
            && let Ok(runtime) = Handle::try_current()
        {
            let (started, added) = mpsc::unbounded_channel();
            runtime.spawn(closing.clone().run_until_cancelled_owned(run(added)));
            *renewals = Some(started);
        }
        if let Some(renewals) = &*renewals {
            // A runtime that shuts down just now renews nothing.
            let _ = renewals.send(Box::pin(async move {
                of_a_hold.await;
                drop(alive);
            }));
        }
        renewed
    }
}

async fn run(mut added: mpsc::UnboundedReceiver<BoxFuture<'static, ()>>) {
    let mut renewals = FuturesUnordered::new();
    loop {
        tokio::select! {
            renewal = added.recv() => match renewal {
                Some(renewal) => renewals.push(renewal),
                None => return,
            },
            Some(()) = renewals.next() => {}
        }
    }
}
