//! One lock on several independent servers: N `Locks` and arithmetic.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use rand::seq::SliceRandom;
use redis::Client;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout, timeout_at};

use crate::acquisition::Limits;
use crate::background::{Background, Closing};
use crate::clock::Moment;
use crate::commands::Owner;
use crate::errors::{Answer, Error, NodeAnswer, Reason};
use crate::held::Held;
use crate::hold::{Hold, HoldView};
use crate::hooks::{Reporter, Waited};
use crate::lease::Lease;
use crate::locks::Locks;
use crate::options::{self, IntoKeys, Options, Wanted, check_keys, shared_options};
use crate::polling::Poll;
use crate::request::{Locking, Settings, holds, locking, maker_options, requests};
use crate::servers::GRACE;
use crate::watchdog::{Renew, Watchdog};

/// One lock on several independent servers: who has it on more than half of them has it.
///
/// It survives the loss of a minority of the servers without replication. Each server gives a fence of its
/// own, and they cannot be compared: where a fence is needed, use one server with replicas and
/// [`Locks`].
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
    defaults: Options,
}

/// Options of a [`Quorum`]. Those of a request are the defaults of all its requests.
pub struct QuorumBuilder {
    clients: Vec<Client>,
    rules: Rules,
    settings: Settings,
}

/// How many have to answer what, and when.
struct Rules {
    poll: Poll,
    node_timeout: Option<Duration>,
    drift_factor: f64,
    fail_fast: bool,
}

struct Inner {
    nodes: Vec<Node>,
    rules: Rules,
    retry_for: Duration,
    retry_wait_for: Duration,
    reporter: Reporter,
    watchdog: Watchdog,
    background: Background,
    closing: Closing,
}

struct Node {
    address: String,
    locks: Locks,
}

impl Quorum {
    /// A quorum of these servers with all options at their defaults. Nothing is sent, and no connection is
    /// opened.
    pub fn new(clients: impl IntoIterator<Item = Client>) -> Self {
        Self::builder(clients).build()
    }

    /// A quorum with options. The servers must not be replicas of each other.
    pub fn builder(clients: impl IntoIterator<Item = Client>) -> QuorumBuilder {
        let poll = Poll::exponential(Duration::from_millis(50), Duration::from_millis(250));
        QuorumBuilder {
            clients: clients.into_iter().collect(),
            rules: Rules { poll, node_timeout: None, drift_factor: 0.01, fail_fast: false },
            settings: Settings::default(),
        }
    }

    requests!(QuorumHold);

    /// Releases what the token holds on all servers, in whichever mode. Gives on how many of them it held a
    /// key. A server that does not answer in time counts as one where it did not.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] without a key, [`Error::Closed`] after [`Quorum::close`].
    pub async fn release(&self, keys: impl IntoKeys, token: impl Into<String>) -> Result<usize, Error> {
        self.inner.closing.unless_closed()?;
        let (keys, token) = (keys.into_keys(), token.into());
        check_keys(&keys)?;
        let limit = self.inner.node_timeout(self.defaults.ttl);
        let releases = self.inner.nodes.iter();
        let releases = releases.map(|node| timeout(limit, node.locks.release(keys.clone(), token.clone())));
        let answers = join_all(releases).await;
        Ok(answers.iter().filter(|answer| matches!(answer, Ok(Ok(1..)))).count())
    }

    /// Ends the task that renews, and closes the connections. It releases nothing: holds that are still there
    /// end with their ttl, and requests that poll end with [`Error::Closed`]. Releases that a dropped hold or
    /// a failed attempt began are brought to their end first, as far as their servers answer.
    pub async fn close(&self) {
        self.inner.closing.close();
        self.inner.watchdog.stop();
        self.inner.background.finish().await;
        join_all(self.inner.nodes.iter().map(|node| node.locks.close())).await;
    }
}

impl QuorumBuilder {
    shared_options!(options);
    maker_options!();

    /// How a lock that others have is asked for again. Pauses from 50 up to 250 ms unless it is set.
    pub fn poll(mut self, poll: Poll) -> Self {
        self.rules.poll = poll;
        self
    }

