//! The connection on which waits end.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ProtocolVersion, PushInfo, PushKind, RedisError, Value, cmd};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::answers::{self, Failure};
use crate::{commands, slot};

const BETWEEN_TESTS: Duration = Duration::from_secs(5);

/// How a wait ended: the number in the message, or its error.
pub(crate) type Ended = Result<i64, Failure>;

/// One connection to one node, with a channel for each slot in which somebody waits. When the connection or a
/// subscription is lost, it ends and all its waits with it: each asks again on the next one.
pub(crate) struct Listener {
    table: Mutex<Table>,
    /// One at a time: all that come at once wait in one channel.
    subscribing: tokio::sync::Mutex<()>,
    task: OnceLock<AbortHandle>,
}

struct Table {
    /// Nothing when listening has ended.
    connection: Option<MultiplexedConnection>,
    channels: HashMap<u16, Arc<str>>,
    waits: HashMap<u64, oneshot::Sender<Ended>>,
}

/// A request that has been noted. It is forgotten when this is dropped.
pub(crate) struct Noted {
    listener: Arc<Listener>,
    pub(crate) tag: u64,
    end: oneshot::Receiver<Ended>,
}

impl Noted {
    /// The message for the request; nothing when nobody listens any more.
    pub(crate) async fn end(&mut self) -> Option<Ended> {
        (&mut self.end).await.ok()
    }

    /// The subscription is not what it seemed: everybody who waits here asks again.
    pub(crate) fn end_listening(&self) {
        self.listener.end();
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.listener.table().waits.remove(&self.tag);
    }
}

impl Listener {
    /// A connection of its own to the server of this client.
    pub(crate) async fn connect(client: &Client, limit: Duration) -> Result<Arc<Self>, RedisError> {
        // Messages between replies need RESP3, whatever the client of the program speaks.
        let info = client.get_connection_info().clone();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings))?;
        let (sender, messages) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(limit))
            .set_response_timeout(Some(limit))
            .set_push_sender(sender);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let table =
            Table { connection: Some(connection), channels: HashMap::default(), waits: HashMap::default() };
        let subscribing = tokio::sync::Mutex::default();
        let listener = Arc::new(Self { table: Mutex::new(table), subscribing, task: OnceLock::new() });
        let task = tokio::spawn(listen(Ends(Arc::downgrade(&listener)), messages));
        let _ = listener.task.set(task.abort_handle());
        Ok(listener)
    }

    fn table(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().expect("no panic while the table of waits is locked")
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.table().connection.is_none()
    }

    pub(crate) fn is_subscribed(&self, slot: u16) -> bool {
        self.table().channels.contains_key(&slot)
    }

    /// Subscribes to a new channel in the slot of the key, unless there is one.
    pub(crate) async fn subscribe(&self, slot: u16, key: &str) -> Result<(), RedisError> {
        let _one_at_a_time = self.subscribing.lock().await;
        if self.is_subscribed(slot) {
            return Ok(());
        }
        let connection = self.table().connection.clone();
        let mut connection = connection.ok_or_else(closed)?;
        let channel = format!("{{{}}}.waits:{}", slot::tag_for(key), commands::random_name());
        let reply = connection.send_packed_command(cmd("SSUBSCRIBE").arg(&channel)).await;
        match reply.and_then(Value::extract_error) {
            Ok(_) => {
                self.table().channels.insert(slot, channel.into());
                Ok(())
            }
            Err(error) => {
                if !answers::failure(error.clone()).is_answer() {
                    self.end();
                }
                Err(error)
            }
        }
    }

    /// Notes a request under a new tag. Gives the channel as well; nothing when nobody listens in this slot.
    pub(crate) fn note(self: &Arc<Self>, slot: u16, tag: u64) -> Option<(Noted, Arc<str>)> {
        let (sender, end) = oneshot::channel();
        let channel = {
            let mut table = self.table();
            let channel = table.channels.get(&slot)?.clone();
            table.waits.insert(tag, sender);
            channel
        };
        Some((Noted { listener: self.clone(), tag, end }, channel))
    }

    /// Ends all waits, and closes the connection when the last of them is gone.
    pub(crate) fn end(&self) {
        let waits = {
            let mut table = self.table();
            table.connection = None;
            table.channels.clear();
            std::mem::take(&mut table.waits)
        };
        drop(waits);
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    /// Gives whether the connection still listens.
    fn take(&self, push: &PushInfo) -> bool {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::SMessage, [_, Value::BulkString(payload)]) => {
                if let Some((tag, end)) = answers::message(payload) {
                    let noted = self.table().waits.remove(&tag);
                    // A tag that nobody has noted any more is ignored.
                    noted.map(|wait| wait.send(end));
                }
                true
            }
            (PushKind::SUnsubscribe | PushKind::Disconnection, _) => false,
            _ => true,
        }
    }

    /// The connection, if somebody waits for messages on it.
    fn connection_to_test(&self) -> Option<MultiplexedConnection> {
        let table = self.table();
        if table.waits.is_empty() { None } else { table.connection.clone() }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// Ends listening with the task, also when that is dropped by a runtime that shuts down.
struct Ends(Weak<Listener>);

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(listener) = self.0.upgrade() {
            listener.end();
        }
    }
}

async fn listen(ends: Ends, mut messages: mpsc::UnboundedReceiver<PushInfo>) {
    let mut tests = tokio::time::interval(BETWEEN_TESTS);
    tests.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut test: Option<Pin<Box<dyn Future<Output = bool> + Send>>> = None;
    loop {
        let lives = tokio::select! {
            message = messages.recv() => {
                let Some(listener) = ends.0.upgrade() else { return };
                message.is_some_and(|push| listener.take(&push))
            }
            answered = async { test.as_mut().expect("there is a test").await }, if test.is_some() => {
                test = None;
                answered
            }
            _ = tests.tick(), if test.is_none() => {
                let Some(listener) = ends.0.upgrade() else { return };
                if let Some(connection) = listener.connection_to_test() {
                    test = Some(Box::pin(answers(connection)));
                }
                true
            }
        };
        if !lives {
            return;
        }
    }
}

fn closed() -> RedisError {
    std::io::Error::new(std::io::ErrorKind::NotConnected, "listening has ended").into()
}

async fn answers(mut connection: MultiplexedConnection) -> bool {
    connection.send_packed_command(&cmd("PING")).await.is_ok()
}
