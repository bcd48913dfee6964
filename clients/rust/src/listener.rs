//! The connection on which waits end: channels, tags, and the messages to acquisitions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ProtocolVersion, PushInfo, PushKind, Value, cmd};
use tokio::sync::oneshot;

use crate::answers::{self, Failure};
use crate::{commands, slot};

const BETWEEN_TESTS: Duration = Duration::from_secs(5);

/// How a wait ended: the number in the message, or its error.
pub(crate) type Ended = Result<i64, Failure>;

/// One connection to one node, with a channel for each slot in which somebody waits. When the connection or a
/// subscription is lost, it ends and all its waits with it: each asks again on the next one.
#[derive(Default)]
pub(crate) struct Listener {
    entries: Mutex<Entries>,
    /// One at a time: all that come at once wait in one channel.
    subscribing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Entries {
    /// Nothing before listening has begun and when it has ended.
    connection: Option<MultiplexedConnection>,
    has_ended: bool,
    channels: HashMap<u16, Arc<str>>,
    waits: HashMap<u64, oneshot::Sender<Ended>>,
}

/// A request that has been noted. It is forgotten when this is dropped.
pub(crate) struct Noted {
    listener: Arc<Listener>,
    pub(crate) channel: Arc<str>,
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
        self.listener.entries().waits.remove(&self.tag);
    }
}

impl Listener {
    /// A connection of its own to the server of this client.
    pub(crate) async fn connect(client: &Client, limit: Duration) -> Result<Arc<Self>, Failure> {
        // Messages between replies need RESP3, whatever the client of the program speaks.
        let info = client.get_connection_info().clone();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings))?;
        let listener = Arc::new(Self::default());
        let messages = Messages(Arc::downgrade(&listener));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(limit))
            .set_response_timeout(Some(limit))
            .set_push_sender(move |push: PushInfo| {
                messages.0.upgrade().inspect(|listener| listener.take(&push));
                Ok::<_, ()>(())
            });
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        {
            let mut entries = listener.entries();
            entries.connection = (!entries.has_ended).then_some(connection);
        }
        tokio::spawn(test_now_and_then(Arc::downgrade(&listener)));
        Ok(listener)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.entries().has_ended
    }

    pub(crate) fn is_subscribed(&self, slot: u16) -> bool {
        self.entries().channels.contains_key(&slot)
    }

    /// Subscribes to a new channel in the slot of the key, unless there is one.
    pub(crate) async fn subscribe(&self, slot: u16, key: &str) -> Result<(), Failure> {
        let _one_at_a_time = self.subscribing.lock().await;
        if self.is_subscribed(slot) {
            return Ok(());
        }
        let connection = self.entries().connection.clone();
        let mut connection = connection.ok_or_else(Failure::listening_lost)?;
        let channel = format!("{{{}}}.waits:{}", slot::tag_for(key), commands::random_name());
        let reply = connection.send_packed_command(cmd("SSUBSCRIBE").arg(&channel)).await;
        if let Err(failure) = reply.and_then(Value::extract_error).map_err(Failure::from) {
            if !failure.is_answer() {
                self.end();
            }
            return Err(failure);
        }
        let mut entries = self.entries();
        if entries.has_ended {
            return Err(Failure::listening_lost());
        }
        entries.channels.insert(slot, channel.into());
        Ok(())
    }

    /// Notes a request under its tag; nothing when nobody listens in this slot.
    pub(crate) fn note(self: &Arc<Self>, slot: u16, tag: u64) -> Option<Noted> {
        let (sender, end) = oneshot::channel();
        let mut entries = self.entries();
        let channel = entries.channels.get(&slot)?.clone();
        entries.waits.insert(tag, sender);
        Some(Noted { listener: self.clone(), channel, tag, end })
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().expect("no panic while the table of waits is locked")
    }

    /// Ends all waits, and closes the connection when the last of them is gone.
    pub(crate) fn end(&self) {
        let ended = {
            let mut entries = self.entries();
            std::mem::replace(&mut *entries, Entries { has_ended: true, ..Entries::default() })
        };
        // Whoever waits is woken, and the connection closed, when the table is unlocked again.
        drop(ended);
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
            (PushKind::SUnsubscribe | PushKind::Disconnection, _) => self.end(),
            _ => {}
        }
    }

    /// The connection, if somebody waits for messages on it.
    fn connection_to_test(&self) -> Option<MultiplexedConnection> {
        let entries = self.entries();
        if entries.waits.is_empty() { None } else { entries.connection.clone() }
    }
}

/// What the connection has of the listener. It is dropped with the connection, also by a runtime that shuts
/// down, and then listening has ended.
struct Messages(Weak<Listener>);

impl Drop for Messages {
    fn drop(&mut self) {
        self.0.upgrade().inspect(|listener| listener.end());
    }
}

async fn test_now_and_then(tested: Weak<Listener>) {
    loop {
        tokio::time::sleep(BETWEEN_TESTS).await;
        let Some(listener) = tested.upgrade().filter(|listener| !listener.has_ended()) else { return };
        if let Some(mut connection) = listener.connection_to_test()
            && connection.send_packed_command(&cmd("PING")).await.is_err()
        {
            return listener.end();
        }
    }
}
