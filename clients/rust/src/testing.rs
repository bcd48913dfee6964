// SPDX-License-Identifier: MIT OR Apache-2.0

//! A server in memory, for the tests of programs that use locks. It replies as a server with the module does, so what is
//! tested is the library that the program uses.
//!
//! ```
//! use slock_client::testing::MemoryServer;
//! use slock_client::{Error, Locks};
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let server = MemoryServer::new();
//! let locks = Locks::new(server.clone());
//! server.hold("report"); // somebody else has it
//! let request = locks.write("report").wait(Duration::from_millis(20));
//! assert!(matches!(request.acquire().await, Err(Error::TimedOut { .. })));
//!
//! server.lose("report");
//! let hold = request.acquire().await?;
//! server.lose("report"); // the hold of the program is gone
//! assert!(matches!(hold.lost().await, Error::Lost { .. }));
//!
//! server.fail(true); // nobody replies
//! # Ok(())
//! # }
//! ```

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::{Arg, Cmd, RedisError, Value, make_extension_error};

use crate::memory::State;
use crate::server::Server;
use crate::transport::{Call, Event, Events, Reply, Take, Topology, Transport};

/// A server in memory. Clones are the same server, and several [`Locks`](crate::Locks) may share it.
#[derive(Clone, Default)]
pub struct MemoryServer(Arc<Mutex<Served>>);

#[derive(Default)]
struct Served {
    state: State,
    audience: Vec<Weak<Take>>,
    is_down: bool,
    timer: Option<tokio::task::JoinHandle<()>>,
}

impl MemoryServer {
    /// A server that has no locks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Has somebody else hold the lock for writing, for an hour or until [`lose`](MemoryServer::lose).
    pub fn hold(&self, key: &str) {
        self.change(|state| state.delete(key));
        let _ = self.command(&["SLOCK.LOCK", key, "somebody else", "3600000"]);
    }

    /// Ends all holds of the key, as if it had been deleted. Their owners learn of it at once.
    pub fn lose(&self, key: &str) {
        self.change(|state| state.delete(key));
        self.tell(|| Event::Missed);
    }

    /// Has all calls fail from now on, as if no connection could be made; or succeed again.
    pub fn fail(&self, fails: bool) {
        self.served().is_down = fails;
    }

    /// The owner tokens that hold the lock.
    pub fn holders(&self, key: &str) -> Vec<String> {
        self.change(|state| state.tokens(key))
    }

    /// Carries out a command, given by its words.
    ///
    /// # Errors
    ///
    /// What a server would reply.
    pub fn command(&self, words: &[&str]) -> Result<Value, RedisError> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        self.change(|state| state.execute(&words)).map_err(|text| {
            let (code, detail) = text.split_once(' ').unwrap_or((&text, ""));
            make_extension_error(code.into(), Some(detail.into()))
        })
    }

    fn served(&self) -> MutexGuard<'_, Served> {
        self.0.lock().expect("nothing panics while the server is locked")
    }

    /// Changes the state, and does what follows: grants, and messages about them.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut served = self.served();
        served.state.expire();
        let result = change(&mut served.state);
        served.state.serve();
        let messages = std::mem::take(&mut served.state.messages);
        self.schedule(&mut served);
        drop(served);
        for message in messages {
            self.tell(|| Event::Heard(message.as_bytes()));
        }
        result
    }

    /// Serves the queue when time alone lets somebody in, or ends a wait.
    fn schedule(&self, served: &mut Served) {
        served.timer.take().inspect(tokio::task::JoinHandle::abort);
        if let Some(next) = served.state.next_change()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let server = Arc::downgrade(&self.0);
            served.timer = Some(runtime.spawn(async move {
                tokio::time::sleep_until(next.into()).await;
                if let Some(server) = server.upgrade() {
                    MemoryServer(server).change(|_| {});
                }
            }));
        }
    }

    fn tell<'a>(&self, event: impl Fn() -> Event<'a>) {
        let audience: Vec<Events> = self.served().audience.iter().filter_map(Weak::upgrade).collect();
        audience.iter().for_each(|events| events(event()));
    }
}

impl From<MemoryServer> for Server {
    fn from(server: MemoryServer) -> Self {
        Self::over(|events| Connection::new(server, events))
    }
}

/// What one `Locks` has of the server.
pub(crate) struct Connection {
    pub(crate) server: MemoryServer,
    topology: Topology,
    _events: Events,
}

impl Connection {
    pub(crate) fn new(server: MemoryServer, events: Events) -> Self {
        let mut served = server.served();
        served.audience.retain(|events| events.strong_count() > 0);
        served.audience.push(Arc::downgrade(&events));
        drop(served);
        let topology = Topology { name: "memory".into(), is_cluster: false, is_failover: true };
        Self { server, topology, _events: events }
    }
}

pub(crate) fn words(command: &Cmd) -> Vec<String> {
    let text = |word| match word {
        Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
        _ => String::new(),
    };
    command.args_iter().map(text).collect()
}

impl Transport for Connection {
    fn call<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Reply, RedisError>> {
        async move {
            if self.server.served().is_down {
                let refused =
                    std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "connection refused");
                return Err(refused.into());
            }
            let run = |command: &Cmd| {
                self.server.command(&words(command).iter().map(String::as_str).collect::<Vec<_>>())
            };
            let value = run(call.command)?;
            let then = call.then.map_or(Ok(Value::Nil), |(then, _)| run(then))?;
            Ok(Reply { value, then, is_alone: true })
        }
        .boxed()
    }

    fn listen<'a>(&'a self, channel: &'a str) -> BoxFuture<'a, Result<(), RedisError>> {
        self.server.served().state.channels.insert(channel.to_owned());
        async { Ok(()) }.boxed()
    }

    /// Losses are noticed at once.
    fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Others may use the server.
    fn close(&self) {}
}
