// SPDX-License-Identifier: MIT OR Apache-2.0

//! A connection of the redis crate that many share. It is opened when it is needed, and another one when it fails.

use std::collections::HashSet;
use std::io::{Error, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::aio::{ConnectionLike, SendError};
use redis::{Cmd, PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{sleep_until, timeout, timeout_at};

use crate::errors::is_reply;
use crate::slot::slot;
use crate::transport::{Call, Event, Events, Reply, SILENCE, Topology, Transport, silent};

/// Maximum time to open a connection; several servers may have to be tried.
const OPENING: Duration = Duration::from_secs(5);
/// The same for one server. In the 3 s of a call an opening that takes long succeeds, for example with TLS to a server that is
/// far away, and one that is dead is replaced.
pub(crate) const OPENING_ONE: Duration = Duration::from_secs(2);
/// A connection that fails at once is not replaced more often.
const BETWEEN_OPENINGS: Duration = Duration::from_millis(10);
/// Maximum number of connections for one call at a time.
const MOST_SINGLE: usize = 32;

/// A connection of the redis crate.
pub(crate) trait Connection: Clone + Send + Sync + 'static {
    /// The redis crate does not repeat a command before this time has passed.
    const SENT_ONCE: Duration;
    /// Sends the command, and the one that follows it. Gives the reply to each.
    fn exchange(self, call: Call<'_>) -> BoxFuture<'_, RedisResult<Vec<Value>>>;
    fn subscribe(self, channel: &str) -> BoxFuture<'_, RedisResult<()>>;
}

/// Opens a connection. A shared one gets the `Health` that it reports to; one for a single call at a time gets none.
pub(crate) type Open<C> =
    Arc<dyn Fn(Option<Arc<Health>>) -> BoxFuture<'static, RedisResult<C>> + Send + Sync>;

pub(crate) struct Link<C> {
    topology: Topology,
    program: Option<Program>,
    /// Over which messages come, if they need a connection of their own.
    pub(crate) messages: Option<Box<Self>>,
    open: Open<C>,
    events: Events,
    shared: Mutex<Pair<C>>,
    /// What lets a connection for one call at a time be used.
    single: Semaphore,
}

/// The connections that many calls share. In a cluster a silent node stops only its own slots.
struct Pair<C> {
    first: Option<Live<C>>,
    /// What had no reply over the first connection. It uses the second one, and if that has a reply it becomes the first.
    /// Commands without a key do not count: they leave out nodes that cannot be connected to.
    silent: HashSet<Option<u16>>,
    second: Option<Live<C>>,
}

/// A connection, which may still be on its way.
#[derive(Clone)]
struct Live<C> {
    connection: Shared<BoxFuture<'static, RedisResult<C>>>,
    opened: Instant,
    health: Arc<Health>,
    /// Connections for one call at a time that no call uses.
    idle: Arc<Mutex<Vec<C>>>,
}

impl<C> Pair<C> {
    /// Notes whether there was a reply over a connection that is open.
    fn note(&mut self, live: &Live<C>, slot: Option<u16>, is_silent: bool) {
        let is_in = |place: &Option<Live<C>>| {
            place.as_ref().is_some_and(|other| Arc::ptr_eq(&other.health, &live.health))
        };
        if is_in(&self.first) && is_silent {
            self.silent.insert(slot);
        } else if is_in(&self.second) && is_silent {
            live.health.is_lost.store(true, Ordering::Release); // no message is missed: there is no subscription yet
        } else if is_in(&self.second) && slot.is_some() {
            (self.first, self.silent) = (self.second.take(), HashSet::new());
        }
    }
}

impl<C: Connection> Link<C> {
    pub(crate) fn new(topology: Topology, program: Option<Program>, events: Events, open: Open<C>) -> Self {
        let shared = Mutex::new(Pair { first: None, silent: HashSet::new(), second: None });
        let single = Semaphore::new(MOST_SINGLE);
        Self { topology, program, messages: None, open, events, shared, single }
    }

    fn shared(&self) -> MutexGuard<'_, Pair<C>> {
        self.shared.lock().expect("nothing panics here")
    }

    fn slot(&self, key: Option<&str>) -> Option<u16> {
        key.filter(|_| self.topology.is_cluster).map(slot)
    }

    fn live(&self, slot: Option<u16>) -> Live<C> {
        let pair = &mut *self.shared();
        let shared = if pair.silent.contains(&slot) { &mut pair.second } else { &mut pair.first };
        if let Some(live) = shared.as_ref().filter(|live| !live.health.is_lost()) {
            return live.clone();
        }
        // The error of the last one says nothing of the server now: the call waits until another one may be opened.
        let now = Instant::now();
        let opened = shared.as_ref().map_or(now, |last| now.max(last.opened + BETWEEN_OPENINGS));
        let (is_lost, doubt, idle) = Default::default();
        let health = Arc::new(Health { is_lost, doubt, events: self.events.clone() });
        let (open, own) = (self.open.clone(), health.clone());
        // A task ends with an error if the program's function panics, or if the runtime shuts down.
        let opening = tokio::spawn(async move {
            sleep_until(opened.into()).await;
            open(Some(own)).await
        });
        let connection = opening.map(|result| result.map_err(Error::from)?).boxed().shared();
        shared.insert(Live { connection, opened, health, idle }).clone()
    }

    /// Waits for the reply to what is sent for a slot, and notes what it says of the connection.
    async fn noted<T>(
        &self,
        live: &Live<C>,
        slot: Option<u16>,
        until: Instant,
        sent: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<T> {
        let reply = timeout_at(until.into(), sent).await.unwrap_or_else(|_| Err(silent()));
        let opened = live.connection.peek();
        // One that is still being opened is waited for by the next command.
        let is_spent = opened.is_some() || live.opened.elapsed() > OPENING;
        match &reply {
            Err(error) if is_spent && (!is_reply(error) || matches!(opened, Some(Err(_)))) => match opened {
                Some(Ok(_)) if self.topology.is_cluster => self.shared().note(live, slot, true),
                _ => live.health.lose(),
            },
            _ if live.health.is_lost() => return Err(lost()),
            Ok(_) if self.topology.is_cluster => self.shared().note(live, slot, false),
            // A former primary without replicas, or one that is a replica by now.
            Err(error) if matches!(error.code(), Some("READONLY" | "NOREPLICAS")) => {
                live.health.doubt.notify_one()
            }
            _ => {}
        }
        reply
    }

    async fn exchange(&self, live: &Live<C>, call: Call<'_>) -> RedisResult<(Value, Value)> {
        let Some((_, block)) = call.then else {
            return exchange(live.connection.clone().await?, call).await;
        };
        let idle = || live.idle.lock().expect("nothing panics here");
        let free = idle().pop();
        let connection = match free {
            Some(connection) => connection,
            None => (self.open)(None).await?,
        };
        let replies = timeout(SILENCE + block, exchange(connection.clone(), call));
        let replies = replies.await.map_err(|_| silent())??;
        idle().push(connection);
        Ok(replies)
    }
}

impl<C: Connection> Transport for Link<C> {
    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, RedisResult<Reply>> {
        async move {
            let program = self.program.as_ref().filter(|_| !call.is_reserved && call.then.is_none());
            if let Some(program) = program
                && let Some(reply) = program.call(call).await
            {
                return reply;
            }
            let _turn = match call.then {
                Some(_) => {
                    timeout_at(call.until.into(), self.single.acquire()).await.map_err(|_| silent())?.ok()
                }
                None => None,
            };
            let slot = self.slot(call.key);
            let (live, sent) = (self.live(slot), Instant::now());
            let until = match call.then {
                // It may have to open a connection before.
                Some((_, block)) => call.until.min(sent + OPENING_ONE + SILENCE) + block,
                None => call.until.min(sent + SILENCE),
            };
            let (value, then) = self.noted(&live, slot, until, self.exchange(&live, call)).await?;
            Ok(Reply { value, then, is_alone: program.is_none() && sent.elapsed() < C::SENT_ONCE })
        }
        .boxed()
    }

    fn listen<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, RedisResult<()>> {
        let link = self.messages.as_deref().unwrap_or(self);
        async move {
            let slot = link.slot(Some(channel));
            let live = link.live(slot);
            let subscribed = async { live.connection.clone().await?.subscribe(channel).await };
            link.noted(&live, slot, Instant::now() + SILENCE, subscribed).await
        }
        .boxed()
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn close(&self) {
        let pair = &mut *self.shared();
        (pair.first, pair.second) = (None, None);
        self.messages.iter().for_each(|messages| messages.close());
    }
}

/// A connection of the program's. What instruments it sees the commands of calls.
pub(crate) struct Program(Box<dyn Fn(Cmd) -> BoxFuture<'static, RedisResult<Value>> + Send + Sync>);

impl Program {
    /// Each call is refused if the connection was not opened for the database `db`, where renewals go.
    pub(crate) fn new(connection: impl ConnectionLike + Clone + Send + Sync + 'static, db: i64) -> Self {
        Self(Box::new(move |command| {
            let mut connection = connection.clone();
            if connection.get_db() != db {
                let text =
                    format!("the connection is for database {}, the client for {db}", connection.get_db());
                return async { Err((redis::ErrorKind::InvalidClientConfig, "two databases", text).into()) }
                    .boxed();
            }
            async move { connection.req_packed_command(&command).await }.boxed()
        }))
    }

    /// Sends a command. It is nothing if there is no reply for half the time: the connection may be silent, or busy with a
    /// command that blocks.
    async fn call(&self, call: Call<'_>) -> Option<RedisResult<Reply>> {
        let now = Instant::now();
        let until = now + (call.until.saturating_duration_since(now) / 2).min(SILENCE);
        let reply = timeout_at(until.into(), (self.0)(call.command.clone())).await.ok()?;
        match reply.and_then(Value::extract_error) {
            Err(error) if !is_reply(&error) && error.kind() != redis::ErrorKind::InvalidClientConfig => None,
            reply => Some(reply.map(|value| Reply { value, then: Value::Nil, is_alone: true })),
        }
    }
}

async fn exchange(connection: impl Connection, call: Call<'_>) -> RedisResult<(Value, Value)> {
    let mut replies = connection.exchange(call).await?.into_iter().map(Value::extract_error);
    let mut next = || replies.next().unwrap_or(Ok(Value::Nil));
    Ok((next()?, next()?))
}

fn lost() -> RedisError {
    Error::new(ErrorKind::ConnectionAborted, "the connection was lost").into()
}

/// Whether a connection is used no more. What arrives over it after that does not count.
pub(crate) struct Health {
    is_lost: AtomicBool,
    /// The server may not be the primary any more, or the connection is lost.
    pub(crate) doubt: Notify,
    events: Events,
}

impl Health {
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    pub(crate) fn lose(&self) {
        if !self.is_lost.swap(true, Ordering::AcqRel) {
            self.doubt.notify_one();
            (self.events)(Event::Missed);
        }
    }

    /// What the redis crate calls with each push of a connection, until it drops it.
    pub(crate) fn pushes(self: Arc<Self>) -> impl Fn(PushInfo) -> Result<(), SendError> {
        let listening = Listening(self);
        move |push| {
            let Listening(health) = &listening;
            match (push.kind, push.data.as_slice()) {
                (PushKind::SMessage, [_, Value::BulkString(payload)]) => {
                    (health.events)(Event::Heard(payload))
                }
                // The redis crate takes the push that a subscription has ended for a reply, and gives each later reply to the
                // wrong command.
                (PushKind::SUnsubscribe | PushKind::Disconnection, _) => health.lose(),
                _ => {}
            }
            Ok(())
        }
    }
}

/// The redis crate drops it with the connection, also if a runtime shuts down.
struct Listening(Arc<Health>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.lose();
    }
}
