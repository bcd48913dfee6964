//! Where the locks are: one server, a primary that Sentinels name, or a cluster.

use std::sync::{Arc, Mutex};

use redis::sentinel::SentinelClient;
use redis::{Client, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError};

use crate::answer;
use crate::cluster::Cluster;
use crate::node::{Node, REPLY_TIMEOUT};

/// Where the locks of one [`Locks`](crate::Locks) are.
///
/// Made from a [`redis::Client`], from a [`SentinelClient`], or by [`Server::cluster`]. The library opens its
/// own connections, so that nothing is sent twice and no limit for replies cuts a wait short without its
/// knowledge.
pub struct Server(Kind);

enum Kind {
    Single(Client),
    Sentinel(Box<SentinelClient>),
    Cluster(Vec<ConnectionInfo>),
}

impl From<Client> for Server {
    fn from(client: Client) -> Self {
        Self(Kind::Single(client))
    }
}

impl From<SentinelClient> for Server {
    /// The client must ask for the master.
    fn from(client: SentinelClient) -> Self {
        Self(Kind::Sentinel(Box::new(client)))
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
        Ok(Self(Kind::Cluster(nodes)))
    }

    pub(crate) fn open(self) -> Servers {
        match self.0 {
            Kind::Single(client) => Servers::Single(Arc::new(Node::new(client))),
            Kind::Sentinel(client) => Servers::Sentinel(Sentinel {
                client: tokio::sync::Mutex::new(*client),
                state: Mutex::default(),
            }),
            Kind::Cluster(nodes) => Servers::Cluster(Cluster::new(nodes)),
        }
    }
}

pub(crate) enum Servers {
    Single(Arc<Node>),
    Sentinel(Sentinel),
    Cluster(Cluster),
}

pub(crate) struct Sentinel {
    client: tokio::sync::Mutex<SentinelClient>,
    state: Mutex<Master>,
}

#[derive(Default)]
struct Master {
    node: Option<Arc<Node>>,
    doubtful: bool,
}

impl Servers {
    /// The slot that decides the channel and the node. Outside of a cluster one channel serves all keys.
    pub(crate) fn slot(&self, key: &str) -> u16 {
        match self {
            Servers::Cluster(_) => crate::slot::slot(key.as_bytes()),
            _ => 0,
        }
    }

    /// The node that serves the slot, as far as is known.
    pub(crate) async fn node(&self, slot: u16) -> Result<Arc<Node>, RedisError> {
        match self {
            Servers::Single(node) => Ok(node.clone()),
            Servers::Sentinel(sentinel) => sentinel.master().await,
            Servers::Cluster(cluster) => cluster.node(slot).await,
        }
    }

    /// The node at an address that a server named.
    pub(crate) fn at(&self, address: &str, asked: &Arc<Node>) -> Option<Arc<Node>> {
        match self {
            Servers::Cluster(cluster) => cluster.at(address, asked),
            _ => None,
        }
    }

    /// A server said that the slot has moved to this address. Gives whether that can be followed.
    pub(crate) fn moved(&self, slot: u16, address: &str, asked: &Arc<Node>) -> bool {
        match self {
            Servers::Cluster(cluster) => cluster.moved(slot, address, asked),
            _ => false,
        }
    }

    /// Another node may serve by now: ask before the next command.
    pub(crate) fn doubt(&self) {
        match self {
            Servers::Single(_) => {}
            Servers::Sentinel(sentinel) => sentinel.state().doubtful = true,
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

    fn known_nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Servers::Single(node) => vec![node.clone()],
            Servers::Sentinel(sentinel) => sentinel.state().node.iter().cloned().collect(),
            Servers::Cluster(cluster) => cluster.known_nodes(),
        }
    }
}

impl Sentinel {
    fn state(&self) -> std::sync::MutexGuard<'_, Master> {
        self.state.lock().expect("no panic while the master is locked")
    }

    fn known(&self) -> Option<Arc<Node>> {
        let state = self.state();
        state.node.as_ref().filter(|_| !state.doubtful).cloned()
    }

    async fn master(&self) -> Result<Arc<Node>, RedisError> {
        if let Some(node) = self.known() {
            return Ok(node);
        }
        let mut client = self.client.lock().await;
        if let Some(node) = self.known() {
            return Ok(node);
        }
        let named = tokio::time::timeout(REPLY_TIMEOUT, client.async_get_client());
        let named = named.await.map_err(|_| answer::no_answer("the Sentinels"))??;
        let mut state = self.state();
        state.doubtful = false;
        let address = named.get_connection_info().addr().to_string();
        match &state.node {
            Some(node) if node.address() == address => Ok(node.clone()),
            _ => {
                let node = Arc::new(Node::new(named));
                if let Some(former) = state.node.replace(node.clone()) {
                    former.close();
                }
                Ok(node)
            }
        }
    }
}
