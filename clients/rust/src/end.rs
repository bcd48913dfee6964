//! The ends of acquisitions that nobody waits for. Each is one command that may be repeated. It is sent until the server
//! answers it, with growing pauses, for the time in which the server would refuse the owner token.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Cmd;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tracing::Instrument;

use crate::errors::passes;
use crate::node::Node;
use crate::options::AFTER_ERRORS;
use crate::protocol::Wanted;
use crate::transport::{Call, SILENCE};

impl Node {
    /// Sends a command in the background until it is answered, for a time.
    pub(crate) fn deliver(self: &Arc<Self>, wanted: &Wanted, command: Cmd, limit: Duration) {
        let (node, key, end) = (self.clone(), wanted.owner.key().to_owned(), Instant::now() + limit);
        let deliver = async move {
            for failures in 0.. {
                // For no longer than a command: another runtime may stand still with one.
                let turn = timeout(SILENCE, node.ends.acquire()).await;
                let until = end.min(Instant::now() + node.settings.retry_for);
                let call = Call { is_reserved: true, until, ..Call::new(&key, &command) };
                let answer = Box::pin(node.number(call)).await; // so that those who wait are small
                drop(turn);
                let pause = AFTER_ERRORS.pause(failures).unwrap_or_default();
                if !answer.is_err_and(|error| passes(&error)) || Instant::now() + pause > end {
                    break;
                }
                sleep(pause).await;
            }
        };
        let closed = self.closed.clone();
        let deliver = async move { closed.run_until_cancelled(deliver).await };
        // The runtime that acquired may have shut down.
        let runtime = Handle::try_current().unwrap_or_else(|_| wanted.runtime.clone());
        self.tracker.spawn_on(deliver.instrument(wanted.span.clone()), &runtime);
    }
}
