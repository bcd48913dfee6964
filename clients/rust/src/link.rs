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
use crate::transport::{Call, Event, Events, Reply, SILENCE, silent};

/// How long a connection is being opened at most, which may take several servers.
const OPENING: Duration = Duration::from_secs(5);
/// A connection that fails at once is not replaced more often.
const BETWEEN_OPENINGS: Duration = Duration::from_millis(10);
/// How many connections for one call at a time there are.
const MOST_SINGLE: usize = 32;

/// Opens a connection, which has this health: one that is shared, or one for one call at a time.
pub(crate) type Open<C> =
    Box<dyn Fn(Option<Arc<Health>>) -> BoxFuture<'static, RedisResult<C>> + Send + Sync>;

pub(crate) struct Link<C> {
    open: Open<C>,
    events: Events,
    shared: Mutex<Option<Live<C>>>,
    /// Connections for one call at a time that no call uses, as old as the shared one at most.
    idle: Mutex<Vec<C>>,
    /// What lets such a connection be used.
    single: Semaphore,
}

/// A connection, which may still be on its way.
#[derive(Clone)]
struct Live<C> {
    connection: Shared<BoxFuture<'static, RedisResult<C>>>,
    opened: Instant,
    health: Arc<Health>,
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
}

impl<C: Clone + Send + Sync + 'static> Link<C> {
    pub(crate) fn new(events: Events, open: Open<C>) -> Self {
        let (shared, idle) = Default::default();
        Self { open, events, shared, idle, single: Semaphore::new(MOST_SINGLE) }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<C>> {
        self.idle.lock().expect("nothing panics here")
    }

    fn live(&self) -> Live<C> {
        let mut shared = self.shared.lock().expect("nothing panics here");
        let is_usable = |live: &Live<C>| !live.health.is_lost() || live.opened.elapsed() < BETWEEN_OPENINGS;
        if let Some(live) = shared.as_ref().filter(|live| is_usable(live)) {
            return live.clone();
        }
        self.idle().clear();
        let (is_lost, doubt) = Default::default();
        let health = Arc::new(Health { is_lost, doubt, events: self.events.clone() });
        let connection = (self.open)(Some(health.clone())).shared();
        shared.insert(Live { connection, opened: Instant::now(), health }).clone()
    }

    /// Sends over the shared connection.
    pub(crate) async fn send<T, F>(&self, until: Instant, send: impl FnOnce(C) -> F) -> RedisResult<T>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let live = self.live();
        let sent = async {
            let connection = match live.connection.peek() {
                Some(opened) => opened.clone(),
                None => live.connection.clone().await,
            };
            send(connection.inspect_err(|_| live.health.lose())?).await
        };
        let until = until.min(Instant::now() + SILENCE);
        let reply = timeout_at(until.into(), sent).await.unwrap_or_else(|_| Err(silent()));
        // One that is still being opened is waited for by the next command.
        let is_spent = live.connection.peek().is_some() || live.opened.elapsed() > OPENING;
        match reply {
            Err(ref error) if !is_reply(error) && is_spent => live.health.lose(),
            // A former primary without replicas, or one that is a replica by now.
            Err(ref error) if matches!(error.code(), Some("READONLY" | "NOREPLICAS")) => {
                live.health.doubt.notify_one();
            }
            Ok(_) if live.health.is_lost() => return Err(lost()),
            _ => {}
        }
        reply
    }

    /// Sends a command over the shared connection. If a second one follows, which blocks, they have a connection that no
    /// other call uses meanwhile.
    pub(crate) async fn call<F>(&self, call: Call<'_>, send: impl FnOnce(C) -> F) -> RedisResult<Reply>
    where
        F: Future<Output = RedisResult<(Value, Value)>>,
    {
        let send = async |connection| {
            let (value, then) = send(connection).await?;
            Ok(Reply { value: value.extract_error()?, then: then.extract_error()?, is_alone: true })
        };
        let Some((_, block)) = call.then else { return self.send(call.until, send).await };
        let sent = async {
            let (_turn, Live { health, .. }) = (self.single.acquire().await, self.live());
            let idle = self.idle().pop();
            let connection = match idle {
                Some(connection) => connection,
                None => (self.open)(None).await?,
            };
            let reply = send(connection.clone()).await.inspect_err(|_| self.idle().clear())?;
            let mut idle = self.idle();
            if health.is_lost() {
                return Err(lost());
            }
            idle.push(connection);
            Ok(reply)
        };
        let until = call.until.min(Instant::now() + SILENCE) + block;
        timeout_at(until.into(), sent).await.unwrap_or_else(|_| Err(silent()))
    }

    pub(crate) fn close(&self) {
        self.shared.lock().expect("nothing panics here").take();
        self.idle().clear();
    }
}

fn lost() -> RedisError {
    Error::new(ErrorKind::ConnectionAborted, "the connection was lost").into()
}

/// Takes each push of a connection. The redis crate drops it with the connection, also if a runtime shuts down.
struct Pushes {
    health: Arc<Health>,
    is_kept: bool,
}

impl Drop for Pushes {
    fn drop(&mut self) {
        self.health.lose();
    }
}

impl Health {
    /// What the redis crate calls with each push. If the connection is kept, the redis crate opens it again.
    pub(crate) fn pushes(self: Arc<Self>, is_kept: bool) -> impl Fn(PushInfo) -> Result<(), SendError> {
        let pushes = Pushes { health: self, is_kept };
        move |push| {
            let Pushes { health, is_kept } = &pushes;
            match (push.kind, push.data.as_slice()) {
                (PushKind::SMessage, [_, Value::BulkString(payload)]) => {
                    (health.events)(Event::Heard(payload));
                }
                (PushKind::SUnsubscribe | PushKind::Disconnection, _) if *is_kept => {
                    (health.events)(Event::Missed);
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
