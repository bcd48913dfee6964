//! `Locks`: made once from a client of the redis crate.

use std::sync::Arc;
use std::time::Duration;

use redis::ToRedisArgs;

use crate::commands;
use crate::errors::Error;
use crate::hold::{HoldOf, Site};
use crate::hooks::{Hooks, Reporter};
use crate::options::{LONGEST, Mode, Options, Waiting, Wanted, shared_options};
use crate::request::Request;
use crate::servers::Server;
use crate::shared::{Shared, Single};
use crate::status::{self, Info, Queue};

/// The locks of one server, of a primary that Sentinels name, or of a cluster.
///
/// Made once for a program. It is cheap to clone, and clones share everything. It holds one connection
/// (in a cluster: for each node), over which commands go and waits end, and one task that renews the holds.
///
/// All that belongs to the runtime on which it was first needed. When that shuts down, another runtime takes
/// new connections; a runtime that lives and is not driven answers nothing, so do not share one with it.
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
pub type Locks = LocksOf<Single>;
/// Options of [`Locks`]. Those of a request are the defaults of all its requests.
pub type LocksBuilder = BuilderOf<Single>;

/// What [`Locks`] and a [`Quorum`](crate::Quorum) have in common.
pub struct LocksOf<S: Site> {
    pub(crate) shared: Arc<Shared<S>>,
    defaults: Options,
}

impl<S: Site> Clone for LocksOf<S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), defaults: self.defaults.clone() }
    }
}

impl<S: Site> LocksOf<S> {
    /// A request to be the only holder of the key, or of all the keys. Keys are given as to the commands of the redis
    /// crate, one or several, and are text; in a cluster all have one hash slot.
    pub fn write(&self, keys: impl ToRedisArgs) -> Request<S> {
        self.request(keys, Mode::Write)
    }

    /// A request to share the key, or all the keys, with other readers.
    pub fn read(&self, keys: impl ToRedisArgs) -> Request<S> {
        self.request(keys, Mode::Read)
    }

    /// A request in the mode that is given.
    pub fn request(&self, keys: impl ToRedisArgs, mode: Mode) -> Request<S> {
        // As a default the limit is that of the readers.
        let limit = self.defaults.limit.filter(|_| mode == Mode::Read);
        let options = Options { limit, ..self.defaults.clone() };
        Request::new(self.shared.clone(), Wanted::new(&keys, mode, options))
    }

    /// A hold of what another process took and handed over: as [`Request::adopt`], with the options of these
    /// locks.
    ///
    /// # Errors
    ///
    /// Those of [`Request::adopt`].
    pub async fn adopt(
        &self,
        keys: impl ToRedisArgs,
        token: impl Into<String>,
        mode: Mode,
    ) -> Result<HoldOf<S>, Error> {
        self.request(keys, mode).token(token).adopt().await
    }

    /// Releases what the token holds, in whichever mode. Gives how many of the keys it held; for a quorum on
    /// how many servers, where one that does not answer in time counts as one where it held nothing.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when no answer came for `retry_for`, or an error of the server.
    pub async fn release(&self, keys: impl ToRedisArgs, token: impl Into<String>) -> Result<usize, Error> {
        self.request(keys, Mode::Write).token(token).release().await
    }

    /// Ends the task that renews, and closes the connections. It releases nothing: holds that are still there
    /// end with their ttl, and requests that wait end with [`Error::Closed`]. For `retry_for` at most it waits
    /// for what goes on in the background: releases of dropped holds, and the end of what was asked for, which
    /// leaves neither a hold nor a request. An acquisition that nobody polls cannot end meanwhile.
    pub async fn close(&self) {
        self.shared.closing.cancel();
        self.shared.background.close();
        let _ = tokio::time::timeout(self.shared.retry_for, self.shared.background.wait()).await;
        self.shared.site.close().await;
    }
}

impl Locks {
    /// Locks with all options at their defaults. Nothing is sent, and no connection is opened.
    pub fn new(server: impl Into<Server>) -> Self {
        Self::builder(server).build()
    }

    /// Locks with options.
    pub fn builder(server: impl Into<Server>) -> LocksBuilder {
        BuilderOf::new(Single::new(server.into()))
    }

    /// Who holds the key and who waits for it, up to a hundred of each; nothing when nobody does.
    ///
    /// # Errors
    ///
    /// As [`release`](LocksOf::release).
    pub async fn info(&self, key: &str) -> Result<Option<Info>, Error> {
        self.shared.unless_closed()?;
        let keys = Arc::from([key.to_owned()]);
        status::info(self.shared.call(&keys, &[commands::info(key)], self.shared.limit()).await?.value)
    }

    /// The locks for which somebody waits, the longest wait first; in a cluster, of all its nodes.
    ///
    /// # Errors
    ///
    /// As [`release`](LocksOf::release).
    pub async fn queues(&self) -> Result<Vec<Queue>, Error> {
        self.shared.unless_closed()?;
        let of_all_nodes = Arc::from([]);
        let queues = self.shared.call(&of_all_nodes, &[commands::queues()], self.shared.limit()).await?;
        status::queues(queues.value)
    }
}

/// Options of [`Locks`] or of a [`Quorum`](crate::Quorum). Those of a request are the defaults of all requests.
pub struct BuilderOf<S> {
    pub(crate) shared: Shared<S>,
    defaults: Options,
}

impl<S: Site> BuilderOf<S> {
    shared_options!();

    pub(crate) fn new(site: S) -> Self {
        Self { shared: Shared::new(site), defaults: Options::default() }
    }

    /// How long a call goes on without an answer: 3 s unless it is set. For a quorum, while too few servers
    /// answer.
    pub fn retry_for(mut self, retry_for: Duration) -> Self {
        self.shared.retry_for = retry_for.min(LONGEST);
        self
    }

    /// How long a request that waits goes on while the server cannot be reached. 60 s unless it is set.
    pub fn retry_wait_for(mut self, retry_wait_for: Duration) -> Self {
        self.shared.retry_wait_for = retry_wait_for.min(LONGEST);
        self
    }

    /// Hooks for metrics and traces.
    pub fn hooks(mut self, hooks: impl Hooks) -> Self {
        self.shared.reporter = Reporter::new(hooks);
        self
    }

    /// The locks.
    pub fn build(self) -> LocksOf<S> {
        LocksOf { shared: Arc::new(self.shared), defaults: self.defaults }
    }

    fn options_mut(&mut self) -> &mut Options {
        &mut self.defaults
    }
}

impl LocksBuilder {
    /// How requests wait. [`Waiting::Notify`] unless it is set.
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        *self.shared.site.must_block.get_mut() = waiting == Waiting::Block;
        self.shared.poll = if let Waiting::Poll(poll) = waiting { Some(poll) } else { None };
        self
    }
}
