//! The ends of acquisitions that nobody waits for. Each is one command that may be repeated. It is sent until the server
//! answers it, with growing pauses, for the time in which the server would refuse the owner token.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use redis::Cmd;
use tokio::runtime::{Handle, Id};
use tokio::time::sleep_until;
use tracing::{Instrument, Span};

use crate::node::Node;
use crate::options::AFTER_ERRORS;
use crate::protocol::passes;
use crate::transport::Call;

/// How many ends of a runtime are on their way at once. During an outage the others cost their memory.
const MOST_ENDING: usize = 8;

/// The ends that have no answer yet, by the runtime that sends them.
#[derive(Default)]
pub(crate) struct Ends(Mutex<HashMap<Id, Queue>>);

#[derive(Default)]
struct Queue {
    ends: VecDeque<End>,
    /// Tasks that send them.
    working: usize,
}

struct End {
    key: String,
    command: Cmd,
    span: Span,
    due: Instant,
    until: Instant,
    failures: u32,
}

impl Ends {
    fn queues(&self) -> MutexGuard<'_, HashMap<Id, Queue>> {
        self.0.lock().expect("nothing panics while the queues are locked")
    }
}

/// A task that sends ends.
struct Worker {
    node: Arc<Node>,
    runtime: Id,
    is_over: bool,
}

impl Worker {
    /// The next end; nothing if there is none, and then the task is over.
    fn next(&mut self) -> Option<End> {
        let mut queues = self.node.ends.queues();
        let next = queues.get_mut(&self.runtime).and_then(|queue| queue.ends.pop_front());
        if next.is_none() {
            self.is_over = true;
            Self::leave(&mut queues, self.runtime);
        }
        next
    }

    /// The last one takes the queue with it: there are no ends, or the runtime has shut down.
    fn leave(queues: &mut HashMap<Id, Queue>, runtime: Id) {
        if let Some(queue) = queues.get_mut(&runtime) {
            queue.working -= 1;
            if queue.working == 0 {
                queues.remove(&runtime);
            }
        }
    }

    async fn run(mut self) {
        while let Some(mut end) = self.next() {
            let node = &self.node;
            if node.closed.run_until_cancelled(sleep_until(end.due.into())).await.is_none() {
                continue; // the program ends
            }
            let until = end.until.min(Instant::now() + node.settings.retry_for);
            let call = Call { is_reserved: true, ..Call::new(&end.key, &end.command, until) };
            let answer = node.number(call).instrument(end.span.clone()).await;
            end.due = Instant::now() + AFTER_ERRORS.pause(end.failures).unwrap_or_default();
            end.failures += 1;
            if answer.is_err_and(|error| passes(&error)) && end.due < end.until && !node.closed.is_cancelled()
            {
                node.ends.queues().entry(self.runtime).or_default().ends.push_back(end);
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.is_over {
            Self::leave(&mut self.node.ends.queues(), self.runtime);
        }
    }
}

impl Node {
    /// Sends a command in the background until it is answered, for a time.
    pub(crate) fn deliver(self: &Arc<Self>, runtime: &Handle, key: &str, command: Cmd, limit: Duration) {
        let (due, span) = (Instant::now(), Span::current());
        let end = End { key: key.to_owned(), command, span, due, until: due + limit, failures: 0 };
        let mut queues = self.ends.queues();
        let queue = queues.entry(runtime.id()).or_default();
        queue.ends.push_front(end);
        if queue.working < MOST_ENDING {
            queue.working += 1;
            drop(queues);
            let worker = Worker { node: self.clone(), runtime: runtime.id(), is_over: false };
            self.tracker.spawn_on(worker.run(), runtime);
        }
    }
}
