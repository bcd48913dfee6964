//! One lock on several independent servers.

mod adoption;
mod attempt;
mod hold;
mod members;
mod renewal;
mod request;

use std::sync::Arc;
use std::time::Duration;

use redis::Client;

use crate::background::Background;
use crate::closing::Closing;
use crate::command::{self, Owner};
use crate::given_tokens::GivenTokens;
use crate::node::Node;
use crate::options::{self, Options, shared_options};
use crate::watchdog::{Renewed, Watchdog};
use crate::{Answer, Error, IntoKeys, Mode, NodeAnswer, Observer, Poll};

pub use hold::{QuorumHold, QuorumHoldView};
use renewal::QuorumRenewal;
pub use request::QuorumRequest;

/// One lock on several independent servers: who has it on more than half of them has it.
///
/// It survives the loss of a minority of the servers without replication. Each server gives a fence of its
/// own, and they cannot be compared: where a fence is needed, use one server with replicas and
/// [`Locks`](crate::Locks).
///
/// A lock that others have is polled for: the servers cannot wait, since two owners could wait for each other
/// on different servers. It is cheap to clone, and clones share everything.
///
/// ```no_run
/// # async fn example() -> Result<(), slock_client::Error> {
/// use slock_client::Quorum;
/// use std::time::Duration;
///
/// let mut clients = Vec::new();
/// for port in 7001..=7005 {
///     clients.push(redis::Client::open(format!("redis://127.0.0.1:{port}/"))?);
/// }
/// let quorum = Quorum::builder(clients).node_timeout(Duration::from_millis(100)).build();
/// quorum.write("job:42").run(|_| async { /* work */ }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Quorum {
    inner: Arc<Inner>,
    defaults: Arc<Options>,
}

/// Options of a [`Quorum`]. Those of a request are the defaults of all its requests.
pub struct QuorumBuilder {
    clients: Vec<Client>,
    defaults: Options,
    poll: Poll,
    node_timeout: Option<Duration>,
    drift_factor: f64,
    fail_fast: bool,
    observer: Option<Arc<dyn Observer>>,
}

struct Inner {
    nodes: Vec<Arc<Node>>,
    poll: Poll,
    node_timeout: Option<Duration>,
    drift_factor: f64,
    fail_fast: bool,
    observer: Option<Arc<dyn Observer>>,
    background: Background,
    watchdog: Watchdog<QuorumRenewal>,
    closing: Closing,
    given_tokens: Arc<GivenTokens>,
}

impl Inner {
    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// How long one server has to answer: always less than the ttl.
    fn node_timeout(&self, ttl: Duration) -> Duration {
        const LEAST: Duration = Duration::from_millis(50);
        self.node_timeout.unwrap_or((ttl / 20).max(LEAST)).min(ttl.mul_f64(0.9))
    }

    /// How long a hold is valid after a request for it was sent.
    fn validity(&self, ttl: Duration) -> Duration {
        ttl.saturating_sub(self.drift(ttl))
    }

    /// The part of the ttl that is left for clocks that run at different speeds.
    fn drift(&self, ttl: Duration) -> Duration {
        ttl.mul_f64(self.drift_factor) + Duration::from_millis(2)
    }

    fn check_ttl(&self, ttl: Duration) -> Result<(), Error> {
        options::check_ttl(ttl)?;
        let drift = self.drift(ttl);
        if ttl <= drift {
            let text =
                format!("the ttl is {ttl:?}, and must be longer than {drift:?}, which clocks may drift");
            return Err(Error::InvalidArgument(text));
        }
        Ok(())
    }

    /// What the answers of the servers to an extension come to.
    fn renewed(&self, answers: &[Answer]) -> Renewed {
        let count = |wanted| answers.iter().filter(|answer| **answer == wanted).count();
        if count(Answer::Granted) >= self.majority() {
            Renewed::Extended
        } else if self.nodes.len() - count(Answer::Gone) < self.majority() {
            Renewed::Gone
        } else {
            Renewed::Failed(self.missed(answers))
        }
    }

    /// The error that says what each server answered.
    fn missed(&self, answers: &[Answer]) -> Error {
        let named = std::iter::zip(&self.nodes, answers)
            .map(|(node, answer)| NodeAnswer { address: node.address().to_owned(), answer: answer.clone() });
        Error::QuorumMissed(named.collect())
    }
}

impl Quorum {
    /// A quorum of these servers with all options at their defaults. Nothing is sent, and no connection is
    /// opened.
    pub fn new(clients: impl IntoIterator<Item = Client>) -> Self {
        Self::builder(clients).build()
    }

