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
        Ok(Self(Servers::Cluster(Cluster::new(&nodes))))
    }
}

pub(crate) enum Servers {
    Single(Arc<Node>),
    Sentinel(Sentinel),
    Cluster(Cluster),
}

/// A node, and the connection on which its waits end.
pub(crate) type Listening = (Arc<Node>, Arc<Listener>);

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
    pub(crate) fn slot(&self, key: &str) -> u16 {
        match self {
            Servers::Cluster(_) => crate::slot::slot(key.as_bytes()),
            _ => 0,
        }
    }

    /// Sends this to the node that serves the key, and gives the answer that comes until this moment. `ASK` is
    /// followed here, `MOVED` by asking again.
    pub(crate) async fn send(&self, key: &str, commands: &[Cmd], until: Instant) -> Result<Value, Failure> {
        if let Servers::Single(node) = self {
            return node.send(commands, until).await;
        }
        // Boxed, so that the common case is small.
        Box::pin(async move {
            let node = in_time(until, self.node(key)).await?;
            match (node.send(commands, until).await, self) {
                (Err(Failure::Ask { address }), Servers::Cluster(cluster)) => {
                    cluster.at(&address, &node)?.send_asking(commands, until).await
                }
                (answer, _) => answer.map_err(|failure| self.note(key, &node, failure)),
            }
        })
        .await
    }

    /// Notes the node that `MOVED` names, so that the next command goes there.
    pub(crate) fn note(&self, key: &str, asked: &Node, failure: Failure) -> Failure {
        if let (Servers::Cluster(cluster), Failure::Moved { address }) = (self, &failure) {
            cluster.moved(self.slot(key), address, asked);
        }
        failure
    }

    /// Subscribes where the key is served; nothing when the user may not.
    pub(crate) async fn listen(&self, key: &str, until: Instant) -> Result<Option<Listening>, Failure> {
        let node = in_time(until, self.node(key)).await?;
        let subscribes = async { node.subscribe(self.slot(key), key).await.map_err(answers::failure) };
        match in_time(until, subscribes).await {
            Ok(listener) => Ok(Some((node, listener))),
            Err(failure) if failure.denies_to_subscribe() => Ok(None),
            Err(failure) => Err(self.note(key, &node, failure).before_sending()),
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
                    Servers::Cluster(cluster) => cluster.serving().await.map_err(answers::failure),
                    _ => self.node("").await.map(|node| vec![node]),
                }?;
                try_join_all(nodes.iter().map(|node| node.send(commands, until))).await
            };
            match in_time(until, ask).await {
                Ok(answers) => return Ok(answers),
                Err(failure) => attempts.pause_after(failure, self, true).await?,
            }
        }
    }

    /// Where to wait for this key when somebody waits already for one of its slot: at once, and asking nobody.
    pub(crate) fn listening(&self, key: &str) -> Option<Listening> {
        let slot = self.slot(key);
        let node = match self {
            Servers::Single(node) => node.clone(),
            Servers::Sentinel(sentinel) => sentinel.named.current()?.0,
            Servers::Cluster(cluster) => cluster.known(slot)?,
        };
        let listener = node.listening(slot)?;
        Some((node, listener))
    }

    /// The node that serves the key, as far as is known.
    pub(crate) async fn node(&self, key: &str) -> Result<Arc<Node>, Failure> {
        let node = match self {
            Servers::Single(node) => return Ok(node.clone()),
            Servers::Sentinel(sentinel) => sentinel.primary().await,
            Servers::Cluster(cluster) => cluster.node(self.slot(key)).await,
        };
        node.map_err(|error| answers::failure(error).before_sending())
    }

    /// Another node may serve by now: ask before the next command, unless the answer told which.
    pub(crate) fn doubt_after(&self, failure: &Failure) {
        match self {
            Servers::Sentinel(sentinel) => drop(sentinel.named.take()),
            Servers::Cluster(cluster) if !matches!(failure, Failure::Moved { .. }) => cluster.doubt(),
            _ => {}
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
        at.doubt_after(&failure);
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
