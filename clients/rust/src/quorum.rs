//! One lock on several independent servers: N `Locks` and arithmetic.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use rand::seq::SliceRandom;
use redis::Client;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout, timeout_at};

use crate::acquisition::Limits;
use crate::clock::Moment;
use crate::commands::Owner;
use crate::errors::{Answer, Error, NodeAnswer, Reason};
use crate::hold::{Asks, HoldOf, HoldViewOf, Operations};
use crate::hooks::Reporter;
use crate::lease::Granted;
use crate::locks::{BuilderOf, Locks, LocksOf};
use crate::options::{LONGEST, Options, Wanted};
use crate::polling::Poll;
use crate::shared::{GRACE, Shared, Single};
use crate::single::{self, Hold, HoldView};

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
pub type Quorum = LocksOf<Majority>;
/// Options of a [`Quorum`]. Those of a request are the defaults of all its requests.
pub type QuorumBuilder = BuilderOf<Majority>;
/// A hold on more than half of the servers.
pub type QuorumHold = HoldOf<Majority>;
/// What can be seen and done with a hold on more than half of the servers.
pub type QuorumHoldView = HoldViewOf<Majority>;

/// The site of locks on more than half of several servers, and how many have to answer what, and when.
pub struct Majority {
    nodes: Vec<Locks>,
    node_timeout: Option<Duration>,
    drift_factor: f64,
    fail_fast: bool,
}

impl Quorum {
    /// A quorum of these servers with all options at their defaults. Nothing is sent, and no connection is
    /// opened.
    pub fn new(clients: impl IntoIterator<Item = Client>) -> Self {
        Self::builder(clients).build()
    }

    /// A quorum with options. The servers must not be replicas of each other.
    pub fn builder(clients: impl IntoIterator<Item = Client>) -> QuorumBuilder {
        let node = |client| {
            let mut builder = Locks::builder(client);
            builder.shared.reporter = Reporter::of_a_part();
            builder.build()
        };
        BuilderOf::new(Majority {
            nodes: clients.into_iter().map(node).collect(),
            node_timeout: None,
            drift_factor: 0.01,
            fail_fast: false,
        })
        .poll(Poll::exponential(Duration::from_millis(50), Duration::from_millis(250)))
    }
}

impl QuorumBuilder {
    /// How a lock that others have is asked for again. Pauses from 50 up to 250 ms unless it is set.
    pub fn poll(mut self, poll: Poll) -> Self {
        self.shared.poll = Some(poll);
        self
    }

    /// How long each server has to answer. A twentieth of the ttl, at least 50 ms and at most `retry_for`, unless
    /// it is set, and always less than the ttl.
    pub fn node_timeout(mut self, node_timeout: Duration) -> Self {
        self.shared.site.node_timeout = Some(node_timeout);
        self
    }

    /// Which part of the ttl is left for clocks that run at different speeds. 0.01 unless it is set; 2 ms are
    /// left in any case.
    pub fn drift_factor(mut self, drift_factor: f64) -> Self {
        self.shared.site.drift_factor = drift_factor.clamp(0.0, 1.0);
        self
    }

    /// Whether an attempt ends as soon as the majority cannot be reached any more. Otherwise it waits for all
    /// servers.
    pub fn fail_fast(mut self, fail_fast: bool) -> Self {
        self.shared.site.fail_fast = fail_fast;
        self
    }
}

/// The arithmetic.
impl Majority {
    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// Whether a majority says yes, or so many say no that none is possible; nothing while neither is certain.
    fn verdict(&self, answers: &[Answer]) -> Option<bool> {
        let is_possible =
            count(answers, &[Answer::Refused, Answer::Gone]) <= self.nodes.len() - self.majority();
        let has_majority = count(answers, &[Answer::Granted]) >= self.majority();
        if has_majority || !is_possible { Some(has_majority) } else { None }
    }

    /// The verdict, or else the error that says what each server answered.
    fn result(&self, answers: &[Answer]) -> Result<bool, Error> {
        self.verdict(answers).ok_or_else(|| self.missed(answers))
    }

    fn missed(&self, answers: &[Answer]) -> Error {
        let address = |node: &Locks| node.shared.site.server.name();
        let named = std::iter::zip(&self.nodes, answers)
            .map(|(node, answer)| NodeAnswer { address: address(node), answer: answer.clone() });
        Error::QuorumMissed(named.collect())
    }
}

impl Shared<Majority> {
    /// How long one server has to answer: always less than the ttl.
    fn node_timeout(&self, ttl: Duration) -> Duration {
        const LEAST: Duration = Duration::from_millis(50);
        let default = (ttl / 20).max(LEAST).min(self.retry_for);
        self.site.node_timeout.unwrap_or(default).min(ttl.mul_f64(0.9))
    }
}