    /// How long each server has to answer. A twentieth of the ttl and at least 50 ms unless it is set, and
    /// always less than the ttl.
    pub fn node_timeout(mut self, node_timeout: Duration) -> Self {
        self.rules.node_timeout = Some(node_timeout);
        self
    }

    /// Which part of the ttl is left for clocks that run at different speeds. 0.01 unless it is set; 2 ms are
    /// left in any case.
    pub fn drift_factor(mut self, drift_factor: f64) -> Self {
        self.rules.drift_factor = drift_factor.clamp(0.0, 1.0);
        self
    }

    /// Whether an attempt ends as soon as the majority cannot be reached any more. Otherwise it waits for all
    /// servers.
    pub fn fail_fast(mut self, fail_fast: bool) -> Self {
        self.rules.fail_fast = fail_fast;
        self
    }

    /// The quorum.
    pub fn build(self) -> Quorum {
        let node = |client: Client| Node {
            address: client.get_connection_info().addr().to_string(),
            locks: Locks::builder(client).reporting_to(Reporter::of_a_part()),
        };
        let Settings { defaults, retry_for, retry_wait_for, hooks } = self.settings;
        let inner = Inner {
            nodes: self.clients.into_iter().map(node).collect(),
            rules: self.rules,
            retry_for,
            retry_wait_for,
            reporter: Reporter::new(hooks),
            watchdog: Watchdog::default(),
            background: Background::default(),
            closing: Closing::default(),
        };
        Quorum { inner: Arc::new(inner), defaults }
    }
}

/// What the answers of the servers come to.
#[derive(PartialEq)]
enum Verdict {
    Yes,
    /// So many said no that no majority is possible.
    No,
    Missed,
}

/// The arithmetic.
impl Inner {
    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// How long one server has to answer: always less than the ttl.
    fn node_timeout(&self, ttl: Duration) -> Duration {
        const LEAST: Duration = Duration::from_millis(50);
        self.rules.node_timeout.unwrap_or((ttl / 20).max(LEAST)).min(ttl.mul_f64(0.9))
    }

    /// How long a hold is valid after a request for it was sent.
    fn validity(&self, ttl: Duration) -> Duration {
        ttl.saturating_sub(self.drift(ttl))
    }

    /// The part of the ttl that is left for clocks that run at different speeds.
    fn drift(&self, ttl: Duration) -> Duration {
        ttl.mul_f64(self.rules.drift_factor) + Duration::from_millis(2)
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

    fn check(&self, wanted: &Wanted) -> Result<(), Error> {
        wanted.check()?;
        if wanted.options.min_replicas > 0 {
            return Err(Error::InvalidArgument("min_replicas is not for a quorum".into()));
        }
        self.check_ttl(wanted.options.ttl)?;
        self.closing.unless_closed()
    }

    fn verdict(&self, answers: &[Answer]) -> Verdict {
        let yes = answers.iter().filter(|answer| **answer == Answer::Granted).count();
        let no = answers.iter().filter(|answer| matches!(answer, Answer::Refused | Answer::Gone)).count();
        if yes >= self.majority() {
            Verdict::Yes
        } else if self.nodes.len() - no < self.majority() {
            Verdict::No
        } else {
            Verdict::Missed
        }
    }

    /// The error that says what each server answered.
    fn missed(&self, answers: &[Answer]) -> Error {
        let named = std::iter::zip(&self.nodes, answers)
            .map(|(node, answer)| NodeAnswer { address: node.address.clone(), answer: answer.clone() });
        Error::QuorumMissed(named.collect())
    }
}

/// What one server answers to an acquisition, an adoption or an extension that gives an error.
fn answer_of(error: Error) -> Answer {
    match error {
        Error::NotHeld | Error::Lost { .. } => Answer::Gone,
        Error::TimedOut { source: Some(cause), .. } => Answer::Failed(cause.to_string()),
        Error::TimedOut { .. } => Answer::NoAnswer,
        other => Answer::Failed(other.to_string()),
    }
}

/// What one server answers until its time is over.
async fn answer<T>(limit: Duration, asks: impl Future<Output = Result<T, Error>>) -> Result<T, Answer> {
    timeout(limit, asks)
        .await
        .unwrap_or(Err(Error::TimedOut { keys: Arc::from([]), source: None }))
        .map_err(answer_of)
}

/// What one server is asked for: the quorum renews, and tells the hooks.
fn of_one_node(wanted: &Wanted, ttl: Duration) -> Arc<Wanted> {
    let options = Options { ttl, renew: false, longest_lease: None, ..wanted.options.clone() };
    Arc::new(Wanted { options, ..wanted.clone() })
}

/// Acquisition.
impl Inner {
    async fn acquire(self: Arc<Self>, wanted: Arc<Wanted>, once: bool) -> Result<Option<QuorumHold>, Error> {
        self.check(&wanted)?;
        let mut waited = Waited::begin(&self.reporter, wanted.label(), Instant::now());
        let polls = self.closing.unless_closing(self.poll(&wanted, once));
        let result = polls.await.unwrap_or(Err(Error::Closed));
        waited.end(&result);
        result
    }

