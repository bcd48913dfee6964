//! How a command reaches the right server: one server, a primary that Sentinels name, or a cluster.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use futures_util::future::{select_ok, try_join_all};
use redis::sentinel::SentinelClient;
use redis::{
    Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError, ServerErrorKind,
    Value,
};

use crate::answers::{Failure, Reply};
use crate::cached::Cached;
use crate::cluster;
use crate::connection::{Noted, REPLY_TIMEOUT};
use crate::node::{Node, in_time};
use crate::slot::slot;

const SLOTS: usize = 16384;

/// Where the locks of one [`Locks`](crate::Locks) are.
///
/// Made from a [`redis::Client`], from a [`SentinelClient`], or by [`Server::cluster`]. The library opens its
/// own connections, so that nothing is sent twice and no limit for replies cuts a wait short without its
/// knowledge.
pub struct Server {
    source: Source,
    map: Mutex<Map>,
    /// Filled while the map is not in doubt. Whoever needs the map reads it, and the others wait for that.
    known: Cached<()>,
}

impl From<Client> for Server {
    fn from(client: Client) -> Self {
        let server = Self::new(Source::Single);
        server.map().serve_all(Node::new(&client));
        server
    }
}

impl From<SentinelClient> for Server {
    /// The client must ask for the master.
    fn from(client: SentinelClient) -> Self {
        Self::new(Source::Sentinel(tokio::sync::Mutex::new(client)))
    }
}

/// Who tells which server is the right one.
enum Source {
    /// There is only one.
    Single,
    /// They name the primary.
    Sentinel(tokio::sync::Mutex<SentinelClient>),
    /// Its nodes. User, password and TLS of all are those of the first one.
    Cluster(ConnectionInfo),
}

#[derive(Default)]
struct Map {
    /// Who serves each slot: all in slot 0 outside of a cluster.
    slots: Vec<Option<Arc<Node>>>,
    /// All that are known, by their addresses.
    nodes: HashMap<String, Arc<Node>>,
}

impl Map {
    fn serve_all(&mut self, node: Node) {
        let node = Arc::new(node);
        self.slots = vec![Some(node.clone())];
        self.nodes.insert(node.address().to_string(), node);
    }

    /// The node of a cluster with this address, new or known.
    fn node_at(&mut self, settings: &ConnectionInfo, address: ConnectionAddr) -> Arc<Node> {
        let name = address.to_string();
        let new = || {
            let info = settings.clone().set_addr(address);
            Arc::new(Node::new(&Client::open(info).expect("the settings are those of the first node")))
        };
        self.nodes.entry(name).or_insert_with(new).clone()
    }
}

