//! A connection of the redis crate that many share. It is opened when it is needed, and another one when it fails.

use std::io::{Error, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::aio::SendError;
use redis::{PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout_at;

use crate::errors::is_reply;
use crate::program::Program;
use crate::transport::{Call, Event, Events, Reply, SILENCE, Topology, Transport, silent};

/// How long a connection is being opened at most, which may take several servers.
const OPENING: Duration = Duration::from_secs(5);
/// A connection that fails at once is not replaced more often.
const BETWEEN_OPENINGS: Duration = Duration::from_millis(10);
/// How many connections for one call at a time there are.
const MOST_SINGLE: usize = 32;

/// A connection of the redis crate.
pub(crate) trait Connection: Clone + Send + Sync + 'static {
    /// In less time the redis crate has not sent a command twice.
    const SENT_ONCE: Duration;
    /// Sends the command, and the one that follows it. Gives the reply to each.
    fn exchange(self, call: Call<'_>) -> BoxFuture<'_, RedisResult<Vec<Value>>>;
    fn subscribe(self, channel: &str) -> BoxFuture<'_, RedisResult<()>>;
}

type Open<C> = Box<dyn Fn(Option<Arc<Health>>) -> BoxFuture<'static, RedisResult<C>> + Send + Sync>;

pub(crate) struct Link<C> {
    topology: Topology,
    program: Option<Program>,
    open: Open<C>,
    events: Events,
    shared: Mutex<Option<Live<C>>>,
    /// What lets a connection for one call at a time be used.
    single: Semaphore,
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

impl<C> Live<C> {
    fn idle(&self) -> MutexGuard<'_, Vec<C>> {
        self.idle.lock().expect("nothing panics here")
    }
}

impl<C: Connection> Link<C> {
    /// What opens a connection is told its health if it is to be shared, and not one for one call at a time.
    pub(crate) fn new<R: Future<Output = RedisResult<C>> + Send + 'static>(
        topology: Topology,
        program: Option<Program>,
        events: Events,
        open: impl Fn(Option<Arc<Health>>) -> R + Send + Sync + 'static,
    ) -> Self {
        let (shared, single) = (Mutex::default(), Semaphore::new(MOST_SINGLE));
        Self { topology, program, open: Box::new(move |health| open(health).boxed()), events, shared, single }
    }

    fn live(&self) -> Live<C> {
        let mut shared = self.shared.lock().expect("nothing panics here");
        let is_usable = |live: &Live<C>| !live.health.is_lost() || live.opened.elapsed() < BETWEEN_OPENINGS;
        if let Some(live) = shared.as_ref().filter(|live| is_usable(live)) {
            return live.clone();
        }
        let (is_lost, doubt, idle) = Default::default();
        let health = Arc::new(Health { is_lost, doubt, events: self.events.clone() });
        let connection = (self.open)(Some(health.clone())).shared();
        shared.insert(Live { connection, opened: Instant::now(), health, idle }).clone()
    }

    /// Sends over the shared connection.
    async fn send<T, F>(&self, live: &Live<C>, until: Instant, send: impl FnOnce(C) -> F) -> RedisResult<T>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let Live { connection, opened, health, .. } = live;
        let sent = async { send(connection.clone().await.inspect_err(|_| health.lose())?).await };
        let reply = timeout_at(until.into(), sent).await.unwrap_or_else(|_| Err(silent()));
        // One that is still being opened is waited for by the next command.
        let is_spent = connection.peek().is_some() || opened.elapsed() > OPENING;
        match &reply {
            Err(error) if !is_reply(error) && is_spent => health.lose(),
            Err(error) if !is_reply(error) => {}
            _ if health.is_lost() => return Err(lost()),
            // A former primary without replicas, or one that is a replica by now.
            Err(error) if matches!(error.code(), Some("READONLY" | "NOREPLICAS")) => {
                health.doubt.notify_one()
            }
            _ => {}
        }
        reply
    }

    /// Sends over a connection that no other call uses meanwhile.
    async fn send_alone(
        &self,
        live: &Live<C>,
        until: Instant,
        call: Call<'_>,
    ) -> RedisResult<(Value, Value)> {
        let sent = async {
            let _turn = self.single.acquire().await;
            let idle = live.idle().pop();
            let connection = match idle {
                Some(connection) => connection,
                None => (self.open)(None).await?,
            };
            let replies = exchange(connection.clone(), call).await.inspect_err(|_| live.idle().clear())?;
            live.idle().push(connection);
            if live.health.is_lost() { Err(lost()) } else { Ok(replies) }
        };
        timeout_at(until.into(), sent).await.unwrap_or_else(|_| Err(silent()))
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
            let (live, sent) = (self.live(), Instant::now());
            let until = call.until.min(sent + SILENCE);
            let (value, then) = match call.then {
                Some((_, block)) => self.send_alone(&live, until + block, call).await?,
                None => self.send(&live, until, |connection| exchange(connection, call)).await?,
            };
            Ok(Reply { value, then, is_alone: program.is_none() && sent.elapsed() < C::SENT_ONCE })
        }
        .boxed()
    }

    fn listen<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, RedisResult<()>> {
        let subscribe = async move {
            let until = Instant::now() + SILENCE;
            self.send(&self.live(), until, |connection| connection.subscribe(channel)).await
        };
        subscribe.boxed()
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn close(&self) {
        self.shared.lock().expect("nothing panics here").take();
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
