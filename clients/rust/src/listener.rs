//! The channels by which requests wait: one for a server, one for each slot in a cluster. Each acquisition has a ticket
//! with a secret tag, so that its messages reach it, and nobody else can send one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use redis::RedisError;
use tokio::sync::mpsc;

use crate::hooks::Reporter;
use crate::protocol::{self, draw};
use crate::slot::{slot, tag_for};
use crate::transport::{Events, Transport};
use crate::watchdog::Holds;

/// How long a channel may have no subscription on a server that replies. Then requests poll for a while.
const TRIAL: Duration = Duration::from_secs(3);
const POLLING_FOR: Duration = Duration::from_secs(30);
/// How many messages can come to a ticket between two looks. If there are more, one says enough.
const MESSAGES: usize = 4;

/// What the waits of one `Locks` share.
pub(crate) struct Listener {
    transport: Arc<dyn Transport>,
    reporter: Arc<Reporter>,
    is_cluster: bool,
    /// Holds that have to be confirmed if messages may have been missed; nothing if no server replaces another.
    confirmed: Option<Arc<Holds>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the slot; 0 without a cluster.
    channels: HashMap<u16, Channel>,
    /// By the tag.
    tickets: HashMap<String, Place>,
    /// Until when requests poll, because no channel can be used.
    denied: Option<Instant>,
}

struct Channel {
    name: Arc<str>,
    /// Since when it has no subscription; nothing if it has had one.
    since: Option<Instant>,
}

struct Place {
    slot: u16,
    messages: mpsc::Sender<Message>,
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
    pub(crate) fn new(
        transport: &Arc<dyn Transport>,
        reporter: &Arc<Reporter>,
        holds: &Arc<Holds>,
    ) -> Arc<Self> {
        let topology = transport.topology();
        let listener = Arc::new(Self {
            transport: transport.clone(),
            reporter: reporter.clone(),
            is_cluster: topology.is_cluster,
            confirmed: topology.is_failover.then(|| holds.clone()),
            state: Mutex::default(),
        });
        let events: Arc<dyn Events> = listener.clone();
        transport.start(Arc::downgrade(&events));
        listener
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while the listener is locked")
    }

    fn slot(&self, key: &str) -> u16 {
        if self.is_cluster { slot(key) } else { 0 }
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
        let tag = if self.is_cluster { format!("{{{}}}.", tag_for(key)) } else { String::new() };
        let name: Arc<str> = format!("{tag}waits:{}", draw()).into();
        state.channels.insert(slot, Channel { name: name.clone(), since: Some(Instant::now()) });
        drop(state);
        self.transport.listen(&name);
        Some((name, true))
    }

    pub(crate) fn ticket(self: &Arc<Self>, key: &str) -> Ticket {
        let (tag, (sender, messages)) = (draw(), mpsc::channel(MESSAGES));
        self.state().tickets.insert(tag.clone(), Place { slot: self.slot(key), messages: sender });
        Ticket { tag, messages, listener: self.clone() }
    }

    /// Notes that a request was refused because of its channel, and gives whether no channel can be used.
    pub(crate) fn failed(&self, key: &str, error: &RedisError) -> bool {
        let is_denied = error.code() == Some("NOPERM") && error.to_string().contains("channel");
        if !is_denied && error.code() != Some("NOSUBSCRIBER") {
            return false;
        }
        let slot = self.slot(key);
        let mut state = self.state();
        let Some(channel) = state.channels.get(&slot) else { return is_denied };
        let is_untried = channel.since.is_some_and(|since| since.elapsed() <= TRIAL);
        if !is_denied && is_untried {
            return false;
        }
        // It has been subscribed to, so the server that has the key is another one by now.
        let has_moved = !is_denied && channel.since.is_none();
        self.forget(&mut state, slot);
        if !has_moved {
            state.denied = Some(Instant::now() + POLLING_FOR);
            drop(state);
            self.reporter.polls(error);
        }
        is_denied
    }

    fn forget(&self, state: &mut State, slot: u16) {
        if let Some(channel) = state.channels.remove(&slot) {
            self.transport.forget(&channel.name);
        }
    }

    /// Has requests sent again: those of one slot, or all.
    fn again(state: &State, slot: Option<u16>) {
        for place in state.tickets.values().filter(|place| slot.is_none_or(|slot| slot == place.slot)) {
            let _ = place.messages.try_send(Message::Missed);
        }
    }

    fn slot_of(state: &State, channel: &str) -> Option<u16> {
        state.channels.iter().find(|(_, known)| *known.name == *channel).map(|(slot, _)| *slot)
    }
}

impl Events for Listener {
    /// Others may send to the channel: a tag that is not known is ignored.
    fn heard(&self, payload: &[u8]) {
        let Some((tag, number)) = protocol::message(payload) else { return };
        if let Some(place) = self.state().tickets.get(tag) {
            let _ = place.messages.try_send(number.map_or_else(Message::Failed, Message::Number));
        }
    }

    fn subscribed(&self, channel: &str) {
        let mut state = self.state();
        if let Some(slot) = Self::slot_of(&state, channel) {
            state.channels.get_mut(&slot).expect("it was just found").since = None;
            Self::again(&state, Some(slot));
        }
    }

    fn refused(&self, channel: &str, error: &RedisError) {
        if protocol::passes(error) {
            return; // the request finds no subscriber
        }
        let mut state = self.state();
        if let Some(slot) = Self::slot_of(&state, channel) {
            self.forget(&mut state, slot);
            state.denied = Some(Instant::now() + POLLING_FOR);
            Self::again(&state, None);
            drop(state);
            self.reporter.polls(error);
        }
    }

    fn missed(&self) {
        Self::again(&self.state(), None);
        if let Some(holds) = &self.confirmed {
            holds.confirm();
        }
    }
}
