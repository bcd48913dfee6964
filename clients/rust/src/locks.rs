// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a program makes once: it gives requests, and carries them out at one server, at a cluster, or at a quorum.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::ToRedisArgs;
use tokio::time::timeout;

use crate::errors::{Error, Result};
use crate::hold::Hold;
use crate::hooks::{Hooks, Reporter};
use crate::info::{self, Info, Mode, Queue};
use crate::node::Node;
use crate::options::{LONGEST, ONE_ATTEMPT, Options, shared_options};
use crate::protocol;
use crate::quorum::Servers;
use crate::request::Request;
use crate::server::Server;
use crate::shared::Shared;
use crate::watchdog;

/// Locks over what the program has of the redis crate. Make one for the program. It is cheap to clone, and clones share
/// everything.
///
/// ```no_run
/// # async fn example() -> Result<(), slock_client::Error> {
/// use slock_client::Locks;
/// use std::time::Duration;
///
/// let locks = Locks::new(redis::Client::open("redis://127.0.0.1/")?);
/// let hold = locks.write("job:42").wait(Duration::from_secs(5)).acquire().await?;
/// // Work, with hold.fence() in every write.
/// hold.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Locks {
    pub(crate) servers: Arc<Servers>,
    defaults: Options,
}

impl Locks {
    /// Locks with the defaults of all options. It sends nothing, and opens no connection.
    ///
    /// It takes a [`redis::Client`]; with the feature `sentinel` a `redis::sentinel::SentinelClient`; with the feature
    /// `cluster` a `redis::cluster::ClusterClient`; a pair of a client and a connection of the program's, such as a
    /// `ConnectionManager`; a [`Server`], and a [`Quorum`](crate::Quorum).
    pub fn new(server: impl Into<Server>) -> Self {
        Self::builder(server).build()
    }

    /// Locks with options.
    pub fn builder(server: impl Into<Server>) -> LocksBuilder {
        LocksBuilder { server: server.into(), shared: Shared::new(), defaults: Options::default() }
    }

    /// A request for the lock of the key, or of all the keys or none, as the one writer. Keys are given as to commands of
    /// the redis crate, and are text. In a cluster all have one hash slot. It sends nothing.
    pub fn write(&self, keys: impl ToRedisArgs) -> Request {
        self.request(keys, Mode::Write)
    }

    /// A request for the lock of the key, or of all the keys or none, as a reader. It sends nothing.
    pub fn read(&self, keys: impl ToRedisArgs) -> Request {
        self.request(keys, Mode::Read)
    }

    /// A request in a mode that is only known when the program runs.
    pub fn request(&self, keys: impl ToRedisArgs, mode: Mode) -> Request {
        // As a default, a limit is one for readers.
        let limit = self.defaults.limit.filter(|_| mode == Mode::Read);
        Request::new(&self.servers, &keys, mode, Options { limit, ..self.defaults.clone() })
    }

    /// Makes a hold from an owner token that another process took and detached, and renews it from now on. It never takes
    /// a lock. See [`Request::adopt`] for other options than the defaults.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if the token does not hold all keys in the mode.
    pub async fn adopt(
        &self,
        keys: impl ToRedisArgs,
        token: impl Into<String>,
        mode: Mode,
    ) -> Result<Hold, Error> {
        self.request(keys, mode).token(token).adopt().await
    }

    /// Releases what an owner token holds of the keys, in whichever mode. Gives on how many keys it did, or on how many
    /// nodes of a quorum.
    ///
    /// # Errors
    ///
    /// [`Error::NoAnswer`] if no reply came for `retry_for`.
    pub async fn release(&self, keys: impl ToRedisArgs, token: impl Into<String>) -> Result<usize, Error> {
        self.read(keys).token(token).release().await
    }

    /// Who holds the lock of the key and who waits for it, all of them; nothing if nobody does. Of a quorum the first server
    /// is asked.
    ///
    /// # Errors
    ///
    /// As [`release`](Locks::release).
    pub async fn info(&self, key: &str) -> Result<Option<Info>, Error> {
        if key.is_empty() {
            return Err(Error::Invalid("a key must not be empty".into()));
        }
        let name = format!("{}{key}", self.servers.shared.prefix);
        let command = protocol::info(&name, 0);
        Ok(info::info(self.node()?.query(Some(&name), &[key.to_owned()], &command).await?)?)
    }