    async fn poll(self: &Arc<Self>, wanted: &Arc<Wanted>, once: bool) -> Result<Option<QuorumHold>, Error> {
        let started = Instant::now();
        let deadline = wanted.options.wait.filter(|_| !once).map(|wait| started + wait);
        let (mut missed_since, mut patience) = (started, self.retry_for);
        for number in 0.. {
            let mut answers = vec![Answer::NoAnswer; self.nodes.len()];
            let attempt = self.attempt(wanted, &mut answers);
            let hold = match deadline {
                Some(deadline) => timeout_at((deadline + GRACE).into(), attempt).await.ok().flatten(),
                None => attempt.await,
            };
            if hold.is_some() {
                return Ok(hold);
            }
            let refused = self.verdict(&answers) == Verdict::No;
            let missed = self.missed(&answers);
            if once {
                return if refused { Ok(None) } else { Err(missed) };
            }
            if refused {
                (missed_since, patience) = (Instant::now(), self.retry_wait_for);
            }
            let pause = self.rules.poll.pause(number).filter(|_| missed_since.elapsed() < patience);
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match (pause, left) {
                (Some(pause), left) if left.is_none_or(|left| pause < left) => sleep(pause).await,
                _ if !refused => return Err(missed),
                (pause, left) => {
                    sleep(left.filter(|_| pause.is_some()).unwrap_or_default()).await;
                    let source = Some(Box::new(missed));
                    return Err(Error::TimedOut { keys: wanted.keys.clone(), source });
                }
            }
        }
        unreachable!("the range has no end")
    }

    fn parts(&self) -> Arc<Parts> {
        let holds = self.nodes.iter().map(|_| None).collect();
        Arc::new(Parts(Mutex::new(State { holds, ended: false, are_left: false })))
    }

    /// Asks all servers at once, in any order. What is dropped here, each server's part gives up by itself.
    async fn attempt(self: &Arc<Self>, wanted: &Arc<Wanted>, answers: &mut [Answer]) -> Option<QuorumHold> {
        let ttl = wanted.options.ttl;
        let limit = Instant::now() + self.node_timeout(ttl);
        let sent = Moment::now();
        let owner = Owner::new(wanted.keys.clone(), wanted.options.token.clone());
        let parts = self.parts();
        let mut order: Vec<_> = (0..self.nodes.len()).collect();
        order.shuffle(&mut rand::rng());
        let mut asked: FuturesUnordered<_> = order
            .into_iter()
            .map(|number| self.clone().ask(number, of_one_node(wanted, ttl), owner.clone(), parts.clone()))
            .collect();
        while let Ok(Some((number, answer))) = timeout_at(limit.into(), asked.next()).await {
            answers[number] = answer;
            if self.verdict(answers) == Verdict::Yes {
                if sent.elapsed() >= self.validity(ttl) {
                    return None;
                }
                // Servers that were slower than a majority may still grant.
                self.background
                    .spawn(&Handle::current(), async move { while asked.next().await.is_some() {} });
                return Some(QuorumHold::new(self.clone(), owner, wanted.clone(), sent, parts));
            }
            let granted = answers.iter().filter(|answer| **answer == Answer::Granted).count();
            if self.rules.fail_fast && granted + asked.len() < self.majority() {
                return None;
            }
        }
        None
    }

