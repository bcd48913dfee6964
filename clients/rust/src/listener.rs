// SPDX-License-Identifier: MIT OR Apache-2.0

//! The channels by which requests wait: one for a server, one for each slot in a cluster. Each copy of a request has a ticket
//! with a secret tag, so that its message reaches it, and nobody else can send one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use redis::{RedisError, RedisResult};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::errors::passes;
use crate::options::AFTER_ERRORS;
use crate::protocol::{self, draw};
use crate::server::Make;
use crate::shared::Shared;
use crate::slot::{slot, tag_for};
use crate::transport::{Event, Transport};
use crate::watchdog;

/// How long requests poll if no channel can be used.
const POLLING_FOR: Duration = Duration::from_secs(30);

/// How often a subscription that fails is tried again. After that, the next request finds no subscriber.
const FURTHER_SUBSCRIPTIONS: u32 = 5;

/// What the waits at one server share.
pub(crate) struct Listener {
    pub(crate) transport: Arc<dyn Transport>,
    shared: Arc<Shared>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the slot; 0 without a cluster.
    channels: HashMap<u16, Channel>,
    /// By the tag: the slot, and what the message goes to.
    tickets: HashMap<String, (u16, oneshot::Sender<RedisResult<i64>>)>,
    /// Until when requests poll, because no channel can be used.
    denied: Option<Instant>,
}

struct Channel {
    name: Arc<str>,
    /// Alive while a task subscribes. It ends with the task, also if the runtime drops that.
    subscribing: Weak<()>,
}

/// What one copy of a request waits by, until it is dropped.
pub(crate) struct Ticket {
    pub(crate) tag: String,
    pub(crate) channel: Arc<str>,
    /// A fencing token; 0 if the wait is over. It is closed if the message may have been missed.
    pub(crate) message: oneshot::Receiver<RedisResult<i64>>,
    pub(crate) is_channel_new: bool,
    listener: Arc<Listener>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.listener.state().tickets.remove(&self.tag);
    }
}

impl Listener {
    pub(crate) fn new(make: Make, shared: &Arc<Shared>) -> Arc<Self> {
        Arc::new_cyclic(|own: &Weak<Self>| {
            let listener = own.clone();
            let transport = make(Arc::new(move |event| {
                if let Some(listener) = listener.upgrade() {
                    listener.take(event);
                }
            }));
            Self { transport, shared: shared.clone(), state: Mutex::default() }
        })
    }

    /// From now on nothing is subscribed to again.
    pub(crate) fn close(&self) {
        self.state().channels.clear();
        self.transport.close();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while the listener is locked")
    }

    fn slot(&self, key: &str) -> u16 {
        if self.transport.topology().is_cluster { slot(key) } else { 0 }
    }

    /// What a request for a key waits by, if there is a channel. With `opens` it subscribes to one if there is none.
    pub(crate) fn ticket(self: &Arc<Self>, key: &str, opens: bool) -> Option<Ticket> {
        let (slot, mut state) = (self.slot(key), self.state());
        let is_channel_new = !state.channels.contains_key(&slot);
        if state.denied.is_some_and(|until| Instant::now() < until) || is_channel_new && !opens {
            return None;
        }
        let channel = state.channels.entry(slot).or_insert_with(|| {
            let is_cluster = self.transport.topology().is_cluster;
            let tag = if is_cluster { format!("{{{}}}.", tag_for(key)) } else { String::new() };
            Channel { name: format!("{tag}waits:{}", draw()).into(), subscribing: Weak::new() }
        });
        if is_channel_new {
            self.subscribe(slot, channel);
        }
        let (channel, tag, (sender, message)) = (channel.name.clone(), draw(), oneshot::channel());
        state.tickets.insert(tag.clone(), (slot, sender));
        Some(Ticket { tag, channel, message, is_channel_new, listener: self.clone() })
    }

    /// Subscribes in the background. Then requests are sent again, because a message may have been missed.
    fn subscribe(self: &Arc<Self>, slot: u16, channel: &mut Channel) {
        let Ok(runtime) = Handle::try_current() else { return };
        if channel.subscribing.strong_count() > 0 {
            return;
        }
        let subscribing = Arc::new(());
        channel.subscribing = Arc::downgrade(&subscribing);
        let (listener, name) = (self.clone(), channel.name.clone());
        runtime.spawn(async move {
            let mut failures = 0;
            // A server that has not noticed the loss of a connection would let requests wait for a channel that nobody hears.
            let subscribed = loop {
                if !listener.state().channels.contains_key(&slot) {
                    return;
                }
                match listener.transport.listen(&name).await {
                    Err(error) if passes(&error) && failures < FURTHER_SUBSCRIPTIONS => {
                        sleep(AFTER_ERRORS.pause(failures).unwrap_or_default()).await;
                        failures += 1;
                    }
                    subscribed => break subscribed,
                }
            };
            let mut state = listener.state();
            if !state.channels.contains_key(&slot) {
                // Closed meanwhile: the connection may have been opened after that.
                drop(state);
                return listener.transport.close();
            }
            drop(subscribing);
            match subscribed {
                Ok(()) => state.tickets.retain(|_, (of, _)| *of != slot),
                Err(error) if passes(&error) => {} // the next request finds no subscriber
                Err(error) => listener.deny(&mut state, slot, &error),
            }
        });
    }

    /// Has requests poll for a while.
    fn deny(&self, state: &mut State, slot: u16, error: &RedisError) {
        if state.channels.remove(&slot).is_some() {
            state.denied = Some(Instant::now() + POLLING_FOR);
            self.shared.reporter.polls(error);
        }
    }

    /// Whether a request was refused because of its channel. It has to be sent again.
    pub(crate) fn refused(self: &Arc<Self>, key: &str, error: &RedisError) -> bool {
        let (slot, mut state) = (self.slot(key), self.state());
        match error.code() {
            Some("NOPERM") if error.to_string().contains("channel") => self.deny(&mut state, slot, error),
            Some("NOSUBSCRIBER") => {
                state.channels.get_mut(&slot).into_iter().for_each(|channel| self.subscribe(slot, channel));
            }
            _ => return false,
        }
        true
    }

    fn take(self: &Arc<Self>, event: Event<'_>) {
        let mut state = self.state();
        match event {
            // Others may send to the channel: a tag that is not known is ignored.
            Event::Heard(payload) => {
                if let Some((tag, number)) = protocol::message(payload)
                    && let Some((_, ticket)) = state.tickets.remove(tag)
                {
                    let _ = ticket.send(number);
                }
            }
            Event::Missed => {
                state.tickets.clear();
                state.channels.iter_mut().for_each(|(slot, channel)| self.subscribe(*slot, channel));
                drop(state);
                if self.transport.topology().is_failover && !self.shared.closing.is_cancelled() {
                    watchdog::holds(&self.shared).into_iter().for_each(|hold| hold.look(true));
                }
            }
        }
    }
}