fn count(answers: &[Answer], of: &[Answer]) -> usize {
    answers.iter().filter(|answer| of.contains(answer)).count()
}

/// A question to all servers: what they have answered, and those who are still asked, with their numbers.
struct Question<'a> {
    answers: Vec<Answer>,
    asked: FuturesUnordered<BoxFuture<'a, (usize, Answer)>>,
    until: Instant,
}

impl<'a> Question<'a> {
    /// Asks all at once, in any order.
    fn new(asks: impl Iterator<Item = impl Future<Output = Answer> + Send + 'a>, until: Instant) -> Self {
        let numbered = |(number, asks): (_, _)| FutureExt::map(asks, move |answer| (number, answer)).boxed();
        let mut asks: Vec<_> = asks.enumerate().map(numbered).collect();
        asks.shuffle(&mut rand::rng());
        Self { answers: vec![Answer::NoAnswer; asks.len()], asked: asks.into_iter().collect(), until }
    }

    /// Takes answers as they come, until this is so, all have answered, or the time is over.
    async fn until(&mut self, is_certain: impl Fn(&[Answer]) -> bool) {
        while !is_certain(&self.answers)
            && let Ok(Some((number, answer))) = timeout_at(self.until.into(), self.asked.next()).await
        {
            self.answers[number] = answer;
        }
    }
}

fn answer_of<T>(result: &Result<T, Error>) -> Answer {
    match result {
        Ok(_) => Answer::Granted,
        Err(Error::NotHeld | Error::Lost { .. }) => Answer::Gone,
        Err(Error::TimedOut { source: None, .. }) => Answer::NoAnswer,
        Err(Error::TimedOut { source: Some(cause), .. }) => Answer::Failed(cause.to_string()),
        Err(other) => Answer::Failed(other.to_string()),
    }
}

/// What one server is asked for: the quorum renews, and tells the hooks.
fn of_one_node(owner: &Owner, ttl: Duration) -> Owner {
    let options = Options { ttl, renew: false, longest_lease: None, ..owner.wanted.options.clone() };
    Owner { wanted: Arc::new(Wanted { options, ..(*owner.wanted).clone() }), token: owner.token.clone() }
}

impl Operations for Majority {
    /// The holds of the servers.
    type Part = Arc<Parts>;

    /// Less what clocks may drift.
    fn validity(&self, ttl: Duration) -> Duration {
        ttl.saturating_sub(ttl.mul_f64(self.drift_factor) + Duration::from_millis(2))
    }

    fn ask(shared: Arc<Shared<Self>>, wanted: Arc<Wanted>, once: bool) -> Asks<Option<QuorumHold>> {
        Box::pin(async move {
            if wanted.options.min_replicas > 0 {
                return Err(Error::InvalidArgument("min_replicas is not for a quorum".into()));
            }
            let (site, started) = (&shared.site, Instant::now());
            let deadline = started + wanted.options.wait.filter(|_| !once).unwrap_or(LONGEST);
            let mut patience_ends = started + shared.retry_for;
            for number in 0.. {
                let until = deadline.min(patience_ends) + GRACE;
                let answers = match attempt(&shared, &wanted, until, false).await {
                    Ok(hold) => return Ok(Some(hold)),
                    Err(answers) => answers,
                };
                let (refused, missed) = (site.verdict(&answers) == Some(false), site.missed(&answers));
                if once {
                    return if refused { Ok(None) } else { Err(missed) };
                }
                if refused {
                    patience_ends = Instant::now() + shared.retry_wait_for;
                }
                let pause = shared.poll.as_ref().and_then(|poll| poll.pause(number));
                let pause = pause.filter(|_| Instant::now() < patience_ends);
                let left = deadline.saturating_duration_since(Instant::now());
                sleep(pause.unwrap_or_default().min(left)).await;
                if pause.is_none_or(|pause| left <= pause) {
                    let (keys, source) = (wanted.keys.clone(), Some(Box::new(missed.clone())));
                    return Err(if refused { Error::TimedOut { keys, source } } else { missed });
                }
            }
            unreachable!("the range has no end")
        })
    }

    fn adopt(shared: Arc<Shared<Self>>, wanted: Arc<Wanted>) -> Asks<QuorumHold> {
        Box::pin(async move {
            attempt(&shared, &wanted, Instant::now() + LONGEST, true).await.map_err(|answers| {
                match shared.site.verdict(&answers) {
                    Some(false) => Error::NotHeld,
                    _ => shared.site.missed(&answers),
                }
            })
        })
    }