    /// Asks one server. When it is slow it may still grant after the attempt, for as long as a call may take.
    async fn ask(
        self: Arc<Self>,
        number: usize,
        wanted: Arc<Wanted>,
        owner: Owner,
        parts: Arc<Parts>,
    ) -> (usize, Answer) {
        // So that what it answered last is known when the attempt ends.
        let retry_for = self.node_timeout(wanted.options.ttl) * 3 / 4;
        let limits = Limits { once: true, deadline: None, retry_for, retry_wait_for: retry_for };
        let shared = self.nodes[number].locks.shared().clone();
        let answer = match Hold::acquire(shared, owner, wanted, limits).await {
            Ok(Some(hold)) => {
                parts.put(number, hold);
                Answer::Granted
            }
            Ok(None) => Answer::Refused,
            Err(error) => answer_of(error),
        };
        (number, answer)
    }

    async fn adopt(self: Arc<Self>, wanted: Arc<Wanted>, token: String) -> Result<QuorumHold, Error> {
        self.check(&wanted)?;
        let ttl = wanted.options.ttl;
        let sent = Moment::now();
        let parts = self.parts();
        // Until the whole is adopted, they are another's.
        parts.lock().are_left = true;
        let adopts = self.nodes.iter().enumerate().map(|(number, node)| {
            let adopts = node.locks.take_over(of_one_node(&wanted, ttl), token.clone());
            let (parts, limit) = (&parts, self.node_timeout(ttl));
            async move {
                match answer(limit, adopts).await {
                    Ok(hold) => {
                        parts.put(number, hold);
                        Answer::Granted
                    }
                    Err(answer) => answer,
                }
            }
        });
        let answers = join_all(adopts).await;
        match self.verdict(&answers) {
            Verdict::Yes => {}
            Verdict::No => return Err(Error::NotHeld),
            Verdict::Missed => return Err(self.missed(&answers)),
        }
        parts.lock().are_left = false;
        let owner = Owner::new(wanted.keys.clone(), Some(token));
        Ok(QuorumHold::new(self, owner, wanted, sent, parts))
    }
}

impl Locking for Quorum {
    type Hold = QuorumHold;

    locking!();

    fn ask(&self, wanted: Arc<Wanted>, once: bool) -> BoxFuture<'static, Result<Option<QuorumHold>, Error>> {
        Box::pin(self.inner.clone().acquire(wanted, once))
    }

    fn take_over(&self, wanted: Arc<Wanted>, token: String) -> BoxFuture<'static, Result<QuorumHold, Error>> {
        Box::pin(self.inner.clone().adopt(wanted, token))
    }
}

/// The holds of the servers.
struct Parts(Mutex<State>);

struct State {
    /// In the order of the servers; nothing where the lock was not granted.
    holds: Vec<Option<Hold>>,
    /// What comes later is not kept.
    ended: bool,
    /// What is not kept is left to another who has the token, and not released.
    are_left: bool,
}

impl Parts {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic while the holds are locked")
    }

    fn view(&self, number: usize) -> Option<HoldView> {
        self.lock().holds[number].as_ref().map(Hold::view)
    }

    /// A server granted the lock.
    fn put(&self, number: usize, hold: Hold) {
        let mut state = self.lock();
        if !state.ended {
            // To release the former one could end this one: both have one token.
            state.holds[number].replace(hold).into_iter().for_each(Hold::leave);
        } else if state.are_left {
            hold.leave();
        }
    }

    fn end(&self, are_left: bool) -> Vec<Option<Hold>> {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.ended, true) {
            state.are_left = are_left;
        }
        state.holds.iter_mut().map(Option::take).collect()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if self.are_left {
            self.holds.drain(..).flatten().for_each(Hold::leave);
        }
    }
}