    /// Which locks are waited for, on all nodes of a cluster, the longest wait first: those whose keys begin with the
    /// prefix.
    ///
    /// # Errors
    ///
    /// As [`release`](Locks::release).
    pub async fn queues(&self) -> Result<Vec<Queue>, Error> {
        let (mut all, mut known, mut cursor) = (Vec::new(), HashSet::new(), 0);
        loop {
            let pages = self.node()?.query(None, &[], &protocol::queues(cursor)).await?;
            cursor = info::add_queues(&mut all, &mut known, pages, &self.servers.shared.prefix)?;
            if cursor == 0 {
                break;
            }
        }
        // A server sends those that wait equally long in their order.
        all.sort_by_key(|queue| std::cmp::Reverse(queue.longest_wait));
        Ok(all)
    }

    /// The one of which questions are asked.
    fn node(&self) -> Result<&Arc<Node>> {
        self.servers.shared.unless_closed()?;
        self.servers.nodes.first().ok_or_else(|| Error::Invalid("a quorum needs servers".into()))
    }

    /// Ends the waits and the renewals. Waits, and all later calls except the release of a hold, end with
    /// [`Error::Closed`]. Acquisitions and releases that are under way are waited for, for at most the time of `retry_for`.
    /// It releases nothing: holds that are still there are lost at the end of their ttl.
    pub async fn close(&self) {
        let shared = &self.servers.shared;
        shared.closing.cancel();
        shared.tracker.close();
        let _ = timeout(shared.retry_for, shared.tracker.wait()).await;
        shared.closed.cancel();
        self.servers.nodes.iter().for_each(|node| node.listener.close());
    }

    /// Releases all holds, and closes.
    ///
    /// # Errors
    ///
    /// The first error of a release, as of [`Hold::release`]. The other holds are released all the same.
    pub async fn close_and_release(&self) -> Result<(), Error> {
        let shared = &self.servers.shared;
        shared.closing.cancel(); // else those who wait are granted what is released here
        let release = || join_all(watchdog::holds(shared).into_iter().map(|hold| hold.release()));
        let mut released = release().await;
        self.close().await;
        released.extend(release().await); // what was granted at the last moment
        released.into_iter().filter(|result| !matches!(result, Err(Error::NotHeld(_)))).collect()
    }
}

/// Options of a [`Locks`]. Those of a request are the defaults of all requests.
pub struct LocksBuilder {
    server: Server,
    shared: Shared,
    defaults: Options,
}

impl LocksBuilder {
    shared_options!();

    /// A text that is put before each key that is sent, and taken off in [`Locks::info`] and [`Locks::queues`].
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.shared.prefix = prefix.into();
        self
    }

    /// How long a call goes on while no reply comes at all. By default 3 s, and at least the 500 ms that one attempt may
    /// take.
    pub fn retry_for(mut self, retry_for: Duration) -> Self {
        self.shared.retry_for = retry_for.clamp(ONE_ATTEMPT, LONGEST);
        self
    }

    /// How long a wait survives an outage, after the server has replied to it once. By default 60 s, and at least 500 ms.
    pub fn retry_wait_for(mut self, retry_wait_for: Duration) -> Self {
        self.shared.retry_wait_for = retry_wait_for.clamp(ONE_ATTEMPT, LONGEST);
        self
    }

    /// Functions for metrics.
    pub fn hooks(mut self, hooks: impl Hooks) -> Self {
        self.shared.reporter = Reporter(Box::new(hooks));
        self
    }

    /// The locks.
    pub fn build(self) -> Locks {
        let servers = Servers::new(self.server, Arc::new(self.shared));
        Locks { servers: Arc::new(servers), defaults: self.defaults }
    }

    fn options_mut(&mut self) -> &mut Options {
        &mut self.defaults
    }
}