    /// Ends when the outcome is certain. A server that has lost the hold is asked to grant it anew, as long as a
    /// majority has it.
    async fn extend(hold: Arc<QuorumHoldView>, ttl: Duration, _: Instant) -> Result<(), Error> {
        let (site, sent) = (&hold.shared.site, Moment::now());
        let until = Instant::now() + hold.shared.node_timeout(ttl);
        let extends = hold.part.views().into_iter().map(|part| async move {
            let Some(part) = part else { return Answer::Gone };
            answer_of(&part.extend_until(ttl, until).await)
        });
        let mut question = Question::new(extends, until);
        question.until(|answers| site.verdict(answers).is_some()).await;
        if !site.result(&question.answers)? {
            hold.update(|lease, _| lease.lose(Reason::Gone));
            return Ok(());
        }
        hold.update(|lease, _| lease.extended(0, ttl, sent.after(site.validity(ttl))));
        let view = hold.clone();
        hold.shared.spawn(&Handle::current(), async move {
            question.until(|_| false).await;
            let _one_at_a_time = view.part.granting_anew.lock().await;
            let parts = view.part.views().into_iter().enumerate();
            join_all(parts.map(|(number, former)| grant_anew(&view, number, former, ttl))).await;
        });
        Ok(())
    }

    /// What servers do not answer in time goes on in the background.
    async fn release(hold: &QuorumHoldView, _: Instant) -> Result<bool, Error> {
        let site = &hold.shared.site;
        let releases = hold.part.end(false).into_iter().map(|part| async move {
            let Some(part) = part else { return Answer::Gone };
            let there = part.release().await;
            if let Ok(false) = there { Answer::Gone } else { answer_of(&there) }
        });
        let mut question =
            Question::new(releases, Instant::now() + hold.shared.node_timeout(hold.lease().ttl));
        question.until(|answers| site.verdict(answers).is_some()).await;
        site.result(&question.answers)
    }

    fn leave(hold: &QuorumHoldView) {
        hold.part.end(true);
    }

    /// On how many servers the token held a key. One that does not answer in time counts as one where it did
    /// not.
    async fn release_token(shared: &Shared<Self>, owner: Owner) -> Result<usize, Error> {
        let limit = shared.node_timeout(owner.wanted.options.ttl);
        let nodes = shared.site.nodes.iter();
        let releases =
            nodes.map(|node| timeout(limit, Operations::release_token(&node.shared, owner.clone())));
        let answers = join_all(releases).await;
        Ok(answers.iter().filter(|answer| matches!(answer, Ok(Ok(1..)))).count())
    }

    async fn close(&self) {
        join_all(self.nodes.iter().map(Locks::close)).await;
    }
}

/// Asks all servers for a hold, or adopts one, and gives what they answered when there is none. What is dropped here
/// is given up, unless it was to be adopted.
async fn attempt(
    shared: &Arc<Shared<Majority>>,
    wanted: &Arc<Wanted>,
    until: Instant,
    adopts: bool,
) -> Result<QuorumHold, Vec<Answer>> {
    let (site, ttl, sent) = (&shared.site, wanted.options.ttl, Moment::now());
    let owner = Owner::new(wanted.clone());
    let part = of_one_node(&owner, ttl);
    let parts = Parts::new(shared.clone(), part.clone(), adopts);
    let asks = (0..site.nodes.len()).map(|number| parts.clone().ask(number, part.clone(), adopts));
    let mut question = Question::new(asks, until.min(Instant::now() + shared.node_timeout(ttl)));
    let is_certain = |answers: &[Answer]| {
        let may_grant = count(answers, &[Answer::Granted, Answer::NoAnswer]);
        site.verdict(answers) == Some(true) || (site.fail_fast && may_grant < site.majority())
    };
    question.until(is_certain).await;
    if site.verdict(&question.answers) != Some(true) || sent.elapsed() >= site.validity(ttl) {
        return Err(question.answers);
    }
    // Servers that were slower than a majority may still grant.
    shared.spawn(&Handle::current(), async move { while question.asked.next().await.is_some() {} });
    Ok(parts.hold(owner, sent))
}

/// A server has lost the hold, and a majority has it.
async fn grant_anew(hold: &QuorumHoldView, number: usize, former: Option<Arc<HoldView>>, ttl: Duration) {
    // Another extension may have done it. What ends a hold in doubt would end the new one of the same token.
    let is_needed = former.is_none_or(|former| former.check().is_err() && !former.lease().in_doubt);
    if is_needed && hold.check().is_ok() {
        hold.part.clone().ask(number, of_one_node(&hold.owner, ttl), false).await;
    }
}