impl Server {
    /// A cluster, by some of its nodes. User, password and TLS are those of the first node given, as with
    /// `redis::cluster::ClusterClient`.
    ///
    /// # Errors
    ///
    /// When a node is no valid address with a host and a port, or none is given.
    pub fn cluster<T: IntoConnectionInfo>(nodes: impl IntoIterator<Item = T>) -> Result<Self, RedisError> {
        let invalid = |text| Err((ErrorKind::InvalidClientConfig, text).into());
        let nodes = nodes.into_iter().map(T::into_connection_info).collect::<Result<Vec<_>, _>>()?;
        let [settings, ..] = &nodes[..] else {
            return invalid("a cluster needs one node at least");
        };
        let server = Self::new(Source::Cluster(settings.clone()));
        for node in &nodes {
            let (ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }) = node.addr()
            else {
                return invalid("a node of a cluster has a host and a port");
            };
            server.map().node_at(settings, cluster::address_at(settings.addr(), host, *port));
        }
        Ok(server)
    }

    fn new(source: Source) -> Self {
        Self { source, map: Mutex::default(), known: Cached::new() }
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().expect("no panic while the map of slots is locked")
    }

    /// The slot that decides the channel and the node. Outside of a cluster one channel serves all keys.
    fn slot(&self, key: &str) -> u16 {
        if let Source::Cluster(_) = self.source { slot(key) } else { 0 }
    }

    fn serving(&self, slot: u16) -> Option<Arc<Node>> {
        self.map().slots.get(usize::from(slot))?.clone()
    }

    /// The node that serves the key, as far as is known.
    pub(crate) async fn node(self: &Arc<Self>, key: &str) -> Result<Arc<Node>, Failure> {
        self.known.get(|| self.clone().find()).await?;
        self.serving(self.slot(key)).ok_or_else(|| {
            let error = (ErrorKind::ClusterConnectionNotFound, "no node of the cluster serves the slot");
            RedisError::from(error).into()
        })
    }

    /// Asks who serves what. All nodes of a cluster are asked at once and the first answer counts, so that a
    /// node that does not answer keeps nobody waiting.
    async fn find(self: Arc<Self>) -> Result<(), Failure> {
        match &self.source {
            Source::Single => {}
            Source::Sentinel(client) => {
                let mut client = client.lock().await;
                let named = tokio::time::timeout(REPLY_TIMEOUT, client.async_get_client()).await;
                let node = Node::new(&named.map_err(|_| Failure::no_answer("the Sentinels"))??);
                let mut map = self.map();
                // The connections stay when the primary is named again.
                if !map.nodes.contains_key(&node.address().to_string()) {
                    map.nodes.drain().for_each(|(_, former)| former.close());
                    map.serve_all(node);
                }
            }
            Source::Cluster(settings) => {
                let nodes = self.nodes();
                let (ranges, _) = select_ok(nodes.iter().map(|node| Box::pin(cluster::ranges(node)))).await?;
                let mut map = self.map();
                map.slots = vec![None; SLOTS];
                for (range, address) in ranges {
                    let node = map.node_at(settings, address);
                    if let Some(slots) = map.slots.get_mut(range) {
                        slots.fill(Some(node));
                    }
                }
            }
        }
        Ok(())
    }

    /// Another node may serve by now: ask before the next command, unless the answer told which.
    pub(crate) fn doubt_after(&self, failure: &Failure) {
        if failure.redirects(ServerErrorKind::Moved).is_none() {
            self.known.discard_if(|()| true);
        }
    }

    /// Notes the node that `MOVED` names, so that the next command goes there.
    pub(crate) fn redirected(&self, key: &str, asked: &Node, failure: Failure) -> Failure {
        if let Some(node) = self.named_by(&failure, ServerErrorKind::Moved, asked)
            && let Some(serving) = self.map().slots.get_mut(usize::from(self.slot(key)))
        {
            *serving = Some(node);
        }
        failure
    }

    fn named_by(&self, failure: &Failure, by: ServerErrorKind, asked: &Node) -> Option<Arc<Node>> {
        let Source::Cluster(settings) = &self.source else { return None };
        let address = cluster::redirected_to(failure.redirects(by)?, asked.address())?;
        Some(self.map().node_at(settings, address))
    }

    /// Sends this to the node that serves the key, and gives the answer that comes until this moment. `ASK` is
    /// followed here, `MOVED` by asking again.
    pub(crate) async fn send(self: &Arc<Self>, key: &str, commands: &[Cmd], until: Instant) -> Reply {
        let known = self.known.current().and_then(|_| self.serving(self.slot(key)));
        let node = match known {
            Some(node) => node,
            // Boxed, so that the common case is small.
            None => Box::pin(in_time(until, self.node(key))).await?,
        };
        let failure = match node.send(commands, until).await {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        match self.named_by(&failure, ServerErrorKind::Ask, &node) {
            Some(taker) => Box::pin(taker.send_asking(commands, until)).await,
            None => Err(self.redirected(key, &node, failure)),
        }
    }

    /// Notes a request where somebody listens for this key: at once, and asking nobody.
    pub(crate) fn note(&self, key: &str, tag: u64) -> Option<(Arc<Node>, Noted)> {
        self.known.current()?;
        let slot = self.slot(key);
        let node = self.serving(slot)?;
        let noted = node.note(slot, tag)?;
        Some((node, noted))
    }

    /// Subscribes where the key is served. Gives whether the user may.
    pub(crate) async fn listen(self: &Arc<Self>, key: &str, until: Instant) -> Result<bool, Failure> {
        let node = in_time(until, self.node(key)).await?;
        match in_time(until, node.subscribe(self.slot(key), key, until)).await {
            Ok(()) => Ok(true),
            Err(failure) if failure.lacks_permission() => Ok(false),
            Err(failure) => Err(self.redirected(key, &node, failure)),
        }
    }

    /// The answers of all nodes that serve slots.
    pub(crate) async fn ask_all(self: &Arc<Self>, commands: &[Cmd], until: Instant) -> Reply {
        let asks = async {
            self.known.get(|| self.clone().find()).await?;
            let mut nodes = self.nodes();
            nodes.retain(|node| self.map().slots.iter().flatten().any(|other| Arc::ptr_eq(other, node)));
            try_join_all(nodes.iter().map(|node| node.send(commands, until))).await.map(Value::Array)
        };
        in_time(until, asks).await
    }

    pub(crate) fn close(&self) {
        self.nodes().iter().for_each(|node| node.close());
    }

    /// Where it is, for people to read.
    pub(crate) fn name(&self) -> String {
        self.map().nodes.keys().cloned().collect::<Vec<_>>().join(", ")
    }

    fn nodes(&self) -> Vec<Arc<Node>> {
        self.map().nodes.values().cloned().collect()
    }
}
