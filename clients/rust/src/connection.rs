//! The connection that all share: commands go over it, and the messages come over it on which waits end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Cmd, PushInfo, PushKind, RedisFuture, Value, cmd};
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::answers::{self, Failure, Reply};
use crate::{commands, slot};

/// No command but a wait that blocks takes the server longer to answer.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// So many commands may wait to be written, before those who send have to wait for each other.
const MOST_UNSENT: usize = 4096;
/// How often a connection is tested while somebody waits on it.
pub(crate) const BETWEEN_TESTS: Duration = Duration::from_secs(5);

/// How a wait ended: the number in the message, or its error.
pub(crate) type Ended = Result<i64, Failure>;

pub(crate) struct Connection {
    address: String,
    commands: MultiplexedConnection,
    waits: Arc<Waits>,
    /// One at a time: all that come at once wait in one channel.
    subscribing: tokio::sync::Mutex<()>,
}

/// Who waits on a connection, with a channel for each slot in which somebody does.
#[derive(Default)]
struct Waits {
    entries: Mutex<Entries>,
    is_lost: AtomicBool,
}

#[derive(Default)]
struct Entries {
    channels: HashMap<u16, Arc<str>>,
    waits: HashMap<u64, oneshot::Sender<Ended>>,
}

/// A request that has been noted. It is forgotten when this is dropped. Until then the connection stays open.
pub(crate) struct Noted {
    pub(crate) connection: Arc<Connection>,
    pub(crate) channel: Arc<str>,
    tag: u64,
    end: oneshot::Receiver<Ended>,
}

impl Noted {
    /// The message for the request, unless nobody listens any more.
    pub(crate) async fn end(&mut self) -> Ended {
        (&mut self.end).await.unwrap_or_else(|_| Err(Failure::connection_lost()))
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.connection.waits.entries().waits.remove(&self.tag);
    }
}

/// With these options a connection has no limit for replies: each command has its own.
pub(crate) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(REPLY_TIMEOUT))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(MOST_UNSENT)
}

impl Connection {
    /// To the server of this client, which speaks RESP3: that has messages between replies.
    pub(crate) async fn open(client: Client) -> Result<Arc<Self>, Failure> {
        let waits = Arc::<Waits>::default();
        let messages = Messages(waits.clone());
        let config = config().set_push_sender(move |push| {
            messages.0.take(&push);
            Ok::<_, ()>(())
        });
        let commands = client.get_multiplexed_async_connection_with_config(&config).await?;
        let (address, subscribing) = (client.get_connection_info().addr().to_string(), Default::default());
        let connection = Arc::new(Self { address, commands, waits, subscribing });
        tokio::spawn(test_now_and_then(Arc::downgrade(&connection)));
        Ok(connection)
    }

    /// Gives the reply that comes until this moment: for several commands an array.
    pub(crate) async fn ask(&self, commands: &[Cmd], until: Instant) -> Reply {
        let mut connection = self.commands.clone();
        match timeout_at(until.into(), exchange(&mut connection, commands)).await {
            // The base library takes the message that a subscription has ended for a reply, and gives each later
            // reply to the wrong command.
            Ok(Ok(_)) if self.is_lost() => Err(Failure::connection_lost()),
            Ok(reply) => Ok(reply?.extract_error()?),
            Err(_) => Err(Failure::no_answer(&self.address)),
        }
    }

    /// Nothing that is sent over it from now on is answered.
    pub(crate) fn is_lost(&self) -> bool {
        self.waits.is_lost.load(Ordering::Acquire)
    }

    /// Subscribes to a new channel in the slot of the key, unless there is one.
    pub(crate) async fn subscribe(&self, slot: u16, key: &str, until: Instant) -> Result<(), Failure> {
        let _one_at_a_time = self.subscribing.lock().await;
        if self.waits.entries().channels.contains_key(&slot) {
            return Ok(());
        }
        let channel = format!("{{{}}}.waits:{}", slot::tag_for(key), commands::random_name());
        self.ask(std::slice::from_ref(cmd("SSUBSCRIBE").arg(&channel)), until).await?;
        let mut entries = self.waits.entries();
        if self.is_lost() {
            return Err(Failure::connection_lost());
        }
        entries.channels.insert(slot, channel.into());
        Ok(())
    }

    /// Everybody who waits here asks again.
    pub(crate) fn end_waits(&self) {
        self.waits.end();
    }

    /// Notes a request under its tag; nothing when nobody listens in this slot.
    pub(crate) fn note(self: &Arc<Self>, slot: u16, tag: u64) -> Option<Noted> {
        let mut entries = self.waits.entries();
        let channel = entries.channels.get(&slot)?.clone();
        let (sender, end) = oneshot::channel();
        entries.waits.insert(tag, sender);
        Some(Noted { connection: self.clone(), channel, tag, end })
    }
}

impl Waits {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().expect("no panic while the table of waits is locked")
    }

    /// Whoever waits asks again on another channel.
    fn end(&self) {
        let ended = std::mem::take(&mut *self.entries());
        // Whoever waits is woken when the table is unlocked again.
        drop(ended);
    }

    fn lose(&self) {
        self.is_lost.store(true, Ordering::Release);
        self.end();
    }

    /// Called by the connection itself, so that a message takes no detour to the request.
    fn take(&self, push: &PushInfo) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::SMessage, [_, Value::BulkString(payload)]) => {
                if let Some((tag, end)) = answers::message(payload) {
                    let noted = self.entries().waits.remove(&tag);
                    // A tag that nobody has noted any more is ignored: whoever gave up releases.
                    noted.map(|wait| wait.send(end));
                }
            }
            (PushKind::SUnsubscribe | PushKind::Disconnection, _) => self.lose(),
            _ => {}
        }
    }
}

/// What the base library has of the waits. It is dropped with its end of the connection, also by a runtime that shuts
/// down.
struct Messages(Arc<Waits>);

impl Drop for Messages {
    fn drop(&mut self) {
        self.0.lose();
    }
}

async fn test_now_and_then(tested: Weak<Connection>) {
    loop {
        tokio::time::sleep(BETWEEN_TESTS).await;
        let Some(connection) = tested.upgrade().filter(|connection| !connection.is_lost()) else { return };
        let is_used = !connection.waits.entries().waits.is_empty();
        if is_used
            && let Err(failure) = connection.ask(&[cmd("PING")], Instant::now() + REPLY_TIMEOUT).await
            && !failure.is_answer()
        {
            return connection.waits.lose();
        }
    }
}

/// The reply to one command, or an array of those to several.
pub(crate) fn exchange<'a>(
    connection: &'a mut MultiplexedConnection,
    commands: &'a [Cmd],
) -> RedisFuture<'a, Value> {
    if let [command] = commands {
        return connection.req_packed_command(command);
    }
    let mut pipeline = redis::pipe();
    for command in commands {
        pipeline.add_command(command.clone());
    }
    Box::pin(
        async move { connection.req_packed_commands(&pipeline, 0, commands.len()).await.map(Value::Array) },
    )
}