    /// A quorum with options. The servers must not be replicas of each other.
    pub fn builder(clients: impl IntoIterator<Item = Client>) -> QuorumBuilder {
        QuorumBuilder {
            clients: clients.into_iter().collect(),
            defaults: Options::default(),
            poll: Poll::exponential(Duration::from_millis(50), Duration::from_millis(250)),
            node_timeout: None,
            drift_factor: 0.01,
            fail_fast: false,
            observer: None,
        }
    }

    /// A request to be the only holder of the key, or of all the keys.
    pub fn write(&self, keys: impl IntoKeys) -> QuorumRequest {
        self.request(keys, Mode::Write)
    }

    /// A request to share the key, or all the keys, with other readers.
    pub fn read(&self, keys: impl IntoKeys) -> QuorumRequest {
        self.request(keys, Mode::Read)
    }

    /// A request in the mode that is given.
    pub fn request(&self, keys: impl IntoKeys, mode: Mode) -> QuorumRequest {
        QuorumRequest::new(self.inner.clone(), keys.into_keys().into(), mode, Options::clone(&self.defaults))
    }

    /// A hold from keys and token that another process took, in this mode. It is renewed from now on, and
    /// released when it is dropped. For other options: [`QuorumRequest::adopt`].
    ///
    /// # Errors
    ///
    /// Those of [`QuorumRequest::adopt`].
    pub async fn adopt(
        &self,
        keys: impl IntoKeys,
        token: impl Into<String>,
        mode: Mode,
    ) -> Result<QuorumHold, Error> {
        self.request(keys, mode).token(token).adopt().await
    }

    /// Releases what the token holds on all servers, in whichever mode. Gives on how many of them it held a
    /// key. A server that does not answer in time counts as one where it did not.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] without a key, [`Error::Closed`] after [`Quorum::close`].
    pub async fn release(&self, keys: impl IntoKeys, token: impl Into<String>) -> Result<usize, Error> {
        self.inner.closing.unless_closed()?;
        let owner = Owner::new(keys.into_keys().into(), Some(token.into()))?;
        let _ending = self.inner.given_tokens.ending(&owner);
        let release = command::release(&owner, None);
        let limit = self.inner.node_timeout(self.defaults.ttl);
        let answers = members::ask_all(&self.inner.nodes, &release, limit, &|| {}).await;
        Ok(answers.iter().filter(|answer| matches!(answer, Ok(Some(1..)))).count())
    }

    /// Ends the task that renews, and closes the connections. It releases nothing: holds that are still there
    /// end with their ttl, and requests that poll end with [`Error::Closed`]. Releases
    /// that a dropped hold or a failed attempt began are brought to their end first, as far as their servers
    /// answer.
    pub async fn close(&self) {
        self.inner.closing.close();
        self.inner.watchdog.stop();
        self.inner.background.finish().await;
        self.inner.nodes.iter().for_each(|node| node.close());
    }
}

impl QuorumBuilder {
    shared_options!(defaults);

    /// How a lock that others have is asked for again. Pauses from 50 up to 250 ms unless it is set.
    pub fn poll(mut self, poll: Poll) -> Self {
        self.poll = poll;
        self
    }

    /// How long each server has to answer. A twentieth of the ttl and at least 50 ms unless it is set, and
    /// always less than the ttl.
    pub fn node_timeout(mut self, node_timeout: Duration) -> Self {
        self.node_timeout = Some(node_timeout);
        self
    }

    /// Which part of the ttl is left for clocks that run at different speeds. 0.01 unless it is set; 2 ms are
    /// left in any case.
    pub fn drift_factor(mut self, drift_factor: f64) -> Self {
        self.drift_factor = drift_factor.clamp(0.0, 1.0);
        self
    }

    /// Whether an attempt ends as soon as the majority cannot be reached any more. Otherwise it waits for all
    /// servers.
    pub fn fail_fast(mut self, fail_fast: bool) -> Self {
        self.fail_fast = fail_fast;
        self
    }

    /// Hooks for metrics and traces.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// The quorum.
    pub fn build(self) -> Quorum {
        Quorum {
            inner: Arc::new(Inner {
                nodes: self.clients.into_iter().map(Node::new).map(Arc::new).collect(),
                poll: self.poll,
                node_timeout: self.node_timeout,
                drift_factor: self.drift_factor,
                fail_fast: self.fail_fast,
                observer: self.observer,
                background: Background::default(),
                watchdog: Watchdog::default(),
                closing: Closing::default(),
                given_tokens: Arc::default(),
            }),
            defaults: Arc::new(self.defaults),
        }
    }
}
