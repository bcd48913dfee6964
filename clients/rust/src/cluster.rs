//! Meets `ClusterClient`. Commands and messages have connections of their own: if a subscription ends because its slot
//! moves, the redis crate gives replies on that connection to the wrong commands. It may send a command again by itself.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::SendError;
use redis::cluster::{ClusterClient, ClusterConfig};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{PushInfo, RedisResult, Value};

use crate::link::{Health, Link, Pushes, SILENCE};
use crate::slot::slot;
use crate::transport::{Audience, Call, Events, Reply, Server, Topology, Transport};

/// In less time the redis crate has not sent a command twice.
const ONE_COPY: Duration = Duration::from_millis(5);

struct Cluster {
    commands: Link<ClusterConnection>,
    messages: Link<ClusterConnection>,
    audience: Audience,
    channels: Arc<Mutex<BTreeSet<String>>>,
}

impl From<ClusterClient> for Server {
    /// To wait in order, the client must use RESP3: `ClusterClient::builder(…).use_protocol(ProtocolVersion::RESP3)`.
    fn from(client: ClusterClient) -> Self {
        let (audience, channels) = (Audience::default(), Arc::<Mutex<BTreeSet<String>>>::default());
        let config = || ClusterConfig::new().set_connection_timeout(SILENCE).set_response_timeout(SILENCE);
        let commanding = client.clone();
        let commands = move |_| {
            let client = commanding.clone();
            async move { client.get_async_connection_with_config(config()).await }.boxed()
        };
        let (listening, heard) = (channels.clone(), audience.clone());
        let messages = move |health: Option<Arc<Health>>| {
            let (client, audience, channels) = (client.clone(), heard.clone(), listening.clone());
            async move {
                let pushes =
                    Pushes { audience: audience.clone(), health: health.unwrap_or_default(), is_kept: true };
                let config = config().set_push_sender(move |push: PushInfo| {
                    pushes.take(&push);
                    Ok::<_, SendError>(())
                });
                let connection = client.get_async_connection_with_config(config).await?;
                let channels = channels.lock().expect("nothing panics here").clone();
                for channel in channels {
                    subscribe(connection.clone(), channel, audience.clone()).await?;
                }
                Ok(connection)
            }
            .boxed()
        };
        Self::over(Cluster {
            commands: Link::new(&Audience::default(), Box::new(commands)),
            messages: Link::new(&audience, Box::new(messages)),
            audience,
            channels,
        })
    }
}

async fn subscribe(
    mut connection: ClusterConnection,
    channel: String,
    audience: Audience,
) -> RedisResult<()> {
    connection
        .ssubscribe(&channel)
        .await
        .inspect_err(|error| audience.tell(|events| events.refused(&channel, error)))
}

async fn exchange(mut connection: ClusterConnection, call: Call<'_>) -> RedisResult<(Value, Value)> {
    let Some(key) = call.key else {
        let everywhere = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let replies = match connection.route_command(call.command.clone(), everywhere).await? {
            Value::Map(replies) => {
                replies.into_iter().map(|(_, reply)| reply.extract_error()).collect::<Result<_, _>>()?
            }
            reply => vec![reply],
        };
        return Ok((Value::Array(replies), Value::Nil));
    };
    let node = SingleNodeRoutingInfo::SpecificNode(Route::new(slot(key), SlotAddr::Master));
    let Some((then, _)) = call.then else {
        return Ok((
            connection.route_command(call.command.clone(), RoutingInfo::SingleNode(node)).await?,
            Value::Nil,
        ));
    };
    let mut pipeline = redis::pipe();
    pipeline.add_command(call.command.clone()).add_command(then.clone());
    let replies = connection.route_pipeline(pipeline, 0, 2, node).await?;
    Ok(<[Value; 2]>::try_from(replies).map_or((Value::Nil, Value::Nil), |[reply, then]| (reply, then)))
}

impl Transport for Cluster {
    fn start(&self, events: Weak<dyn Events>) {
        self.audience.set(events);
    }

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, RedisResult<Reply>> {
        async move {
            if !self.channels.lock().expect("nothing panics here").is_empty() {
                self.messages.open();
            }
            let sent = Instant::now();
            let reply = self.commands.call(call, |connection| exchange(connection, call)).await?;
            Ok(Reply { is_alone: sent.elapsed() < ONE_COPY, ..reply })
        }
        .boxed()
    }

    fn listen(&self, channel: &str) {
        let channel = channel.to_owned();
        self.channels.lock().expect("nothing panics here").insert(channel.clone());
        let audience = self.audience.clone();
        self.messages.when_open(|connection| subscribe(connection, channel, audience));
    }

    fn forget(&self, channel: &str) {
        if self.channels.lock().expect("nothing panics here").remove(channel) {
            let channel = channel.to_owned();
            self.messages.when_open(|mut connection| async move { connection.sunsubscribe(channel).await });
        }
    }

    fn topology(&self) -> Topology {
        Topology { name: "the cluster".into(), is_cluster: true, is_failover: false }
    }

    fn close(&self) {
        self.channels.lock().expect("nothing panics here").clear();
        self.commands.close();
        self.messages.close();
    }
}
