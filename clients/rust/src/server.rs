// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where the locks are, as the program says it.

use std::sync::Arc;
use std::time::Duration;

use crate::options::Poll;
use crate::transport::{Events, Transport};

/// Makes the transport, which tells what happens to channels.
pub(crate) type Make = Box<dyn FnOnce(Events) -> Arc<dyn Transport> + Send + Sync>;

/// Where the locks are: what the program has of the redis crate. See [`Locks::new`](crate::Locks::new).
pub struct Server {
    /// One server, a primary that Sentinel names, or a cluster; or those of a quorum.
    pub(crate) nodes: Vec<Make>,
    pub(crate) quorum: Option<Quorum>,
}

impl Server {
    pub(crate) fn over<T: Transport + 'static>(
        make: impl FnOnce(Events) -> T + Send + Sync + 'static,
    ) -> Self {
        Self { nodes: vec![Box::new(|events| Arc::new(make(events)))], quorum: None }
    }
}

/// Several independent servers: not replicas or nodes of one another. Their number should be odd. A lock counts while a
/// majority of them has it, so that it outlives the loss of a minority.
///
/// A quorum polls, because no server knows of the others. There is no one fencing token: where one is needed, use one server
/// with replicas.
///
/// ```no_run
/// # async fn example() -> Result<(), slock_client::Error> {
/// use slock_client::{Locks, Quorum};
/// use std::time::Duration;
///
/// let mut clients = Vec::new();
/// for port in 7001..=7005 {
///     clients.push(redis::Client::open(format!("redis://127.0.0.1:{port}/"))?);
/// }
/// let locks = Locks::new(Quorum::new(clients).node_timeout(Duration::from_millis(100)));
/// locks.write("job:42").run(|_| async { /* work */ }).await?;
/// # Ok(())
/// # }
/// ```
pub struct Quorum {
    nodes: Vec<Make>,
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) drift_factor: f64,
    pub(crate) fail_fast: bool,
    pub(crate) poll: Poll,
}

impl Quorum {
    /// A quorum of these servers, with the defaults of all options.
    pub fn new(servers: impl IntoIterator<Item = impl Into<Server>>) -> Self {
        let poll = Poll::exponential(Duration::from_millis(20), Duration::from_millis(250));
        let servers = servers.into_iter().map(Into::into).filter(|server| server.quorum.is_none());
        let nodes = servers.flat_map(|server| server.nodes).collect();
        Self { nodes, node_timeout: None, drift_factor: 0.01, fail_fast: false, poll }
    }

    /// How long one node is waited for. By default a twentieth of the ttl, at least 50 ms and at most `retry_for`. It is
    /// always less than the ttl.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = Some(timeout);
        self
    }

    /// Which part of the ttl does not count, because clocks run at different speeds. By default 0.01.
    pub fn drift_factor(mut self, factor: f64) -> Self {
        self.drift_factor = factor;
        self
    }

    /// Whether an attempt ends as soon as the majority is out of reach, without the replies of the other nodes.
    pub fn fail_fast(mut self, fail_fast: bool) -> Self {
        self.fail_fast = fail_fast;
        self
    }

    /// The pauses between attempts. By default 10 to 250 ms at random.
    pub fn poll(mut self, poll: Poll) -> Self {
        self.poll = poll;
        self
    }
}

impl From<Quorum> for Server {
    fn from(mut quorum: Quorum) -> Self {
        Self { nodes: std::mem::take(&mut quorum.nodes), quorum: Some(quorum) }
    }
}