/// The holds of the servers.
pub struct Parts {
    shared: Arc<Shared<Majority>>,
    /// Of each server, whether what was asked there may still be carried out.
    doubts: Vec<Arc<AtomicBool>>,
    owner: Owner,
    runtime: Handle,
    state: Mutex<State>,
    /// Locked while servers that have lost the hold are asked to grant it anew.
    granting_anew: tokio::sync::Mutex<()>,
}

struct State {
    /// In the order of the servers; nothing where the lock was not granted.
    holds: Vec<Option<Hold>>,
    /// What comes later is not kept.
    ended: bool,
    /// In the end they are not released: another has the token.
    are_left: bool,
}

impl Parts {
    fn new(shared: Arc<Shared<Majority>>, owner: Owner, are_left: bool) -> Arc<Self> {
        let nodes = &shared.site.nodes;
        let holds = nodes.iter().map(|_| None).collect();
        Arc::new(Self {
            doubts: nodes.iter().map(|_| Arc::default()).collect(),
            shared,
            owner,
            runtime: Handle::current(),
            state: Mutex::new(State { holds, ended: false, are_left }),
            granting_anew: tokio::sync::Mutex::default(),
        })
    }

    /// Asks one server, or adopts what it has. What has no answer is not given up as long as the hold is wanted: that could
    /// end what the server grants the same token later.
    async fn ask(self: Arc<Self>, number: usize, owner: Owner, adopts: bool) -> Answer {
        let (site, wanted) = (&self.shared.site, owner.wanted.clone());
        let node = site.nodes[number].shared.clone();
        let asked = if adopts {
            Single::adopt(node, wanted).await.map(Some)
        } else {
            // So that what it answered last is known when the attempt ends.
            let retry_for = self.shared.node_timeout(wanted.options.ttl) * 3 / 4;
            let doubt = Some(self.doubts[number].clone());
            single::acquire(node, owner, Limits { once: true, deadline: None, retry_for, doubt }).await
        };
        let answer = if let Ok(None) = asked { Answer::Refused } else { answer_of(&asked) };
        match asked {
            Ok(Some(hold)) => self.put(number, hold),
            Ok(None) | Err(_) => self.give_up_unless_wanted(),
        }
        answer
    }

    /// A majority has granted it.
    fn hold(self: Arc<Self>, owner: Owner, sent: Moment) -> QuorumHold {
        self.lock().are_left = false;
        // There is no fence of the whole.
        HoldOf::new(self.shared.clone(), owner, self, Granted { fence: 0, sent, in_doubt: false })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while the holds are locked")
    }

    fn views(&self) -> Vec<Option<Arc<HoldView>>> {
        self.lock().holds.iter().map(|hold| hold.as_ref().map(Hold::view)).collect()
    }

    /// A server granted the lock.
    fn put(&self, number: usize, hold: Hold) {
        if self.doubts[number].swap(false, Ordering::Relaxed) {
            hold.view().lease().in_doubt = true;
        }
        let mut state = self.lock();
        if !state.ended {
            // To release the former one could end this one: both have one token.
            state.holds[number].replace(hold).into_iter().for_each(Hold::leave);
        } else if state.are_left {
            hold.leave();
        }
    }

    /// Nothing more is kept. Gives what is to be released.
    fn end(&self, are_left: bool) -> Vec<Option<Hold>> {
        let mut state = self.lock();
        state.ended = true;
        state.are_left |= are_left;
        let are_left = state.are_left;
        let mut holds: Vec<_> = state.holds.iter_mut().map(Option::take).collect();
        drop(state);
        if are_left {
            holds.iter_mut().filter_map(Option::take).for_each(Hold::leave);
        }
        self.give_up_unless_wanted();
        holds
    }

    /// Gives up what servers did not answer, once the hold is not wanted any more and was not left to another.
    fn give_up_unless_wanted(&self) {
        let state = self.lock();
        if !state.ended || state.are_left {
            return;
        }
        for (node, doubt) in std::iter::zip(&self.shared.site.nodes, &self.doubts) {
            if doubt.swap(false, Ordering::Relaxed) {
                node.shared.spawn(&self.runtime, node.shared.clone().give_up(self.owner.clone()));
            }
        }
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.end(false);
    }
}

impl QuorumHoldView {
    /// The fence of each server, in the order in which the servers were given; nothing where the lock was not
    /// granted. Fences of different servers cannot be compared.
    pub fn fences(&self) -> Vec<Option<i64>> {
        self.part.lock().holds.iter().map(|hold| hold.as_ref().map(|hold| hold.fence())).collect()
    }
}
