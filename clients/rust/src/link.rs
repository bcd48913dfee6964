//! A connection of the redis crate that many share. It is opened when it is needed, and another one when it fails.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::{PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use crate::errors::is_reply;
use crate::transport::{Audience, Call, Reply, SILENCE, silent};

/// How long a connection is being opened at most, which may take several servers.
const OPENING: Duration = Duration::from_secs(5);
/// A connection that fails at once is not replaced more often.
const BETWEEN_OPENINGS: Duration = Duration::from_millis(10);
/// How many connections for a single use there are at once.
const MOST_SINGLE: usize = 32;

/// Opens a connection, which has this health: one that is shared, or one for a single use.
pub(crate) type Open<C> =
    Box<dyn Fn(Option<Arc<Health>>) -> BoxFuture<'static, RedisResult<C>> + Send + Sync>;

pub(crate) struct Link<C> {
    open: Open<C>,
    audience: Audience,
    shared: Mutex<Option<Live<C>>>,
    /// What lets connections for a single use be opened.
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
#[derive(Default)]
pub(crate) struct Health {
    is_lost: AtomicBool,
    audience: Audience,
}

impl Health {
    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    fn lose(&self) {
        if !self.is_lost.swap(true, Ordering::AcqRel) {
            self.audience.tell(|events| events.missed());
        }
    }
}

impl<C: Clone + Send + Sync + 'static> Link<C> {
    pub(crate) fn new(audience: &Audience, open: Open<C>) -> Self {
        let single = Semaphore::new(MOST_SINGLE);
        Self { open, audience: audience.clone(), shared: Mutex::default(), single }
    }

    fn live(&self) -> Live<C> {
        let mut shared = self.shared.lock().expect("nothing panics here");
        let is_usable = |live: &Live<C>| !live.health.is_lost() || live.opened.elapsed() < BETWEEN_OPENINGS;
        if let Some(live) = shared.as_ref().filter(|live| is_usable(live)) {
            return live.clone();
        }
        let health = Arc::new(Health { audience: self.audience.clone(), ..Health::default() });
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
            let connection = live.connection.clone().await.inspect_err(|_| live.health.lose())?;
            send(connection).await
        };
        let until = until.min(Instant::now() + SILENCE);
        let reply = timeout_at(until.into(), sent).await.unwrap_or_else(|_| Err(silent()));
        let is_open = live.connection.peek().is_some();
        match reply {
            // One that is still being opened is waited for by the next command.
            Err(ref error) if !is_reply(error) && (is_open || live.opened.elapsed() > OPENING) => {
                live.health.lose()
            }
            Ok(_) if live.health.is_lost() => return Err(broken()),
            _ => {}
        }
        reply
    }

    /// Sends a command over the shared connection. If a second one follows, which blocks, they have a connection of their own.
    pub(crate) async fn call<F>(&self, call: Call<'_>, send: impl FnOnce(C) -> F) -> RedisResult<Reply>
    where
        F: Future<Output = RedisResult<(Value, Value)>>,
    {
        let (value, then) = match call.then {
            None => self.send(call.until, send).await?,
            Some((_, block)) => {
                let until = call.until.min(Instant::now() + SILENCE) + block;
                let sent = async {
                    let _turn = self.single.acquire().await;
                    send((self.open)(None).await?).await
                };
                timeout_at(until.into(), sent).await.unwrap_or_else(|_| Err(silent()))?
            }
        };
        Ok(Reply { value: value.extract_error()?, then: then.extract_error()?, is_alone: true })
    }

    /// Gives up a connection to a server that is not the right one any more.
    #[cfg(feature = "sentinel")]
    pub(crate) fn lose(&self) {
        let live = self.shared.lock().expect("nothing panics here").clone();
        live.filter(|live| live.connection.peek().is_some()).inspect(|live| live.health.lose());
    }

    pub(crate) fn close(&self) {
        self.shared.lock().expect("nothing panics here").take();
    }
}

/// What the redis crate calls with each push of a connection. It is dropped with the connection, also by a runtime that shuts
/// down.
pub(crate) struct Pushes {
    pub(crate) audience: Audience,
    pub(crate) health: Arc<Health>,
    /// The redis crate opens the connection again.
    pub(crate) is_kept: bool,
}

impl Pushes {
    pub(crate) fn take(&self, push: &PushInfo) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::SMessage, [_, Value::BulkString(payload)]) => {
                self.audience.tell(|events| events.heard(payload))
            }
            (PushKind::SUnsubscribe | PushKind::Disconnection, _) if self.is_kept => {
                self.audience.tell(|events| events.missed());
            }
            // The redis crate takes the push that a subscription has ended for a reply, and gives each later reply to the
            // wrong command.
            (PushKind::SUnsubscribe | PushKind::Disconnection, _) => self.health.lose(),
            _ => {}
        }
    }
}

impl Drop for Pushes {
    fn drop(&mut self) {
        self.health.lose();
    }
}

fn broken() -> RedisError {
    std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "the connection was lost").into()
}
