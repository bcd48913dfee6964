//! The one task that renews all holds. When and how a hold is renewed is in `hold.rs`.

use std::sync::{Arc, Mutex, Weak};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

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
    /// Runs the renewals of a hold until they end. Starts the task, also when the runtime has shut down on which it was.
    /// The result is alive as long as the hold is renewed.
    pub(crate) fn add(&self, of_a_hold: impl Future<Output = ()> + Send + 'static) -> Weak<()> {
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
            of_a_hold.await;
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
