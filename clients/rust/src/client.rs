//! Meets `redis::Client`. Commands and messages share one connection, which is made of the client. Commands of calls can go over
//! a connection of the program's.

use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::{ConnectionLike, MultiplexedConnection, SendError};
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, ProtocolVersion, PushInfo, RedisError, RedisResult, Value, cmd,
};

use crate::link::{Health, Link, Pushes};
use crate::program::Program;
use crate::server::Server;
use crate::transport::{Audience, Call, Events, Reply, SILENCE, Topology, Transport};

/// How many commands may wait to be written.
const MOST_UNSENT: usize = 4096;

type Connect = Box<
    dyn Fn(AsyncConnectionConfig) -> BoxFuture<'static, RedisResult<MultiplexedConnection>> + Send + Sync,
>;

pub(crate) struct Direct {
    pub(crate) link: Link<MultiplexedConnection>,
    audience: Audience,
    program: Option<Program>,
    topology: Topology,
}

impl From<Client> for Server {
    fn from(client: Client) -> Self {
        Self::over(Direct::of_client(client, None))
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> From<(Client, C)> for Server {
    /// The commands of the program's calls go over its connection, such as a `MultiplexedConnection` or a
    /// `ConnectionManager`, as long as that replies. Renewals and messages go over a connection of the client.
    fn from((client, connection): (Client, C)) -> Self {
        Self::over(Direct::of_client(client, Some(Program::new(connection))))
    }
}

impl Server {
    /// A server to which the program opens the connections, with the configuration that it is given: for credentials
    /// that change, or a resolver of names. The connections must speak RESP3.
    ///
    /// ```
    /// # use slock_client::{Locks, Server};
    /// let locks = Locks::new(Server::connecting("10.0.0.1:6379", |config| async move {
    ///     let password = std::fs::read_to_string("/run/secrets/redis")?;
    ///     let url = format!("redis://app:{}@10.0.0.1/?protocol=resp3", password.trim());
    ///     redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
    /// }));
    /// ```
    pub fn connecting<F, R>(name: impl Into<String>, connect: F) -> Self
    where
        F: Fn(AsyncConnectionConfig) -> R + Send + Sync + 'static,
        R: Future<Output = RedisResult<MultiplexedConnection>> + Send + 'static,
    {
        let connect = move |config| connect(config).map(|connection| connection.map_err(may_pass)).boxed();
        Self::over(Direct::new(name.into(), false, Box::new(connect)))
    }
}

/// A login that is refused may succeed later, with other credentials.
fn may_pass(error: RedisError) -> RedisError {
    match (error.kind(), error.code()) {
        (ErrorKind::AuthenticationFailed, _) | (_, Some("WRONGPASS" | "NOAUTH")) => {
            std::io::Error::other(error).into()
        }
        _ => error,
    }
}

/// The client, with the protocol that has messages between replies.
pub(crate) fn speaking_resp3(client: &Client) -> RedisResult<Client> {
    let info = client.get_connection_info().clone();
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Client::open(info.set_redis_settings(settings))
}

impl Direct {
    pub(crate) fn of_client(client: Client, program: Option<Program>) -> Self {
        let name = client.get_connection_info().addr().to_string();
        let connect = move |config: AsyncConnectionConfig| {
            let client = speaking_resp3(&client);
            async move { client?.get_multiplexed_async_connection_with_config(&config).await }.boxed()
        };
        Self { program, ..Self::new(name, false, Box::new(connect)) }
    }

    pub(crate) fn new(name: String, is_failover: bool, connect: Connect) -> Self {
        let audience = Audience::default();
        let heard = audience.clone();
        let open = move |health: Option<Arc<Health>>| {
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(SILENCE))
                .set_response_timeout(None)
                .set_pipeline_buffer_size(MOST_UNSENT);
            let Some(health) = health else { return connect(config) };
            let pushes = Pushes { audience: heard.clone(), health, is_kept: false };
            connect(config.set_push_sender(move |push: PushInfo| {
                pushes.take(&push);
                Ok::<_, SendError>(())
            }))
        };
        let topology = Topology { name, is_cluster: false, is_failover };
        Self { link: Link::new(&audience, Box::new(open)), audience, program: None, topology }
    }
}

async fn exchange(mut connection: MultiplexedConnection, call: Call<'_>) -> RedisResult<(Value, Value)> {
    let Some((then, _)) = call.then else {
        return Ok((connection.send_packed_command(call.command).await?, Value::Nil));
    };
    let mut pipeline = redis::pipe();
    pipeline.add_command(call.command.clone()).add_command(then.clone());
    let replies = connection.send_packed_commands(&pipeline, 0, 2).await?;
    Ok(<[Value; 2]>::try_from(replies).map_or((Value::Nil, Value::Nil), |[reply, then]| (reply, then)))
}

impl Transport for Direct {
    fn start(&self, events: Weak<dyn Events>) {
        self.audience.set(events);
    }

    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, RedisResult<Reply>> {
        async move {
            let program = self.program.as_ref().filter(|_| !call.is_reserved && call.then.is_none());
            if let Some(program) = program
                && let Some(reply) = program.call(call).await
            {
                return reply;
            }
            let reply = self.link.call(call, |connection| exchange(connection, call)).await?;
            Ok(Reply { is_alone: program.is_none(), ..reply })
        }
        .boxed()
    }

    fn listen<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, RedisResult<()>> {
        async move {
            let subscribe = cmd("SSUBSCRIBE").arg(channel).take();
            let call = Call { is_reserved: true, ..Call::new(channel, &subscribe) };
            self.call(call).await.map(drop)
        }
        .boxed()
    }

    fn topology(&self) -> Topology {
        self.topology.clone()
    }

    fn close(&self) {
        self.link.close();
    }
}
