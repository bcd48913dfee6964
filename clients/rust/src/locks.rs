use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::background::Background;
use crate::closing::Closing;
use crate::command::{self, Owner};
use crate::given_tokens::GivenTokens;
use crate::hold::Hold;
use crate::options::{self, Options, replica_options, shared_options};
use crate::renewal::LocksRenewal;
use crate::servers::{Server, Servers};
use crate::watchdog::Watchdog;
use crate::{Error, IntoKeys, Mode, Observer, Poll, Request, route};

/// How a request waits for a lock that others have.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Waiting {
    /// On the server; all waits share one connection. A user without permission for the channel waits as with
    /// [`Waiting::Block`].
    #[default]
    Notify,
    /// On the server; each wait has a connection of its own.
    Block,
    /// The client asks again and again.
    Poll(Poll),
}

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
    inner: Arc<Inner>,
    defaults: Arc<Options>,
}

/// Options of [`Locks`]. Those of a request are the defaults of all its requests.
pub struct LocksBuilder {
    server: Server,
    defaults: Options,
    waiting: Waiting,
    retry_for: Duration,
    observer: Option<Arc<dyn Observer>>,
}

pub(crate) struct Inner {
    pub(crate) servers: Servers,
    pub(crate) waiting: Waiting,
    pub(crate) retry_for: Duration,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    background: Background,
    pub(crate) watchdog: Watchdog<LocksRenewal>,
    must_block: AtomicBool,
    pub(crate) closing: Closing,
    pub(crate) given_tokens: Arc<GivenTokens>,
    tags: AtomicU64,
}

impl Inner {
    /// Whether waits block a connection each.
    pub(crate) fn must_block(&self) -> bool {
        self.must_block.load(Ordering::Relaxed)
    }

    pub(crate) fn block_from_now_on(&self) {
        self.must_block.store(true, Ordering::Relaxed);
    }

    /// Brings something to its end that its caller does not wait for.
    pub(crate) fn in_background(
        self: &Arc<Self>,
        runtime: &Handle,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let inner = self.clone();
        self.background.spawn(runtime, async move {
            work.await;
            inner.close_what_was_opened_later();
        });
    }

    /// A release that began when the connections were closed already has opened one.
    pub(crate) fn close_what_was_opened_later(&self) {
        if self.closing.is_closed() {
            self.servers.close();
        }
    }

    /// A tag that no other request of this process has or had.
    pub(crate) fn next_tag(&self) -> u64 {
        self.tags.fetch_add(1, Ordering::Relaxed)
    }
}

impl Locks {
    /// Locks with all options at their defaults. Nothing is sent, and no connection is opened.
    pub fn new(server: impl Into<Server>) -> Self {
        Self::builder(server).build()
    }

    /// Locks with options.
    pub fn builder(server: impl Into<Server>) -> LocksBuilder {
        LocksBuilder {
            server: server.into(),
            defaults: Options::default(),
            waiting: Waiting::default(),
            retry_for: Duration::from_secs(3),
            observer: None,
        }
    }

    /// A request to be the only holder of the key, or of all the keys.
    pub fn write(&self, keys: impl IntoKeys) -> Request {
        self.request(keys, Mode::Write)
    }

    /// A request to share the key, or all the keys, with other readers.
    pub fn read(&self, keys: impl IntoKeys) -> Request {
        self.request(keys, Mode::Read)
    }

    /// A request in the mode that is given.
    pub fn request(&self, keys: impl IntoKeys, mode: Mode) -> Request {
        Request::new(self.inner.clone(), keys.into_keys().into(), mode, Options::clone(&self.defaults))
    }

    /// A hold from keys and token that another process took, in this mode. It is renewed from now on, and
    /// released when it is dropped. For other options: [`Request::adopt`].
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] when the token holds nothing, [`Error::WrongMode`] when it holds in the other mode.
    pub async fn adopt(
        &self,
        keys: impl IntoKeys,
        token: impl Into<String>,
        mode: Mode,
    ) -> Result<Hold, Error> {
        self.request(keys, mode).token(token).adopt().await
    }

    /// Releases what the token holds, in whichever mode, and gives how many of the keys it held.
    ///
    /// # Errors
    ///
    /// An error of the server, or of the connection when it lasted longer than `retry_for`.
    pub async fn release(&self, keys: impl IntoKeys, token: impl Into<String>) -> Result<usize, Error> {
        self.inner.closing.unless_closed()?;
        let owner = Owner::new(keys.into_keys().into(), Some(token.into()))?;
        let _ending = self.inner.given_tokens.ending(&owner);
        let until = Instant::now() + self.inner.retry_for;
        let called = route::call(&self.inner, &owner, &command::release(&owner, None), until).await?;
        Ok(called.number.and_then(|number| usize::try_from(number).ok()).unwrap_or(0))
    }

    /// Ends the task that renews, and closes the connections. It releases nothing: holds that are still there
    /// end with their ttl, and requests that wait end with [`Error::Closed`]. Releases and withdrawals that a
    /// dropped hold or a dropped future began are brought to their end first.
    pub async fn close(&self) {
        self.inner.closing.close();
        self.inner.watchdog.stop();
        self.inner.servers.end_waits();
        self.inner.background.finish().await;
        self.inner.servers.close();
    }
}

impl LocksBuilder {
    shared_options!(defaults);
    replica_options!(defaults);

    /// How requests wait. [`Waiting::Notify`] unless it is set.
    pub fn waiting(mut self, waiting: Waiting) -> Self {
        self.waiting = waiting;
        self
    }

    /// How long a command is sent again after a connection error, where no wait and no validity sets the end.
    /// 3 s unless it is set.
    pub fn retry_for(mut self, retry_for: Duration) -> Self {
        self.retry_for = retry_for.min(options::LONGEST);
        self
    }

    /// Hooks for metrics and traces.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// The locks.
    pub fn build(self) -> Locks {
        let must_block = AtomicBool::new(self.waiting == Waiting::Block);
        Locks {
            inner: Arc::new(Inner {
                servers: self.server.open(),
                waiting: self.waiting,
                retry_for: self.retry_for,
                observer: self.observer,
                background: Background::default(),
                watchdog: Watchdog::default(),
                must_block,
                closing: Closing::default(),
                given_tokens: Arc::default(),
                tags: AtomicU64::new(1),
            }),
            defaults: Arc::new(self.defaults),
        }
    }
}
