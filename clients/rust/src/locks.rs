//! `Locks`: made once from a client of the redis crate.

use std::sync::Arc;

use crate::errors::Error;
use crate::hooks::Reporter;
use crate::node::Words;
use crate::options::{IntoKeys, Options, Waiting, check_keys, replica_options, shared_options};
use crate::request::{Locking, Settings, maker_options, requests};
use crate::servers::Server;
use crate::shared::{Shared, out_of_time};
use crate::status::{self, Info, Queue};
use crate::{answers, commands};

/// The locks of one server, of a primary that Sentinels name, or of a cluster.
///
/// Made once for a program. It is cheap to clone, and clones share everything. It holds one connection for
/// commands and, once somebody has waited, one more on which waits end (in a cluster: for each node), and one
/// task that renews the holds.
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
#[derive(Clone)]
pub struct Locks {
    shared: Arc<Shared>,
    defaults: Options,
}

/// Options of [`Locks`]. Those of a request are the defaults of all its requests.
pub struct LocksBuilder {
    server: Server,
    waiting: Waiting,
    settings: Settings,
}

impl Locks {
    /// Locks with all options at their defaults. Nothing is sent, and no connection is opened.
    pub fn new(server: impl Into<Server>) -> Self {
        Self::builder(server).build()
    }

    /// Locks with options.
    pub fn builder(server: impl Into<Server>) -> LocksBuilder {
        LocksBuilder { server: server.into(), waiting: Waiting::default(), settings: Settings::default() }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    requests!(<Self as Locking>::Hold);

    /// Releases what the token holds, in whichever mode, and gives how many of the keys it held.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when no answer came for `retry_for`, or an error of the server.
    pub async fn release(&self, keys: impl IntoKeys, token: impl Into<String>) -> Result<usize, Error> {
        self.shared.closing.unless_closed()?;
        let keys: Arc<[String]> = keys.into_keys().into();
        check_keys(&keys)?;
        let owner = commands::Owner::new(keys, Some(token.into()));
        let release = commands::release_all(&owner);
        let answered = self.shared.call(&owner, Words::Several(&release), self.shared.limit()).await?;
        let released: i64 = answers::numbers(&answered.value).iter().sum();
        Ok(usize::try_from(released).unwrap_or(0))
    }

    /// Who holds the key and who waits for it, up to a hundred of each; nothing when nobody does.
    ///
    /// # Errors
    ///
    /// As [`Locks::release`].
    pub async fn info(&self, key: &str) -> Result<Option<Info>, Error> {
        self.shared.closing.unless_closed()?;
        let owner = commands::Owner::new([key.to_owned()].into(), None);
        let info = commands::info(key);
        let answered = self.shared.call(&owner, Words::One(&info), self.shared.limit()).await?;
        status::info(answered.value)
    }

    /// The locks for which somebody waits, the longest wait first; in a cluster, of all its nodes.
    ///
    /// # Errors
    ///
    /// As [`Locks::release`].
    pub async fn queues(&self) -> Result<Vec<Queue>, Error> {
        self.shared.closing.unless_closed()?;
        let ask = commands::queues();
        let answers = self.shared.servers.all_answers(Words::One(&ask), self.shared.limit()).await;
        status::queues(answers.map_err(|failure| out_of_time(failure, &Arc::from([])))?)
    }

    /// Ends the task that renews, and closes the connections. It releases nothing: holds that are still there
    /// end with their ttl, and requests that wait end with [`Error::Closed`]. Releases that a dropped hold
    /// began are brought to their end first, and what a dropped future left is given up.
    pub async fn close(&self) {
        self.shared.closing.close();
        self.shared.watchdog.stop();
        self.shared.servers.end_waits();
        self.shared.background.finish().await;
        self.shared.servers.close();
    }
}

impl LocksBuilder {
    shared_options!(options);
    replica_options!(options);
    maker_options!();

    /// How requests wait. [`Waiting::Notify`] unless it is set.
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        self.waiting = waiting;
        self
    }

    /// The locks.
    pub fn build(mut self) -> Locks {
        let reporter = Reporter::new(self.settings.hooks.take());
        self.reporting_to(reporter)
    }

    pub(crate) fn reporting_to(self, reporter: Reporter) -> Locks {
        let Settings { defaults, retry_for, retry_wait_for, .. } = self.settings;
        let shared = Shared::new(self.server.open(), self.waiting, retry_for, retry_wait_for, reporter);
        Locks { shared: Arc::new(shared), defaults }
    }
}
