//! One server, and the connections to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{Client, Cmd, ConnectionAddr, ProtocolVersion, Value, cmd};
use tokio::time::timeout_at;

use crate::answers::{Failure, Reply};
use crate::cached::Cached;
use crate::connection::{self, Connection, Noted};

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
    connection: Cached<Arc<Connection>>,
}

impl Node {
    pub(crate) fn new(client: &Client) -> Self {
        let info = client.get_connection_info().clone();
        let mut tcp = info.tcp_settings().clone();
        // A wait without limit must notice that its connection is lost although nobody closed it.
        if tcp.keepalive().is_none() {
            let keepalive = TcpKeepalive::new().with_time(BETWEEN_PROBES).with_interval(BETWEEN_PROBES);
            tcp = tcp.set_keepalive(keepalive);
        }
        // Whatever the client of the program speaks.
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_tcp_settings(tcp).set_redis_settings(settings);
        let client = Client::open(info).expect("the settings are those of a client");
        Self { client, connection: Cached::new() }
    }

    pub(crate) fn address(&self) -> &ConnectionAddr {
        self.client.get_connection_info().addr()
    }

    /// A connection of its own.
    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, Failure> {
        Ok(self.client.get_multiplexed_async_connection_with_config(&connection::config()).await?)
    }

    /// The connection that all share.
    async fn shared(&self, until: Instant) -> Result<Arc<Connection>, Failure> {
        match self.connection.current() {
            Some(connection) if !connection.is_lost() => return Ok(connection),
            _ => self.connection.discard_if(|connection| connection.is_lost()),
        }
        in_time(until, self.connection.get(|| Connection::open(self.client.clone()))).await
    }

    /// Sends this on the connection that all share, and gives the reply that comes until this moment: for
    /// several commands an array. After a connection error the next one takes a new connection.
    pub(crate) async fn send(&self, commands: &[Cmd], until: Instant) -> Reply {
        let connection = self.shared(until).await?;
        connection.ask(commands, until).await.inspect_err(|failure| self.discard_after(failure, &connection))
    }

    fn discard_after(&self, failure: &Failure, used: &Arc<Connection>) {
        if !failure.is_answer() {
            self.connection.discard_if(|current| Arc::ptr_eq(current, used));
        }
    }

    /// As [`Node::send`], to a node that takes the slot over and does not serve it yet.
    pub(crate) async fn send_asking(&self, commands: &[Cmd], until: Instant) -> Reply {
        let asking: Vec<_> = commands.iter().flat_map(|command| [cmd("ASKING"), command.clone()]).collect();
        let Value::Array(replies) = self.send(&asking, until).await? else { return Ok(Value::Nil) };
        let mut replies: Vec<_> = replies.into_iter().skip(1).step_by(2).collect();
        Ok(if commands.len() == 1 { replies.swap_remove(0) } else { Value::Array(replies) })
    }

    /// Notes a request if somebody listens for this slot.
    pub(crate) fn note(&self, slot: u16, tag: u64) -> Option<Noted> {
        self.connection.current()?.note(slot, tag)
    }

    /// Listens for the slot of this key.
    pub(crate) async fn subscribe(&self, slot: u16, key: &str, until: Instant) -> Result<(), Failure> {
        let connection = self.shared(until).await?;
        let subscribed = connection.subscribe(slot, key, until).await;
        subscribed.inspect_err(|failure| self.discard_after(failure, &connection))
    }

    /// Closes the connection that all share, and ends its waits. What is on its way gets its answer first.
    pub(crate) fn close(&self) {
        if let Some(connection) = self.connection.take() {
            connection.end_waits();
        }
    }
}
