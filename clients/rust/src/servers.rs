//! How a command reaches the right server: one server, a primary that Sentinels name, or a cluster.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use redis::sentinel::SentinelClient;
use redis::{Client, Cmd, ErrorKind, IntoConnectionInfo, RedisError, Value};
use tokio_util::sync::CancellationToken;

use crate::answers::{self, Failure};
use crate::cached::Cached;
use crate::clock::Moment;
use crate::cluster::Cluster;
use crate::listener::Listener;
use crate::node::{Node, REPLY_TIMEOUT, in_time};
use crate::polling::Backoff;

/// Every call ends this long after its limit at the latest. An answer that is later counts as none.
pub(crate) const GRACE: Duration = Duration::from_millis(800);
/// More redirections than this in a row are no way but a circle.
const MOST_REDIRECTIONS: u32 = 8;

/// Where the locks of one [`Locks`](crate::Locks) are.
///
/// Made from a [`redis::Client`], from a [`SentinelClient`], or by [`Server::cluster`]. The library opens its
/// own connections, so that nothing is sent twice and no limit for replies cuts a wait short without its
/// knowledge.
pub struct Server(pub(crate) Servers);

impl From<Client> for Server {
    fn from(client: Client) -> Self {
        Self(Servers::Single(Arc::new(Node::new(client))))
    }
}

impl From<SentinelClient> for Server {
    /// The client must ask for the master.
    fn from(client: SentinelClient) -> Self {
        Self(Servers::Sentinel(Sentinel {
            client: tokio::sync::Mutex::new(client),
            named: Cached::default(),
            last: Mutex::default(),
        }))
    }
}

impl Server {
    /// A cluster, by some of its nodes. User, password and TLS are those of the first node given, as with
    /// `redis::cluster::ClusterClient`.
    ///
    /// # Errors
    ///
    /// When a node is no valid address, or none is given.
    pub fn cluster<T: IntoConnectionInfo>(nodes: impl IntoIterator<Item = T>) -> Result<Self, RedisError> {
        let nodes = nodes.into_iter().map(T::into_connection_info).collect::<Result<Vec<_>, _>>()?;
        if nodes.is_empty() {
            return Err((ErrorKind::InvalidClientConfig, "a cluster needs one node at least").into());
        }
        Ok(Self(Servers::Cluster(Cluster::new(nodes))))
    }
}

pub(crate) enum Servers {
    Single(Arc<Node>),
    Sentinel(Sentinel),
    Cluster(Cluster),
}

/// The answer to what may have been sent several times.
pub(crate) struct Answered {
    pub(crate) value: Value,
    /// When the copy was sent that was answered.
    pub(crate) sent: Moment,
    /// An earlier copy got no answer, so it may have been carried out.
    pub(crate) repeated: bool,
}

impl Servers {
    /// The slot that decides the channel and the node. Outside of a cluster one channel serves all keys.
    fn slot(&self, key: &str) -> u16 {
        match self {
            Servers::Cluster(_) => crate::slot::slot(key.as_bytes()),
            _ => 0,
        }
    }

    /// The way to the node that serves this key.
    pub(crate) fn route(&self, key: &str) -> Route<'_> {
        Route { servers: self, slot: self.slot(key), asking: None, redirections: 0 }
    }

    /// Sends this to the node that serves the key, and follows redirections. Gives the answer that comes until
    /// this moment.
    pub(crate) async fn send(&self, key: &str, commands: &[Cmd], until: Instant) -> Result<Value, Failure> {
        if let Servers::Single(node) = self {
            return node.send(commands, until).await;
        }
        // Boxed, so that the common case is small.
        Box::pin(self.send_by_route(key, commands, until)).await
    }

    async fn send_by_route(&self, key: &str, commands: &[Cmd], until: Instant) -> Result<Value, Failure> {
        let mut route = self.route(key);
        loop {
            let asking = route.asking.take();
            let is_asking = asking.is_some();
            let node = match asking {
                Some(node) => node,
                None => in_time(until, route.node()).await?,
            };
            let answer = if is_asking {
                node.send_asking(commands, until).await
            } else {
                node.send(commands, until).await
            };
            match answer {
                Err(failure) if route.follow(&failure, &node) => {}
                answer => return answer,
            }
        }
    }

    /// Sends this again until it is answered, or until this moment, or until all is closed. An error that
    /// lasts is an answer.
    pub(crate) async fn until_answered(
        &self,
        key: &str,
        commands: &[Cmd],
        until: Instant,
        closing: &CancellationToken,
    ) -> Result<Answered, Failure> {
        let mut attempts = Attempts::new(until);
        let mut repeated = false;
        loop {
            let sent = Moment::now();
            let failure = match self.send(key, commands, attempts.next_until()).await {
                Ok(value) => return Ok(Answered { value, sent, repeated }),
                Err(failure) => failure,
            };
            repeated |= matches!(failure, Failure::Unanswered(_));
            Box::pin(attempts.pause_after(failure, self, !closing.is_cancelled())).await?;
        }
    }

    /// The answers of all nodes that serve slots.
    pub(crate) async fn all_answers(&self, commands: &[Cmd], until: Instant) -> Result<Vec<Value>, Failure> {
        let mut attempts = Attempts::new(until);
        loop {
            let until = attempts.next_until();
            let ask = async {
                let nodes = match self {
                    Servers::Cluster(cluster) => cluster.serving().await,
                    _ => self.node(0).await.map(|node| vec![node]),
                };
                let nodes = nodes.map_err(answers::failure)?;
                try_join_all(nodes.iter().map(|node| node.send(commands, until))).await
            };
            match in_time(until, ask).await {
                Ok(answers) => return Ok(answers),
                Err(failure) => attempts.pause_after(failure, self, true).await?,
            }
        }
    }

    /// Where to wait for this key when somebody waits already for one of its slot: at once, and asking nobody.
    pub(crate) fn listening(&self, key: &str) -> Option<(Arc<Node>, Arc<Listener>)> {
        let slot = self.slot(key);
        let node = match self {
            Servers::Single(node) => node.clone(),
            Servers::Sentinel(sentinel) => sentinel.named.current()?.0,
            Servers::Cluster(cluster) => cluster.known(slot)?,
        };
        let listener = node.listening(slot)?;
        Some((node, listener))
    }

    /// The node that serves the slot, as far as is known.
    async fn node(&self, slot: u16) -> Result<Arc<Node>, RedisError> {
        match self {
            Servers::Single(node) => Ok(node.clone()),
            Servers::Sentinel(sentinel) => sentinel.primary().await,
            Servers::Cluster(cluster) => cluster.node(slot).await,
        }
    }

    /// Another node may serve by now: ask before the next command.
    pub(crate) fn doubt(&self) {
        match self {
            Servers::Single(_) => {}
            Servers::Sentinel(sentinel) => drop(sentinel.named.take()),
            Servers::Cluster(cluster) => cluster.doubt(),
        }
    }

    /// Ends all waits that listen.
    pub(crate) fn end_waits(&self) {
        self.known_nodes().iter().for_each(|node| node.end_listening());
    }

    pub(crate) fn close(&self) {
        self.known_nodes().iter().for_each(|node| node.close());
    }

    pub(crate) fn known_nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Servers::Single(node) => vec![node.clone()],
            Servers::Sentinel(sentinel) => sentinel.last().iter().cloned().collect(),
            Servers::Cluster(cluster) => cluster.known_nodes(),
        }
    }
}

