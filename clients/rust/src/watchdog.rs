//! The one task that renews all holds. It does not know how a hold is renewed.

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::errors::Error;
use crate::held::Held;
use crate::lease::Phase;

/// How long one attempt may take. So each hold has several before its validity ends.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(2);

/// A hold that can be renewed.
pub(crate) trait Renew: Send + Sync + 'static {
    fn held(&self) -> &Held;

    /// Renews it once, within this time. The lease is told of an answer.
    fn renew(self: Arc<Self>, limit: Duration) -> impl Future<Output = Result<(), Error>> + Send;
}

type Renewals = mpsc::UnboundedSender<BoxFuture<'static, ()>>;

/// The task runs from the first hold on, and ends with this.
#[derive(Default)]
pub(crate) struct Watchdog(Mutex<State>);

#[derive(Default)]
enum State {
    #[default]
    NotStarted,
    Started(Renewals),
    Stopped,
}

impl Watchdog {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic while the watchdog is locked")
    }

    /// Renews this hold until it ends. Starts the task, also when the runtime has shut down on which it was.
    /// The result is alive as long as the hold is renewed.
    pub(crate) fn add(&self, hold: Arc<impl Renew>) -> Weak<()> {
        let alive = Arc::new(());
        let renewed = Arc::downgrade(&alive);
        let renewal: BoxFuture<'static, ()> = Box::pin(async move {
            keep(&hold).await;
            drop(alive);
        });
        let mut state = self.state();
        let renewal = match &*state {
            State::Stopped => return renewed,
            State::NotStarted => renewal,
            State::Started(renewals) => match renewals.send(renewal) {
                Ok(()) => return renewed,
                Err(unsent) => unsent.0,
            },
        };
        if let Ok(runtime) = Handle::try_current() {
            let (renewals, added) = mpsc::unbounded_channel();
            runtime.spawn(run(added));
            let _ = renewals.send(renewal);
            *state = State::Started(renewals);
        }
        renewed
    }

    /// Nothing is renewed any more, also what is added later.
    pub(crate) fn stop(&self) {
        *self.state() = State::Stopped;
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

async fn keep(hold: &Arc<impl Renew>) {
    let held = hold.held();
    tokio::select! {
        biased;
        _ = held.end() => {}
        () = renew_again_and_again(hold) => {}
    }
}

/// The base library puts what is sent at once into one write. So holds that are due together are renewed by
/// one pipeline.
async fn renew_again_and_again(hold: &Arc<impl Renew>) {
    let held = hold.held();
    loop {
        let (phase, pause, ttl) = held.update(|lease, now| (lease.phase, lease.next_renewal(now), lease.ttl));
        if phase != Phase::Held {
            return;
        }
        tokio::time::sleep(pause).await;
        if let Err(error) = hold.clone().renew(LONGEST_ATTEMPT.min(ttl / 5)).await {
            held.renewal_failed(error);
        }
    }
}