struct Core {
    inner: Arc<Inner>,
    owner: Owner,
    wanted: Arc<Wanted>,
    held: Held,
    parts: Arc<Parts>,
    /// Locked while servers that have lost the hold are asked to grant it anew.
    granting_anew: tokio::sync::Mutex<()>,
}

/// A hold on more than half of the servers. It is renewed until it is lost or released.
///
/// Dropping it releases it in the background, as with [`Hold`]. For all else see [`QuorumHoldView`] and
/// [`Held`], to which it dereferences.
#[must_use = "the lock is released when its hold is dropped"]
pub struct QuorumHold {
    view: QuorumHoldView,
}

/// All that can be seen and done with a hold of a quorum but to end it. It can be cloned and given to tasks.
#[derive(Clone)]
pub struct QuorumHoldView {
    core: Arc<Core>,
}

impl QuorumHold {
    fn new(inner: Arc<Inner>, owner: Owner, wanted: Arc<Wanted>, sent: Moment, parts: Arc<Parts>) -> Self {
        // There is no fence of the whole.
        let lease = Lease::new(0, &wanted, sent, inner.validity(wanted.options.ttl));
        let held = Held::new(lease, owner.token.clone(), wanted.clone(), sent, inner.reporter.clone());
        let granting_anew = tokio::sync::Mutex::default();
        let core = Arc::new(Core { inner, owner, wanted, held, parts, granting_anew });
        if core.wanted.options.renew {
            core.inner.watchdog.add(core.clone());
        }
        Self { view: QuorumHoldView { core } }
    }

    /// A view of this hold for another task.
    pub fn view(&self) -> QuorumHoldView {
        self.view.clone()
    }

    /// Releases the hold on all servers. Gives whether it was valid until now and still there on more than
    /// half of them. What servers do not answer in time goes on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::QuorumMissed`] when too few servers answered to know.
    pub async fn release(self) -> Result<bool, Error> {
        let (held, inner) = (&self.core.held, &self.core.inner);
        let limit = inner.node_timeout(held.update(|lease, _| lease.ttl));
        let valid = held.released();
        let mut answers = vec![Answer::Gone; inner.nodes.len()];
        let mut releases = FuturesUnordered::new();
        for (number, hold) in self.core.parts.end(false).into_iter().enumerate() {
            let Some(hold) = hold else { continue };
            answers[number] = Answer::NoAnswer;
            releases.push(async move { (number, answer(limit, hold.release()).await) });
        }
        while inner.verdict(&answers) == Verdict::Missed
            && let Some((number, released)) = releases.next().await
        {
            answers[number] = match released {
                Ok(true) => Answer::Granted,
                Ok(false) => Answer::Gone,
                Err(answer) => answer,
            };
        }
        match inner.verdict(&answers) {
            Verdict::Yes => Ok(valid),
            Verdict::Missed if valid => {
                let error = inner.missed(&answers);
                held.release_failed(&error);
                Err(error)
            }
            _ => Ok(false),
        }
    }

    /// Ends the hold here without releasing it: it is renewed no more, and whoever has token and keys adopts
    /// it until its ttl is over.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when there is nothing to hand over.
    pub fn hand_over(self) -> Result<(), Error> {
        self.check()?;
        self.core.held.released();
        self.core.parts.end(true).into_iter().flatten().for_each(Hold::leave);
        Ok(())
    }
}

impl Drop for QuorumHold {
    fn drop(&mut self) {
        self.core.held.released();
        // Each server's hold releases itself.
        drop(self.core.parts.end(false));
    }
}

/// Extension.
impl Core {
    /// Extends on all servers, and ends when the outcome is certain. What comes later goes on.
    async fn extend(self: Arc<Self>, ttl: Duration) -> Result<(), Error> {
        let (tell, told) = oneshot::channel();
        self.inner.background.spawn(&Handle::current(), self.clone().extend_on_all(ttl, tell));
        told.await.unwrap_or(Err(Error::Closed))
    }

