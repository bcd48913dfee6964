//! Meets `redis::Client`. Commands and messages share one connection, which is made of the client. Commands of calls can go over
//! a connection of the program's.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, ProtocolVersion, RedisError, RedisResult, Value, cmd,
};
use tokio::time::timeout_at;

use crate::errors::is_reply;
use crate::link::{Health, Link};
use crate::server::Server;
use crate::transport::{Call, Reply, SILENCE, Topology, Transport, silent};

/// How many commands may wait to be written.
const MOST_UNSENT: usize = 4096;
/// How long the program's connection may say nothing.
const SILENCE_OF_THE_PROGRAM: Duration = Duration::from_millis(300);
/// For how long commands go over another connection after that.
const PAUSE: Duration = Duration::from_secs(1);

type Connected = BoxFuture<'static, RedisResult<MultiplexedConnection>>;

/// One server, to which this opens connections.
struct Direct {
    link: Link<MultiplexedConnection>,
    program: Option<Program>,
    topology: Topology,
}

impl From<Client> for Server {
    fn from(client: Client) -> Self {
        Self::of_client(client, None)
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> From<(Client, C)> for Server {
    /// The commands of the program's calls go over its connection, such as a `MultiplexedConnection` or a
    /// `ConnectionManager`, as long as that replies. Renewals and messages go over a connection of the client.
    fn from((client, connection): (Client, C)) -> Self {
        let send = move |command: Cmd| {
            let mut connection = connection.clone();
            async move { connection.req_packed_command(&command).await }.boxed()
        };
        Self::of_client(client, Some(Program { send: Box::new(send), failed: Mutex::default() }))
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
        let connect = move |config, _| connect(config).map(|connection| connection.map_err(may_pass)).boxed();
        Self::direct(name.into(), false, None, connect)
    }

    fn of_client(client: Client, program: Option<Program>) -> Self {
        let name = client.get_connection_info().addr().to_string();
        let connect = move |config: AsyncConnectionConfig, _| {
            let client = speaking_resp3(&client);
            async move { client?.get_multiplexed_async_connection_with_config(&config).await }.boxed()
        };
        Self::direct(name, false, program, connect)
    }

    /// A server to which connections are opened, each of which has a health if it is shared.
    pub(crate) fn direct(
        name: String,
        is_failover: bool,
        program: Option<Program>,
        connect: impl Fn(AsyncConnectionConfig, Option<Arc<Health>>) -> Connected + Send + Sync + 'static,
    ) -> Self {
        let open = move |health: Option<Arc<Health>>| {
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(SILENCE))
                .set_response_timeout(None)
                .set_pipeline_buffer_size(MOST_UNSENT);
            match health.clone() {
                Some(shared) => connect(config.set_push_sender(shared.pushes(false)), health),
                None => connect(config, None),
            }
        };
        let topology = Topology { name, is_cluster: false, is_failover };
        Self::over(move |events| Direct { link: Link::new(events, Box::new(open)), program, topology })
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

/// A connection of the program's. What instruments it sees the commands of calls. If it is silent, or busy with a command that
/// blocks, it holds no call up.
pub(crate) struct Program {
    send: Box<dyn Fn(Cmd) -> BoxFuture<'static, RedisResult<Value>> + Send + Sync>,
    /// When it last gave no reply.
    failed: Mutex<Option<Instant>>,
}

impl Program {
    /// Sends a command. It is nothing if there is no reply, and for a while after that.
    async fn call(&self, call: Call<'_>) -> Option<RedisResult<Reply>> {
        let failed = *self.failed.lock().expect("nothing panics here");
        if failed.is_some_and(|since| since.elapsed() < PAUSE) {
            return None;
        }
        let until = call.until.min(Instant::now() + SILENCE_OF_THE_PROGRAM);
        let reply = timeout_at(until.into(), (self.send)(call.command.clone())).await;
        match reply.unwrap_or_else(|_| Err(silent())).and_then(Value::extract_error) {
            Err(error) if !is_reply(&error) => {
                *self.failed.lock().expect("nothing panics here") = Some(Instant::now());
                None
            }
            reply => Some(reply.map(|value| Reply { value, then: Value::Nil, is_alone: true })),
        }
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
        let subscribe = async move |mut connection: MultiplexedConnection| {
            cmd("SSUBSCRIBE").arg(channel).exec_async(&mut connection).await
        };
        self.link.send(Instant::now() + SILENCE, subscribe).boxed()
    }

    fn topology(&self) -> Topology {
        self.topology.clone()
    }

    fn close(&self) {
        self.link.close();
    }
}
