//! Meets `ClusterClient`. Commands and messages have connections of their own: if a subscription ends because its slot moves,
//! the redis crate gives replies on that connection to the wrong commands. It may send a command again by itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::cluster::{ClusterClient, ClusterConfig};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{RedisResult, Value};

use crate::link::{Link, Open};
use crate::server::Server;
use crate::slot::slot;
use crate::transport::{Call, Reply, SILENCE, Topology, Transport, silent};

/// In less time the redis crate has not sent a command twice.
const ONE_COPY: Duration = Duration::from_millis(5);

struct Cluster {
    commands: Link<ClusterConnection>,
    messages: Link<ClusterConnection>,
}

impl From<ClusterClient> for Server {
    /// To wait in order, the client must use RESP3: `ClusterClient::builder(…).use_protocol(ProtocolVersion::RESP3)`.
    fn from(client: ClusterClient) -> Self {
        Self::over(move |events| Cluster {
            commands: Link::new(Arc::new(|_| {}), open(client.clone(), false)),
            messages: Link::new(events, open(client, true)),
        })
    }
}

/// Opens connections to all nodes, which may listen.
fn open(client: ClusterClient, listens: bool) -> Open<ClusterConnection> {
    Box::new(move |health| {
        let mut config = ClusterConfig::new().set_connection_timeout(SILENCE).set_response_timeout(SILENCE);
        if let Some(health) = health.filter(|_| listens) {
            config = config.set_push_sender(health.pushes(true));
        }
        let client = client.clone();
        async move { client.get_async_connection_with_config(config).await }.boxed()
    })
}

async fn exchange(mut connection: ClusterConnection, call: Call<'_>) -> RedisResult<(Value, Value)> {
    let Some(key) = call.key else {
        let everywhere = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let replies = connection.route_command(call.command.clone(), everywhere).await?;
        let replies = replies.into_map_iter().map_err(|_| silent())?.map(|(_, reply)| reply.extract_error());
        return Ok((Value::Array(replies.collect::<Result<_, _>>()?), Value::Nil));
    };
    let node = SingleNodeRoutingInfo::SpecificNode(Route::new(slot(key), SlotAddr::Master));
    let Some((then, _)) = call.then else {
        let reply = connection.route_command(call.command.clone(), RoutingInfo::SingleNode(node)).await?;
        return Ok((reply, Value::Nil));
    };
    let mut pipeline = redis::pipe();
    pipeline.add_command(call.command.clone()).add_command(then.clone());
    let replies = connection.route_pipeline(pipeline, 0, 2, node).await?;
    Ok(<[Value; 2]>::try_from(replies).map_or((Value::Nil, Value::Nil), |[reply, then]| (reply, then)))
}

impl Transport for Cluster {
    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, RedisResult<Reply>> {
        async move {
            let sent = Instant::now();
            let reply = self.commands.call(call, |connection| exchange(connection, call)).await?;
            Ok(Reply { is_alone: sent.elapsed() < ONE_COPY, ..reply })
        }
        .boxed()
    }

    fn listen<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, RedisResult<()>> {
        let subscribe = async move |mut connection: ClusterConnection| connection.ssubscribe(channel).await;
        self.messages.send(Instant::now() + SILENCE, subscribe).boxed()
    }

    fn topology(&self) -> Topology {
        Topology { name: "the cluster".into(), is_cluster: true, is_failover: false }
    }

    fn close(&self) {
        self.commands.close();
        self.messages.close();
    }
}
