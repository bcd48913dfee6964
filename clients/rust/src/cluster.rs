// SPDX-License-Identifier: MIT OR Apache-2.0

//! Meets `ClusterClient`. Commands and messages have connections of their own: if a subscription ends because its slot moves,
//! the redis crate gives replies on that connection to the wrong commands. It may send a command again by itself.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::cluster::{ClusterClient, ClusterConfig};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{RedisResult, Value, pipe};

use crate::link::{Connection, Health, Link};
use crate::server::Server;
use crate::slot::slot;
use crate::transport::{Call, Events, SILENCE, Topology, silent};

impl From<ClusterClient> for Server {
    /// To wait in order, the client must use RESP3: `ClusterClient::builder(…).use_protocol(ProtocolVersion::RESP3)`.
    fn from(client: ClusterClient) -> Self {
        let mut commands = link(client.clone(), None);
        Self::over(|events| {
            commands.messages = Some(Box::new(link(client, Some(events))));
            commands
        })
    }
}

/// Connections to all nodes, which may listen.
fn link(client: ClusterClient, events: Option<Events>) -> Link<ClusterConnection> {
    let listens = events.is_some();
    let topology = Topology { name: "the cluster".into(), is_cluster: true, is_failover: false };
    let events = events.unwrap_or_else(|| Arc::new(|_| {}));
    let open = move |health: Option<Arc<Health>>| {
        // The redis crate waits for each node when it opens the connections, for a dead one too: so none may take long.
        // If a node was silent then, a later command for it opens its connection, and all other commands wait for that.
        // A connection for one call at a time waits for replicas. Its caller limits that time.
        let reply = if health.is_some() { SILENCE } else { Duration::from_secs(3600) };
        let mut config = ClusterConfig::new().set_connection_timeout(SILENCE).set_response_timeout(reply);
        if let Some(health) = health.filter(|_| listens) {
            config = config.set_push_sender(health.pushes());
        }
        let client = client.clone();
        async move { client.get_async_connection_with_config(config).await }.boxed()
    };
    Link::new(topology, None, events, Arc::new(open))
}

impl Connection for ClusterConnection {
    const SENT_ONCE: Duration = Duration::from_millis(5);

    fn exchange(mut self, call: Call<'_>) -> BoxFuture<'_, RedisResult<Vec<Value>>> {
        async move {
            let Some(key) = call.key else {
                let everywhere = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                let replies = self.route_command(call.command.clone(), everywhere).await?;
                let replies = replies.into_map_iter().map_err(|_| silent())?;
                let replies = replies.map(|(_, reply)| reply.extract_error());
                return Ok(vec![Value::Array(replies.collect::<Result<_, _>>()?)]);
            };
            let node = SingleNodeRoutingInfo::SpecificNode(Route::new(slot(key), SlotAddr::Master));
            let Some((then, _)) = call.then else {
                let node = RoutingInfo::SingleNode(node);
                return Ok(vec![self.route_command(call.command.clone(), node).await?]);
            };
            let both = pipe().add_command(call.command.clone()).add_command(then.clone()).clone();
            self.route_pipeline(both, 0, 2, node).await
        }
        .boxed()
    }

    fn subscribe(mut self, channel: &str) -> BoxFuture<'_, RedisResult<()>> {
        async move { self.ssubscribe(channel).await }.boxed()
    }
}