    async fn extend_on_all(self: Arc<Self>, ttl: Duration, tell: oneshot::Sender<Result<(), Error>>) {
        let inner = &self.inner;
        let sent = Moment::now();
        let mut tell = Some(tell);
        let mut answers = vec![Answer::NoAnswer; inner.nodes.len()];
        let mut extends: FuturesUnordered<_> =
            (0..answers.len()).map(|number| self.extend_on(number, ttl)).collect();
        while let Some((number, answer)) = extends.next().await {
            answers[number] = answer;
            let outcome = match inner.verdict(&answers) {
                Verdict::Yes => {
                    let valid_until = sent.after(inner.validity(ttl));
                    self.held.update(|lease, _| lease.extended(0, ttl, valid_until));
                    Ok(())
                }
                Verdict::No => {
                    self.held.update(|lease, _| lease.lose(Reason::Gone));
                    Ok(())
                }
                Verdict::Missed if extends.is_empty() => Err(inner.missed(&answers)),
                Verdict::Missed => continue,
            };
            // Nobody may listen any more.
            let _ = tell.take().map(|tell| tell.send(outcome));
        }
        if inner.verdict(&answers) == Verdict::Yes {
            let _one_at_a_time = self.granting_anew.lock().await;
            let gone = (0..answers.len()).filter(|number| answers[*number] == Answer::Gone);
            join_all(gone.map(|number| self.grant_anew(number, ttl))).await;
        }
    }

    async fn extend_on(&self, number: usize, ttl: Duration) -> (usize, Answer) {
        let Some(view) = self.parts.view(number) else { return (number, Answer::Gone) };
        let limit = self.inner.node_timeout(ttl);
        let extended = answer(limit, view.extend_until(ttl, Instant::now() + limit)).await;
        (number, extended.map_or_else(|answer| answer, |()| Answer::Granted))
    }

    /// A server has lost the hold, and a majority has it.
    async fn grant_anew(&self, number: usize, ttl: Duration) {
        let is_needed = self.parts.lock().holds[number].as_ref().is_none_or(|former| {
            // Another extension may have done it. What ends a hold in doubt would end the new one of the same
            // token.
            former.check().is_err() && !former.is_in_doubt()
        });
        if is_needed && self.held.check().is_ok() {
            let (wanted, owner) = (of_one_node(&self.wanted, ttl), self.owner.clone());
            self.inner.clone().ask(number, wanted, owner, self.parts.clone()).await;
        }
    }
}

/// The watchdog's part.
impl Renew for Core {
    fn held(&self) -> &Held {
        &self.held
    }

    async fn renew(self: Arc<Self>, limit: Duration) -> Result<(), Error> {
        let ttl = self.held.update(|lease, _| lease.ttl);
        let no_answer = self.inner.missed(&vec![Answer::NoAnswer; self.inner.nodes.len()]);
        timeout(limit, self.extend(ttl)).await.unwrap_or(Err(no_answer))
    }
}

impl QuorumHoldView {
    /// The fence of each server, in the order in which the servers were given; nothing where the lock was not
    /// granted. Fences of different servers cannot be compared.
    pub fn fences(&self) -> Vec<Option<i64>> {
        self.core.parts.lock().holds.iter().map(|hold| hold.as_ref().map(|hold| hold.fence())).collect()
    }

    /// Makes the hold valid for this ttl from now on, and never shortens. A server that has lost the hold is
    /// asked to grant it anew, as long as a majority has it.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the majority has lost the hold. [`Error::QuorumMissed`] when a majority did not
    /// answer: the hold may still be valid, and this may be tried again. [`Error::InvalidArgument`] for a ttl
    /// that leaves no validity: the hold stays as it is.
    pub async fn extend(&self, ttl: Duration) -> Result<(), Error> {
        self.core.inner.check_ttl(ttl)?;
        self.check()?;
        self.core.inner.closing.unless_closed()?;
        let extended = self.core.clone().extend(ttl.min(options::LONGEST)).await;
        extended.map_err(|error| self.core.held.unless_over(error))?;
        self.check()
    }
}

holds!(QuorumHold, QuorumHoldView, fences);
