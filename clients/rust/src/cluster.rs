//! Which node of a cluster serves a slot.
//!
//! The cluster client of the redis crate sends commands again on its own, and has no connection for a wait. This
//! map does neither.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use futures_util::future::select_ok;
use redis::{Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, Value, cmd};

use crate::answers::Failure;
use crate::cached::Cached;
use crate::errors::Error;
use crate::node::{Node, REPLY_TIMEOUT};

const SLOTS: usize = 16384;

pub(crate) struct Cluster {
    /// User, password and TLS of all nodes are those of the first node.
    settings: ConnectionInfo,
    map: Mutex<Map>,
    /// Whoever needs the map reads it, and the others wait for that.
    refreshed: Cached<()>,
}

#[derive(Default)]
struct Map {
    /// Empty, or one for each slot.
    slots: Vec<Option<Arc<Node>>>,
    nodes: HashMap<String, Arc<Node>>,
}

impl Cluster {
    /// By some of its nodes, of which there is one at least.
    pub(crate) fn new(first_nodes: &[ConnectionInfo]) -> Self {
        let settings = first_nodes[0].clone();
        let cluster = Self { settings, map: Mutex::default(), refreshed: Cached::default() };
        for node in first_nodes {
            if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } = node.addr() {
                cluster.node_at(&mut cluster.map(), host, *port);
            }
        }
        cluster
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().expect("no panic while the map of slots is locked")
    }

    /// Nothing while the map is in doubt.
    pub(crate) fn known(&self, slot: u16) -> Option<Arc<Node>> {
        self.refreshed.current()?;
        self.map().slots.get(usize::from(slot))?.clone()
    }

    pub(crate) async fn node(&self, slot: u16) -> Result<Arc<Node>, RedisError> {
        self.refresh_if_doubtful().await?;
        let node = self.map().slots.get(usize::from(slot)).cloned().flatten();
        node.ok_or_else(|| {
            (ErrorKind::ClusterConnectionNotFound, "no node of the cluster serves the slot").into()
        })
    }

    /// All nodes that serve slots.
    pub(crate) async fn serving(&self) -> Result<Vec<Arc<Node>>, RedisError> {
        self.refresh_if_doubtful().await?;
        let map = self.map();
        let serves = |node: &&Arc<Node>| map.slots.iter().flatten().any(|other| Arc::ptr_eq(other, node));
        Ok(map.nodes.values().filter(serves).cloned().collect())
    }

    async fn refresh_if_doubtful(&self) -> Result<(), RedisError> {
        self.refreshed.get(self.refresh()).await.map(drop)
    }

    pub(crate) fn doubt(&self) {
        self.refreshed.take();
    }

    /// The node at an address that another node named.
    pub(crate) fn at(&self, address: &str, asked: &Node) -> Result<Arc<Node>, Failure> {
        let named = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let Some((host, port)) = named else {
            let error = (ErrorKind::ClusterConnectionNotFound, "no address of a node", address.to_owned());
            return Err(Failure::Passing(error.into()));
        };
        let host = if host.is_empty() { host_of(asked.client().get_connection_info().addr()) } else { host };
        Ok(self.node_at(&mut self.map(), host, port))
    }

    pub(crate) fn moved(&self, slot: u16, address: &str, asked: &Node) {
        if let Ok(node) = self.at(address, asked)
            && let Some(serving) = self.map().slots.get_mut(usize::from(slot))
        {
            *serving = Some(node);
        }
    }

    pub(crate) fn known_nodes(&self) -> Vec<Arc<Node>> {
        self.map().nodes.values().cloned().collect()
    }

    /// Asks all nodes at once which slots are where. The first answer counts, so that a node that does not
    /// answer keeps nobody waiting.
    async fn refresh(&self) -> Result<(), RedisError> {
        let asked = self.known_nodes().into_iter().map(|node| {
            Box::pin(async move {
                let ranges = slots(&node).await?;
                Ok::<_, RedisError>((node, ranges))
            })
        });
        let ((node, ranges), _) = select_ok(asked).await?;
        self.replace(&node, ranges);
        Ok(())
    }

    fn node_at(&self, map: &mut Map, host: &str, port: u16) -> Arc<Node> {
        let mut address = self.settings.addr().clone();
        if let ConnectionAddr::Tcp(a_host, a_port)
        | ConnectionAddr::TcpTls { host: a_host, port: a_port, .. } = &mut address
        {
            *a_host = host.to_owned();
            *a_port = port;
        }
        let entry = map.nodes.entry(format!("{host}:{port}"));
        let new = || {
            let info = self.settings.clone().set_addr(address);
            Arc::new(Node::new(Client::open(info).expect("the settings are those of the first node")))
        };
        entry.or_insert_with(new).clone()
    }

    fn replace(&self, asked: &Arc<Node>, ranges: Vec<Range>) {
        let mut map = self.map();
        map.slots = vec![None; SLOTS];
        for range in ranges {
            let host = match range.host.as_str() {
                "" | "?" => host_of(asked.client().get_connection_info().addr()),
                host => host,
            };
            let node = self.node_at(&mut map, host, range.port);
            if let Some(slots) = map.slots.get_mut(range.slots) {
                slots.fill(Some(node));
            }
        }
    }
}

fn host_of(address: &ConnectionAddr) -> &str {
    match address {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
        _ => "",
    }
}

struct Range {
    slots: RangeInclusive<usize>,
    host: String,
    port: u16,
}

async fn slots(node: &Arc<Node>) -> Result<Vec<Range>, RedisError> {
    let until = Instant::now() + REPLY_TIMEOUT;
    let reply = match node.send(std::slice::from_ref(cmd("CLUSTER").arg("SLOTS")), until).await {
        Ok(reply) => reply,
        Err(Failure::Unreachable(error) | Failure::Unanswered(error) | Failure::Passing(error)) => {
            return Err(error);
        }
        Err(Failure::Final(Error::Redis(error))) => return Err(error),
        Err(_) => return Err((ErrorKind::ClusterConnectionNotFound, "a node tells no slots").into()),
    };
    let Value::Array(rows) = reply else { return Ok(Vec::new()) };
    Ok(rows.iter().filter_map(range).collect())
}

/// First and last slot, then the primary and its replicas, each with host, port and more.
fn range(row: &Value) -> Option<Range> {
    let Value::Array(row) = row else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &row[..] else { return None };
    let [host, Value::Int(port), ..] = &primary[..] else { return None };
    let host = redis::from_redis_value_ref::<Option<String>>(host).ok()?.unwrap_or_default();
    let slots = usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?;
    Some(Range { slots, host, port: u16::try_from(*port).ok()? })
}