/// What is tried again and again until a moment.
struct Attempts {
    until: Instant,
    backoff: Backoff,
}

impl Attempts {
    fn new(until: Instant) -> Self {
        Self { until, backoff: Backoff::new() }
    }

    /// How long the next attempt may take.
    fn next_until(&self) -> Instant {
        (self.until + GRACE).min(Instant::now() + REPLY_TIMEOUT)
    }

    /// The failure again when it lasts, or there is no time left.
    async fn pause_after(&mut self, failure: Failure, at: &Servers, goes_on: bool) -> Result<(), Failure> {
        if let Failure::Final(_) = failure {
            return Err(failure);
        }
        at.doubt();
        let left = self.until.saturating_duration_since(Instant::now());
        if !goes_on || left.is_zero() {
            return Err(failure);
        }
        // The last attempt is made at the end itself.
        tokio::time::sleep(self.backoff.next().min(left)).await;
        Ok(())
    }
}

/// The failure where nobody answered in time.
pub(crate) fn no_answer() -> Failure {
    Failure::Unanswered(answers::no_answer("the server"))
}

/// Follows the redirections of a cluster.
pub(crate) struct Route<'a> {
    servers: &'a Servers,
    slot: u16,
    asking: Option<Arc<Node>>,
    redirections: u32,
}

impl Route<'_> {
    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    pub(crate) async fn node(&self) -> Result<Arc<Node>, Failure> {
        self.servers.node(self.slot).await.map_err(|error| answers::failure(error).before_sending())
    }

    /// Subscribes where the key is served; nothing when the user may not.
    pub(crate) async fn listen(
        &mut self,
        key: &str,
        until: Instant,
    ) -> Result<Option<(Arc<Node>, Arc<Listener>)>, Failure> {
        loop {
            let node = in_time(until, self.node()).await?;
            let subscribes = async { node.subscribe(self.slot, key).await.map_err(answers::failure) };
            match in_time(until, subscribes).await {
                Ok(listener) => return Ok(Some((node, listener))),
                Err(failure) if self.follow(&failure, &node) => {}
                Err(failure) if failure.denies_to_subscribe() => return Ok(None),
                Err(failure) => return Err(failure.before_sending()),
            }
        }
    }

    /// Gives whether to ask again at once, at another node.
    pub(crate) fn follow(&mut self, failure: &Failure, asked: &Arc<Node>) -> bool {
        let Servers::Cluster(cluster) = self.servers else { return false };
        self.redirections += 1;
        if self.redirections > MOST_REDIRECTIONS {
            self.servers.doubt();
            return false;
        }
        match failure {
            Failure::Moved { address } => cluster.moved(self.slot, address, asked),
            Failure::Ask { address } => {
                self.asking = cluster.at(address, asked);
                self.asking.is_some()
            }
            _ => false,
        }
    }
}

pub(crate) struct Sentinel {
    client: tokio::sync::Mutex<SentinelClient>,
    /// The primary, until it is in doubt.
    named: Cached<Arc<Node>>,
    /// The one that was named last: its connections stay when it is named again.
    last: Mutex<Option<Arc<Node>>>,
}

impl Sentinel {
    fn last(&self) -> MutexGuard<'_, Option<Arc<Node>>> {
        self.last.lock().expect("no panic while the primary is locked")
    }

    async fn primary(&self) -> Result<Arc<Node>, RedisError> {
        Ok(self.named.get(self.ask()).await?.0)
    }

    async fn ask(&self) -> Result<Arc<Node>, RedisError> {
        let mut client = self.client.lock().await;
        let named = tokio::time::timeout(REPLY_TIMEOUT, client.async_get_client());
        let named = named.await.map_err(|_| answers::no_answer("the Sentinels"))??;
        let address = named.get_connection_info().addr().to_string();
        let mut last = self.last();
        if let Some(node) = last.as_ref().filter(|node| node.address() == address) {
            return Ok(node.clone());
        }
        let node = Arc::new(Node::new(named));
        if let Some(former) = last.replace(node.clone()) {
            former.close();
        }
        Ok(node)
    }
}
