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
use redis::{PushInfo, PushKind, RedisResult, Value};

use crate::link::{Link, SILENCE};
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
        let messages = move |_| {
            let (client, audience) = (client.clone(), heard.clone());
            let channels = listening.lock().expect("nothing panics here").clone();
            async move {
                let config = config().set_push_sender({
                    let audience = audience.clone();
                    move |push: PushInfo| {
                        take(&push, &audience);
                        Ok::<_, SendError>(())
                    }
                });
                let connection = client.get_async_connection_with_config(config).await?;
                for channel in channels {
                    tokio::spawn(subscribe(connection.clone(), channel, audience.clone()));
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

fn take(push: &PushInfo, audience: &Audience) {
    match (&push.kind, push.data.as_slice()) {
        (PushKind::SMessage, [_, Value::BulkString(payload)]) => audience.tell(|events| events.heard(payload)),
        (PushKind::SSubscribe, [Value::BulkString(channel), ..]) => {
            audience.tell(|events| events.subscribed(&String::from_utf8_lossy(channel)));
        }
        (PushKind::SUnsubscribe | PushKind::Disconnection, _) => audience.tell(|events| events.missed()),
        _ => {}
    }
}

async fn subscribe(mut connection: ClusterConnection, channel: String, audience: Audience) {
    if let Err(error) = connection.ssubscribe(&channel).await
        && !error.is_io_error()
    {
        audience.tell(|events| events.refused(&channel, error));
    }
}

async fn exchange(mut connection: ClusterConnection, call: Call<'_>) -> RedisResult<(Value, Value)> {
    let Some(key) = call.key else {
        let everywhere = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let replies = match connection.route_command(call.command.clone(), everywhere).await? {
            Value::Map(replies) => replies.into_iter().map(|(_, reply)| reply.extract_error()).collect::<Result<_, _>>()?,
            reply => vec![reply],
        };
        return Ok((Value::Array(replies), Value::Nil));
    };
    let node = SingleNodeRoutingInfo::SpecificNode(Route::new(slot(key), SlotAddr::Master));
    let Some((then, _)) = call.then else {
        return Ok((connection.route_command(call.command.clone(), RoutingInfo::SingleNode(node)).await?, Value::Nil));
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
            let sent = Instant::now();
            let reply = self.commands.call(call, |connection| exchange(connection, call)).await?;
            Ok(Reply { is_alone: sent.elapsed() < ONE_COPY, ..reply })
        }
        .boxed()
    }

    fn listen(&self, channel: &str) {
        let channel = channel.to_owned();
        self.channels.lock().expect("nothing panics here").insert(channel.clone());
        let (connection, audience) = (self.messages.connection(), self.audience.clone());
        tokio::spawn(async move {
            match connection.await {
                Ok(connection) => subscribe(connection, channel, audience).await,
                Err(_) => {}
            }
        });
    }

    fn forget(&self, channel: &str) {
        if self.channels.lock().expect("nothing panics here").remove(channel) {
            let (connection, channel) = (self.messages.connection(), channel.to_owned());
            tokio::spawn(async move { connection.await?.sunsubscribe(channel).await });
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
