//! One server, and the connections to it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, Value};

use crate::answer::{self, Failure};
use crate::listening::Listening;
use crate::turns::Turns;

/// No command but a wait that blocks takes the server longer to answer.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);
/// How often TCP looks whether the other end of an idle connection is there.
const BETWEEN_PROBES: Duration = Duration::from_secs(5);

/// A server. All commands share one connection, which is opened when it is needed.
pub(crate) struct Node {
    client: Client,
    address: String,
    shared: Mutex<Shared>,
    connecting: Turns,
    spare: Mutex<Vec<MultiplexedConnection>>,
    listening: Mutex<Option<Arc<Listening>>>,
    listening_turns: Turns,
    subscribing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Shared {
    connection: Option<MultiplexedConnection>,
    number: u64,
}

/// The connection of a node at one time. Commands sent on one link arrive in their order.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) node: Arc<Node>,
    connection: MultiplexedConnection,
    number: u64,
}

impl Node {
    pub(crate) fn new(client: Client) -> Self {
        let info = client.get_connection_info().clone();
        let address = info.addr().to_string();
        // Small commands that wait for an answer each: none may wait for another to fill a packet.
        let mut settings = info.tcp_settings().clone().set_nodelay(true);
        // A wait without limit must notice that its connection is lost although nobody closed it.
        if settings.keepalive().is_none() {
            settings = settings
                .set_keepalive(TcpKeepalive::new().with_time(BETWEEN_PROBES).with_interval(BETWEEN_PROBES));
        }
        let info = info.set_tcp_settings(settings);
        Self {
            client: Client::open(info).expect("the settings are those of a client"),
            address,
            shared: Mutex::default(),
            connecting: Turns::default(),
            spare: Mutex::default(),
            listening: Mutex::default(),
            listening_turns: Turns::default(),
            subscribing: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// A client for connections of another kind to the same server.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) async fn link(self: &Arc<Self>) -> Result<Link, RedisError> {
        let connect = async {
            let connection = self.connect(Some(REPLY_TIMEOUT)).await?;
            let mut shared = lock(&self.shared);
            shared.number += 1;
            shared.connection = Some(connection.clone());
            Ok(Link { node: self.clone(), connection, number: shared.number })
        };
        self.connecting.take(|| self.open_link(), connect).await
    }

    fn open_link(self: &Arc<Self>) -> Option<Link> {
        let shared = lock(&self.shared);
        let connection = shared.connection.clone()?;
        Some(Link { node: self.clone(), connection, number: shared.number })
    }

    /// A connection of its own, with this limit for each reply.
    pub(crate) async fn connect(&self, reply: Option<Duration>) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECTION_TIMEOUT))
            .set_response_timeout(reply);
        self.client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// A connection of its own without a limit for replies, kept from an earlier use or new.
    pub(crate) async fn take_spare(&self) -> Result<MultiplexedConnection, RedisError> {
        let kept = lock(&self.spare).pop();
        match kept {
            Some(connection) => Ok(connection),
            None => self.connect(None).await,
        }
    }

    /// Gives a connection back on which nothing is on its way.
    pub(crate) fn keep_spare(&self, connection: MultiplexedConnection) {
        lock(&self.spare).push(connection);
    }

    /// What listens on this node, if anything does and its connection lives.
    pub(crate) fn listening(&self) -> Option<Arc<Listening>> {
        lock(&self.listening).as_ref().filter(|listening| !listening.has_ended()).cloned()
    }

    /// The one that listens on this node, subscribed to a channel for this slot.
    pub(crate) async fn listen(&self, slot: u16, key: &str) -> Result<Arc<Listening>, RedisError> {
        let connect = async {
            let new = Listening::connect(self).await?;
            *lock(&self.listening) = Some(new.clone());
            Ok(new)
        };
        let listening = self.listening_turns.take(|| self.listening(), connect).await?;
        if !listening.is_subscribed(slot) {
            let _one_at_a_time = self.subscribing.lock().await;
            listening.subscribe(slot, key).await?;
        }
        Ok(listening)
    }

    /// Ends all waits that listen on this node.
    pub(crate) fn end_listening(&self) {
        let listening = lock(&self.listening).take();
        if let Some(listening) = listening {
            listening.end();
        }
    }

    /// Closes the connections. What is on its way gets its answer first.
    pub(crate) fn close(&self) {
        self.end_listening();
        lock(&self.shared).connection = None;
        lock(&self.spare).clear();
    }
}

impl Link {
    /// One command and its reply. After a connection error the next command takes a new connection.
    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        let reply = self.connection.clone().send_packed_command(command).await;
        self.discard_after(reply)
    }

    /// One command whose answer is a number or null.
    pub(crate) async fn ask(&self, command: &Cmd, asking: bool) -> Result<Option<i64>, Failure> {
        if !asking {
            return answer::number(self.send(command).await);
        }
        let mut commands = redis::pipe();
        commands.cmd("ASKING").add_command(command.clone());
        let replies = self.send_all(&commands).await;
        answer::number(replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil)))
    }

    /// Several commands at once, each with its reply, which may be an error.
    pub(crate) async fn send_all(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let replies = self.connection.clone().send_packed_commands(commands, 0, commands.len()).await;
        self.discard_after(replies)
    }

    fn discard_after<T>(&self, reply: Result<T, RedisError>) -> Result<T, RedisError> {
        if reply.is_err() {
            self.discard();
        }
        reply
    }

    /// The next command takes a new connection. Commands that are on their way on this one go on.
    pub(crate) fn discard(&self) {
        let mut shared = lock(&self.node.shared);
        if shared.number == self.number {
            shared.connection = None;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no panic while the connections of a node are locked")
}
