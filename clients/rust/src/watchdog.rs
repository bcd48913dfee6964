//! The one task that renews all holds. It does not know how a hold is renewed.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// How long one attempt may take. So each hold has several before its validity ends.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(2);

/// A hold that can be renewed.
pub(crate) trait Renew: Send + Sync + 'static {
    /// How long until the next renewal, and the ttl; nothing when the hold has ended.
    fn next_renewal(&self) -> Option<(Duration, Duration)>;

    /// Renews it once, within this time. A failure is told to the hooks.
    fn renew(self: Arc<Self>, limit: Duration) -> impl Future<Output = ()> + Send;

    /// Ends with the hold.
    fn ended(&self) -> impl Future<Output = ()> + Send;
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
    /// Renews this hold until it ends. Starts the task, also when the runtime has shut down on which it was.
    /// The result is alive as long as the hold is renewed.
    pub(crate) fn add(&self, hold: Arc<impl Renew>) -> Weak<()> {
        let alive = Arc::new(());
        let renewed = Arc::downgrade(&alive);
        let mut state = self.0.lock().expect("no panic while the watchdog is locked");
        let renewals = match (&*state, Handle::try_current()) {
            (State::Started(renewals), _) if !renewals.is_closed() => renewals.clone(),
            (State::NotStarted | State::Started(_), Ok(runtime)) => {
                let (renewals, added) = mpsc::unbounded_channel();
                runtime.spawn(run(added));
                *state = State::Started(renewals.clone());
                renewals
            }
            _ => return renewed,
        };
        // A runtime that shuts down just now renews nothing.
        let _ = renewals.send(Box::pin(async move {
            tokio::select! {
                biased;
                () = hold.ended() => {}
                () = renew_again_and_again(&hold) => {}
            }
            drop(alive);
        }));
        renewed
    }

    /// Nothing is renewed any more, also what is added later.
    pub(crate) fn stop(&self) {
        *self.0.lock().expect("no panic while the watchdog is locked") = State::Stopped;
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

/// The base library puts what is sent at once into one write. So holds that are due together are renewed by
/// one pipeline.
async fn renew_again_and_again(hold: &Arc<impl Renew>) {
    while let Some((pause, ttl)) = hold.next_renewal() {
        tokio::time::sleep(pause).await;
        hold.clone().renew(LONGEST_ATTEMPT.min(ttl / 5)).await;
    }
}
