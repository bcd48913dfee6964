//! The channels by which requests wait: one for a server, one for each slot in a cluster. Each copy of a request has a ticket
//! with a secret tag, so that its message reaches it, and nobody else can send one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use redis::RedisError;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::errors::passes;
use crate::hooks::Reporter;
use crate::protocol::{self, draw};
use crate::server::Make;
use crate::slot::{slot, tag_for};
use crate::transport::{Event, Topology, Transport};
use crate::watchdog;

/// How long a channel may have no subscription on a server that replies. Then requests poll for a while.
const TRIAL: Duration = Duration::from_secs(3);
const POLLING_FOR: Duration = Duration::from_secs(30);
/// How many messages can come to a ticket between two looks. If there are more, one says enough.
const MESSAGES: usize = 4;

/// What the waits of one `Locks` share.
pub(crate) struct Listener {
    own: Weak<Self>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) topology: Topology,
    reporter: Arc<Reporter>,
    /// Of the `Locks`.
    locks: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the slot; 0 without a cluster.
    channels: HashMap<u16, Channel>,
    /// By the tag, with the slot.
    tickets: HashMap<String, (u16, mpsc::Sender<Message>)>,
    /// Until when requests poll, because no channel can be used.
    denied: Option<Instant>,
}

struct Channel {
    name: Arc<str>,
    /// Since when it has no subscription; nothing while it has one.
    since: Option<Instant>,
    is_subscribing: bool,
}

/// What comes to a ticket.
pub(crate) enum Message {
    /// A fencing token; 0 if the wait is over.
    Number(i64),
    Failed(RedisError),
    /// A message may have been missed.
    Missed,
}

/// Receives the messages of one acquisition, until it is dropped.
pub(crate) struct Ticket {
    pub(crate) tag: String,
    pub(crate) messages: mpsc::Receiver<Message>,
    listener: Arc<Listener>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.listener.state().tickets.remove(&self.tag);
    }
}

impl Listener {
    pub(crate) fn new(make: Make, reporter: &Arc<Reporter>, locks: u64) -> Arc<Self> {
        Arc::new_cyclic(|own: &Weak<Self>| {
            let listener = own.clone();
            let transport = make(Arc::new(move |event| {
                if let Some(listener) = listener.upgrade() {
                    listener.take(event);
                }
            }));
            let (own, topology, reporter) = (own.clone(), transport.topology(), reporter.clone());
            Self { own, transport, topology, reporter, locks, state: Mutex::default() }
        })
    }

    /// From now on nothing is subscribed to again.
    pub(crate) fn close(&self) {
        self.state().channels.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while the listener is locked")
    }

    fn slot(&self, key: &str) -> u16 {
        if self.topology.is_cluster { slot(key) } else { 0 }
    }

    /// The channel for a key, and whether it is new. With `opens` it subscribes to one if there is none.
    pub(crate) fn channel(&self, key: &str, opens: bool) -> Option<(Arc<str>, bool)> {
        let slot = self.slot(key);
        let mut state = self.state();
        if state.denied.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        if let Some(channel) = state.channels.get(&slot) {
            return Some((channel.name.clone(), false));
        }
        if !opens {
            return None;
        }
        let tag = if self.topology.is_cluster { format!("{{{}}}.", tag_for(key)) } else { String::new() };
        let name: Arc<str> = format!("{tag}waits:{}", draw()).into();
        let channel = Channel { name: name.clone(), since: Some(Instant::now()), is_subscribing: false };
        self.subscribe(slot, state.channels.entry(slot).or_insert(channel));
        Some((name, true))
    }

    /// Subscribes in the background. Then requests are sent again, because a message may have been missed.
    fn subscribe(&self, slot: u16, channel: &mut Channel) {
        let (Some(listener), Ok(runtime)) = (self.own.upgrade(), Handle::try_current()) else { return };
        if std::mem::replace(&mut channel.is_subscribing, true) {
            return;
        }
        let name = channel.name.clone();
        runtime.spawn(async move {
            let subscribed = listener.transport.listen(&name).await;
            let mut state = listener.state();
            let Some(channel) = state.channels.get_mut(&slot) else { return };
            channel.is_subscribing = false;
            match subscribed {
                Ok(()) => channel.since = None,
                Err(error) if passes(&error) => return, // the next request finds no subscriber
                Err(error) => listener.deny(&mut state, slot, &error),
            }
            Self::again(&state, slot);
        });
    }

    /// Has requests poll for a while.
    fn deny(&self, state: &mut State, slot: u16, error: &RedisError) {
        state.channels.remove(&slot);
        state.denied = Some(Instant::now() + POLLING_FOR);
        self.reporter.polls(error);
    }

    fn again(state: &State, slot: u16) {
        for (_, messages) in state.tickets.values().filter(|(of, _)| *of == slot) {
            let _ = messages.try_send(Message::Missed);
        }
    }

    pub(crate) fn ticket(self: &Arc<Self>, key: &str) -> Ticket {
        let (tag, (sender, messages)) = (draw(), mpsc::channel(MESSAGES));
        self.state().tickets.insert(tag.clone(), (self.slot(key), sender));
        Ticket { tag, messages, listener: self.clone() }
    }

    fn take(&self, event: Event<'_>) {
        match event {
            // Others may send to the channel: a tag that is not known is ignored.
            Event::Heard(payload) => {
                let Some((tag, number)) = protocol::message(payload) else { return };
                if let Some((_, messages)) = self.state().tickets.get(tag) {
                    let _ = messages.try_send(number.map_or_else(Message::Failed, Message::Number));
                }
            }
            Event::Missed => self.missed(),
        }
    }

    fn missed(&self) {
        let mut state = self.state();
        for (slot, channel) in &mut state.channels {
            channel.since.get_or_insert_with(Instant::now);
            self.subscribe(*slot, channel);
        }
        state.channels.keys().for_each(|slot| Self::again(&state, *slot));
        drop(state);
        if self.topology.is_failover {
            watchdog::holds(self.locks).into_iter().for_each(|hold| hold.confirm());
        }
    }

    /// Notes that a request was refused because of its channel, and gives whether no channel can be used.
    pub(crate) fn failed(&self, key: &str, error: &RedisError) -> bool {
        let is_denied = error.code() == Some("NOPERM") && error.to_string().contains("channel");
        if !is_denied && error.code() != Some("NOSUBSCRIBER") {
            return false;
        }
        let slot = self.slot(key);
        let mut state = self.state();
        let Some(channel) = state.channels.get_mut(&slot) else { return is_denied };
        if is_denied || channel.since.is_some_and(|since| since.elapsed() > TRIAL) {
            self.deny(&mut state, slot, error);
        } else {
            channel.since.get_or_insert_with(Instant::now);
            self.subscribe(slot, channel);
        }
        is_denied
    }
}
