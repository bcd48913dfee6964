// SPDX-License-Identifier: MIT OR Apache-2.0

//! Meets `redis::Client`. Commands and messages share one connection, which is made of the client.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, ProtocolVersion, RedisError, RedisResult, Value, cmd, pipe,
};

use crate::link::{Connection, Health, Link, OPENING_ONE, Program};
use crate::server::Server;
use crate::transport::{Call, Topology};

/// How many commands may wait to be written.
const MOST_UNSENT: usize = 4096;

/// Opens a connection of this configuration. It is told its health if it is to be shared.
type Connect = Box<dyn Fn(AsyncConnectionConfig, Option<Arc<Health>>) -> Opening + Send + Sync>;
type Opening = BoxFuture<'static, RedisResult<MultiplexedConnection>>;

impl From<Client> for Server {
    fn from(client: Client) -> Self {
        Self::of_client(client, None)
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> From<(Client, C)> for Server {
    /// The commands of the program's calls go over its connection, such as a `MultiplexedConnection` or a
    /// `ConnectionManager`, as long as that replies. Renewals and messages go over a connection of the
    /// client. If the two are for different databases, calls are refused.
    fn from((client, connection): (Client, C)) -> Self {
        let db = client.get_connection_info().redis_settings().db();
        Self::of_client(client, Some(Program::new(connection, db)))
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
        Self::direct(name.into(), false, None, Box::new(connect))
    }

    fn of_client(client: Client, program: Option<Program>) -> Self {
        let name = client.get_connection_info().addr().to_string();
        let connect = move |config: AsyncConnectionConfig, _| {
            let client = speaking_resp3(&client);
            async move { client?.get_multiplexed_async_connection_with_config(&config).await }.boxed()
        };
        Self::direct(name, false, program, Box::new(connect))
    }

    /// A server to which connections are opened.
    pub(crate) fn direct(
        name: String,
        is_failover: bool,
        program: Option<Program>,
        connect: Connect,
    ) -> Self {
        let open = move |health: Option<Arc<Health>>| {
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(OPENING_ONE))
                .set_response_timeout(None)
                .set_pipeline_buffer_size(MOST_UNSENT);
            let config = match health.clone() {
                Some(health) => config.set_push_sender(health.pushes()),
                None => config,
            };
            connect(config, health)
        };
        let topology = Topology { name, is_cluster: false, is_failover };
        Self::over(move |events| Link::new(topology, program, events, Arc::new(open)))
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

impl Connection for MultiplexedConnection {
    const SENT_ONCE: Duration = Duration::MAX;

    fn exchange(mut self, call: Call<'_>) -> BoxFuture<'_, RedisResult<Vec<Value>>> {
        async move {
            let Some((then, _)) = call.then else {
                return Ok(vec![self.send_packed_command(call.command).await?]);
            };
            let both = pipe().add_command(call.command.clone()).add_command(then.clone()).clone();
            self.send_packed_commands(&both, 0, 2).await
        }
        .boxed()
    }

    fn subscribe(mut self, channel: &str) -> BoxFuture<'_, RedisResult<()>> {
        async move { cmd("SSUBSCRIBE").arg(channel).exec_async(&mut self).await }.boxed()
    }
}
