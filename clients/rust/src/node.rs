//! One server, and the connections to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, Value, cmd};
use tokio::time::timeout_at;

use crate::answers::Failure;
use crate::cached::Cached;
use crate::listener::{Listener, Noted};

/// No command but a wait that blocks takes the server longer to answer.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// So many commands may wait to be written, before those who send have to wait for each other.
const MOST_UNSENT: usize = 4096;
/// How often TCP looks whether the other end of an idle connection is there.
const BETWEEN_PROBES: Duration = Duration::from_secs(5);

/// What is needed before anything can be sent, until this moment.
pub(crate) async fn in_time<T>(
    until: Instant,
    need: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let need = timeout_at(until.into(), need).await;
    need.unwrap_or_else(|_| Err(Failure::no_answer("the server"))).map_err(Failure::before_sending)
}

/// A server. All commands share one connection, which is opened when it is needed.
pub(crate) struct Node {
    client: Client,
    address: String,
    connection: Cached<MultiplexedConnection>,
    listener: Cached<Arc<Listener>>,
}

impl Node {
    pub(crate) fn new(client: Client) -> Self {
        let info = client.get_connection_info().clone();
        let address = info.addr().to_string();
        let mut settings = info.tcp_settings().clone();
        // A wait without limit must notice that its connection is lost although nobody closed it.
        if settings.keepalive().is_none() {
            settings = settings
                .set_keepalive(TcpKeepalive::new().with_time(BETWEEN_PROBES).with_interval(BETWEEN_PROBES));
        }
        let info = info.set_tcp_settings(settings);
        Self {
            client: Client::open(info).expect("the settings are those of a client"),
            address,
            connection: Cached::default(),
            listener: Cached::default(),
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// A connection of its own, without a limit for replies.
    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, Failure> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(REPLY_TIMEOUT))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(MOST_UNSENT);
        Ok(self.client.get_multiplexed_async_connection_with_config(&config).await?)
    }

    /// Sends this on the connection that all share, and gives the reply that comes until this moment: for
    /// several commands an array. After a connection error the next one takes a new connection.
    pub(crate) async fn send(&self, commands: &[Cmd], until: Instant) -> Result<Value, Failure> {
        let (mut connection, number) = match self.connection.current() {
            Some(current) => current,
            None => in_time(until, Box::pin(self.connection.get(self.connect()))).await?,
        };
        let reply = match timeout_at(until.into(), exchange(&mut connection, commands)).await {
            Ok(reply) => reply.map_err(Failure::from),
            Err(_) => Err(Failure::no_answer(&self.address)),
        };
        if reply.is_err() {
            self.connection.discard(number);
        }
        Ok(reply?.extract_error()?)
    }

    /// As [`Node::send`], to a node that takes the slot over and does not serve it yet.
    pub(crate) async fn send_asking(&self, commands: &[Cmd], until: Instant) -> Result<Value, Failure> {
        let asking: Vec<_> = commands.iter().flat_map(|command| [cmd("ASKING"), command.clone()]).collect();
        let Value::Array(replies) = self.send(&asking, until).await? else { return Ok(Value::Nil) };
        let mut replies: Vec<_> = replies.into_iter().skip(1).step_by(2).collect();
        Ok(if commands.len() == 1 { replies.swap_remove(0) } else { Value::Array(replies) })
    }

    /// Notes a request if somebody listens for this slot.
    pub(crate) fn note(&self, slot: u16, tag: u64) -> Option<Noted> {
        self.listener.current()?.0.note(slot, tag)
    }

    /// Listens for the slot of this key.
    pub(crate) async fn subscribe(&self, slot: u16, key: &str) -> Result<(), Failure> {
        if let Some((listener, number)) = self.listener.current()
            && listener.has_ended()
        {
            self.listener.discard(number);
        }
        let (listener, _) = self.listener.get(Listener::connect(&self.client, REPLY_TIMEOUT)).await?;
        listener.subscribe(slot, key).await
    }

    /// Ends all waits that listen on this node.
    pub(crate) fn end_listening(&self) {
        if let Some(listener) = self.listener.take() {
            listener.end();
        }
    }

    /// Closes the connections. What is on its way gets its answer first.
    pub(crate) fn close(&self) {
        self.end_listening();
        self.connection.take();
    }
}

/// The reply to one command, or an array of those to several.
pub(crate) async fn exchange(
    connection: &mut MultiplexedConnection,
    commands: &[Cmd],
) -> Result<Value, RedisError> {
    if let [command] = commands {
        return connection.req_packed_command(command).await;
    }
    let mut pipeline = redis::pipe();
    for command in commands {
        pipeline.add_command(command.clone());
    }
    connection.req_packed_commands(&pipeline, 0, commands.len()).await.map(Value::Array)
}
