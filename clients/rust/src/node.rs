//! One server, and the connections to it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, Value};
use tokio::time::timeout_at;

use crate::answers::{self, Failure};
use crate::listener::Listener;
use crate::once::Once;

/// No command but a wait that blocks takes the server longer to answer.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// So many commands may wait to be written, before those who send have to wait for each other.
const MOST_UNSENT: usize = 4096;
/// How often TCP looks whether the other end of an idle connection is there.
const BETWEEN_PROBES: Duration = Duration::from_secs(5);

/// One command, or several in one pipeline.
#[derive(Clone, Copy)]
pub(crate) enum Words<'a> {
    One(&'a Cmd),
    Several(&'a Pipeline),
}

impl Words<'_> {
    /// The same with `ASKING` before each command, for a node that takes the slot over.
    fn asking(self) -> Pipeline {
        let mut commands = redis::pipe();
        let mut add = |command: &Cmd| {
            commands.cmd("ASKING").add_command(command.clone());
        };
        match self {
            Words::One(command) => add(command),
            Words::Several(several) => several.cmd_iter().for_each(add),
        }
        commands
    }
}

/// What is needed before anything can be sent, until this moment.
pub(crate) async fn in_time<T>(
    until: Instant,
    need: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let need = timeout_at(until.into(), need).await;
    need.unwrap_or_else(|_| Err(Failure::Unreachable(answers::no_answer("the server"))))
}

/// A server. All commands share one connection, which is opened when it is needed.
pub(crate) struct Node {
    client: Client,
    address: String,
    connection: Once<MultiplexedConnection>,
    spare: Mutex<Vec<MultiplexedConnection>>,
    listener: Once<Arc<Listener>>,
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
            connection: Once::default(),
            spare: Mutex::default(),
            listener: Once::default(),
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// A connection of its own, without a limit for replies.
    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(REPLY_TIMEOUT))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(MOST_UNSENT);
        self.client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// Sends this on the connection that all share, and gives the reply that comes until this moment: for
    /// several commands an array. After a connection error the next one takes a new connection.
    pub(crate) async fn send(&self, words: Words<'_>, until: Instant) -> Result<Value, Failure> {
        let (mut connection, number) = match self.connection.current() {
            Some(current) => current,
            None => in_time(until, Box::pin(self.open())).await?,
        };
        let reply: BoxFuture<'_, _> = match words {
            Words::One(command) => connection.req_packed_command(command),
            Words::Several(commands) => {
                let replies = connection.req_packed_commands(commands, 0, commands.len());
                Box::pin(async { replies.await.map(Value::Array) })
            }
        };
        let reply = timeout_at(until.into(), reply).await;
        let reply = reply.unwrap_or_else(|_| Err(answers::no_answer(&self.address)));
        if reply.is_err() {
            self.connection.discard(number);
        }
        answers::value(reply)
    }

    async fn open(&self) -> Result<(MultiplexedConnection, u64), Failure> {
        let connection = self.connection.get(self.connect()).await;
        connection.map_err(|error| answers::failure(error).before_sending())
    }

    /// As [`Node::send`], to a node that takes the slot over and does not serve it yet.
    pub(crate) async fn send_asking(&self, words: Words<'_>, until: Instant) -> Result<Value, Failure> {
        let commands = words.asking();
        let reply = self.send(Words::Several(&commands), until).await?;
        let Value::Array(replies) = reply else { return Ok(reply) };
        let mut of_commands = replies.into_iter().skip(1).step_by(2);
        Ok(match words {
            Words::One(_) => of_commands.next().unwrap_or(Value::Nil),
            Words::Several(_) => Value::Array(of_commands.collect()),
        })
    }

    /// A connection of its own kept from an earlier use or new.
    pub(crate) async fn take_spare(&self) -> Result<MultiplexedConnection, RedisError> {
        let kept = self.spare().pop();
        match kept {
            Some(connection) => Ok(connection),
            None => self.connect().await,
        }
    }

    /// Gives a connection back on which nothing is on its way.
    pub(crate) fn keep_spare(&self, connection: MultiplexedConnection) {
        self.spare().push(connection);
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, Vec<MultiplexedConnection>> {
        self.spare.lock().expect("no panic while the spare connections are locked")
    }

    /// The listener that is subscribed for this slot, if there is one.
    pub(crate) fn listening(&self, slot: u16) -> Option<Arc<Listener>> {
        let (listener, _) = self.listener.current()?;
        listener.is_subscribed(slot).then_some(listener)
    }

    /// A listener that is subscribed for the slot of this key.
    pub(crate) async fn subscribe(&self, slot: u16, key: &str) -> Result<Arc<Listener>, RedisError> {
        if let Some((listener, number)) = self.listener.current()
            && listener.has_ended()
        {
            self.listener.discard(number);
        }
        let (listener, _) = self.listener.get(Listener::connect(&self.client, REPLY_TIMEOUT)).await?;
        listener.subscribe(slot, key).await?;
        Ok(listener)
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
        self.spare().clear();
    }
}
