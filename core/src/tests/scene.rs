//! A manager, its locks and two clocks, for scenarios that read like a story.
//!
//! Names and tokens are words. A request for several names has them in one string, `"a b"`. Holds
//! last for [`TTL_MS`] unless the story says otherwise; the clock starts at [`START_MS`]. Each step is a
//! turn of its own, at whose end the queues are served, but for those in [`Scene::in_one_turn`]. Most scenarios
//! begin with a story in words: [`Scene::after`].

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};

use super::memory_store::{MemoryStore, id};
use super::parts::{READ, TTL_MS, TestClients, UPGRADE, WRITE, channel, whole_turn};
use crate::error::LockError;
use crate::ids::{HoldRef, LockId, RequestId};
use crate::lock::Holder;
use crate::manager::{LockManager, Operation};
use crate::mode::{Mode, Want};
use crate::request::{
    AcquireOutcome, Answer, Claim, Extension, ReplyTo, Request, Terms, WaitPolicy, WaitResult,
};
use crate::timestamp::Timestamp;

pub(super) const START_MS: u64 = 1_000;
/// How far the monotonic clock is ahead of the other, so that none is taken for the other.
const MONOTONIC_AHEAD_MS: u64 = 10_000_000;
/// With as many waiting, not each step is followed by a look at all of them.
const CROWD: usize = 100;

fn words(names: &str) -> Vec<&[u8]> {
    names.split(' ').map(str::as_bytes).collect()
}

pub(super) struct Scene {
    pub(super) manager: LockManager,
    pub(super) store: MemoryStore,
    pub(super) now_ms: u64,
    /// How far the wall clock has been set forth or back.
    pub(super) wall_step_ms: i64,
    /// The connection that everybody's holds end with from here on, if any.
    pub(super) connection: Option<u64>,
    /// The metadata that everybody brings from here on, if any.
    pub(super) meta: Option<&'static str>,
    /// The channel on which everybody is answered from here on, if any.
    pub(super) channel: Option<u32>,
    /// The limit that everybody brings from here on, if any.
    pub(super) limit: Option<u32>,
    /// The user who asks from here on.
    pub(super) user: &'static str,
    /// The fence that everybody names from here on, if any.
    pub(super) fence: Option<u64>,
    pub(super) clients: TestClients,
    pub(super) is_in_turn: bool,
    who: BTreeMap<RequestId, String>,
}

impl Scene {
    pub(super) fn new() -> Self {
        Self {
            manager: LockManager::default(),
            store: MemoryStore::default(),
            now_ms: START_MS,
            wall_step_ms: 0,
            connection: None,
            meta: None,
            channel: None,
            limit: None,
            user: "default",
            fence: None,
            clients: TestClients::default(),
            is_in_turn: false,
            who: BTreeMap::new(),
        }
    }

    /// The state after this story, in which nobody who waits is answered: see [`Scene::plays`].
    pub(super) fn after(story: &str) -> Self {
        let mut scene = Self::new();
        assert_eq!(scene.plays(story), [""; 0], "{story}");
        scene
    }

    /// The news of these steps, between which stands a `;`. Each of the owners in front does it by itself:
    /// `A B read a`, `A writes a b for 100`, `C D wait to write a within 40`, `A upgrades a`, `A downgrades a`,
    /// `A releases a b`.
    pub(super) fn plays(&mut self, story: &str) -> Vec<String> {
        const VERBS: [&str; 6] = ["read", "write", "upgrade", "downgrade", "release", "wait"];
        for step in story.split(';') {
            let words: Vec<&str> = step.split_whitespace().collect();
            let verb_of = |word: &str| VERBS.iter().position(|verb| *verb == word.trim_end_matches('s'));
            let verb = words.iter().position(|word| verb_of(word).is_some()).expect(step);
            let terms = words.iter().position(|word| ["for", "within"].contains(word));
            let is_waiting = words[verb].starts_with("wait");
            let first_name = if is_waiting { verb + 3 } else { verb + 1 };
            let names = words[first_name..terms.unwrap_or(words.len())].join(" ");
            let term = |name: &str| {
                let at = words.iter().position(|word| *word == name)?;
                Some(words[at + 1].parse::<u64>().expect(step))
            };
            let ttl_ms = term("for").unwrap_or(TTL_MS);
            let wait = term("within").map_or(WaitPolicy::Forever, WaitPolicy::Timeout);
            for owner in &words[..verb] {
                match verb_of(words[first_name - 1]).map(|verb| VERBS[verb]) {
                    Some("release") => assert!(self.releases_all(&names, owner) > 0, "{step}"),
                    Some("downgrade") => _ = self.downgrades(&names, owner),
                    how => {
                        let want = match how {
                            Some("read") => READ,
                            Some("write") => WRITE,
                            _ => UPGRADE,
                        };
                        if is_waiting {
                            self.waits_with(&names, owner, want, ttl_ms, wait);
                        } else {
                            self.takes_for(&names, owner, want, ttl_ms);
                        }
                    }
                }
            }
        }
        self.news()
    }

    pub(super) fn wall_ms(&self) -> u64 {
        self.now_ms.checked_add_signed(self.wall_step_ms).unwrap()
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::new(self.wall_ms() * 1000, self.now_ms + MONOTONIC_AHEAD_MS)
    }

    /// All steps in one turn: the queues are served at its end.
    pub(super) fn in_one_turn<T>(&mut self, steps: impl FnOnce(&mut Self) -> T) -> T {
        self.is_in_turn = true;
        let result = steps(self);
        self.is_in_turn = false;
        self.serves();
        result
    }

    fn checks_tables(&self) {
        if self.manager.waitlist().len() < CROWD {
            self.manager.waitlist().check();
        }
    }

    fn ends_step(&mut self) {
        self.checks_tables();
        if !self.is_in_turn {
            self.serves();
        }
    }

    /// Serves, and looks around each owner, as long as that gives something to serve.
    pub(super) fn serves(&mut self) {
        loop {
            let (now, found) = (self.now(), self.manager.counters.deadlocks);
            self.manager.serve_queues(&mut self.store, &mut self.clients, &mut whole_turn(now));
            self.checks_tables();
            assert!(!self.manager.has_work());
            if self.manager.waitlist().len() < CROWD {
                self.looks_at_owners();
            }
            // A look finds one cycle around an owner.
            if !self.manager.has_work() && self.manager.counters.deadlocks == found {
                break;
            }
        }
    }

    pub(super) fn looks_at_owners(&mut self) {
        let (now, mut position) = (self.now(), None);
        while let Some(next) = self.manager.look_at_owner(&mut self.store, now, position) {
            position = Some(next);
        }
    }

    /// Serves until so many looks at the clock have been taken.
    pub(super) fn serves_a_slice(&mut self, looks: usize) {
        let (now, mut left) = (self.now(), looks + 1);
        self.manager.serve_queues(&mut self.store, &mut self.clients, &mut || {
            left -= 1;
            (left > 0).then_some(now)
        });
    }

    /// Looks at each name that is waited for, and serves.
    pub(super) fn looks_at_names(&mut self) {
        let (now, mut position) = (self.now(), None);
        while let Some(next) = self.manager.look_at_name(&mut self.store, now, position) {
            position = Some(next);
        }
        self.serves();
    }

    /// Sets the clock and serves.
    pub(super) fn serves_at(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.serves();
    }

    pub(super) fn asks(
        &mut self,
        names: &str,
        token: &str,
        want: Want,
        ttl_ms: u64,
        wait: WaitPolicy,
    ) -> Result<AcquireOutcome, LockError> {
        let (meta, limit) = (self.meta.map(str::as_bytes), self.limit.and_then(NonZeroU32::new));
        let (client, is_ephemeral) = (self.connection.unwrap_or(0), self.connection.is_some());
        let channel = self.channel.map(channel);
        let on_channel = |channel| ReplyTo::Channel { channel, tag: token.as_bytes() };
        let reply_to = channel.as_deref().map_or(ReplyTo::Client, on_channel);
        let (fence, user) = (self.fence.and_then(NonZeroU64::new), self.user.as_bytes());
        let user = || Some(user.into());
        let terms = Terms { want, fence, ttl_ms, limit, client, is_ephemeral, counts_keys: false };
        let claim = Claim { token: token.as_bytes(), meta, terms };
        let asked = Request { claim, wait, reply_to, user: &user };
        let now = self.now();
        let outcome = self.manager.acquire(Operation::new(&mut self.store, now, 0, &words(names)), &asked);
        if let Ok(AcquireOutcome::Waiting(request)) = outcome {
            self.who.insert(request, token.to_owned());
        }
        self.ends_step();
        outcome
    }

    /// Asks without waiting: the fence, or `None`.
    pub(super) fn tries(&mut self, names: &str, token: &str, want: Want) -> Option<u64> {
        match self.asks(names, token, want, TTL_MS, WaitPolicy::NoWait).unwrap() {
            AcquireOutcome::Granted(fence) => Some(fence),
            outcome => {
                assert_eq!(outcome, AcquireOutcome::Refused);
                None
            }
        }
    }

    /// Asks without waiting, and gets it.
    pub(super) fn takes(&mut self, names: &str, token: &str, want: Want) -> u64 {
        self.takes_for(names, token, want, TTL_MS)
    }

    /// Like [`Scene::takes`], for so many milliseconds.
    pub(super) fn takes_for(&mut self, names: &str, token: &str, want: Want, ttl_ms: u64) -> u64 {
        match self.asks(names, token, want, ttl_ms, WaitPolicy::NoWait) {
            Ok(AcquireOutcome::Granted(fence)) => fence,
            other => panic!("{token} asked for {names} and got {other:?}"),
        }
    }

    /// Asks to wait without limit, and has to.
    pub(super) fn waits(&mut self, names: &str, token: &str, want: Want) -> RequestId {
        self.waits_with(names, token, want, TTL_MS, WaitPolicy::Forever)
    }

    pub(super) fn waits_with(
        &mut self,
        names: &str,
        token: &str,
        want: Want,
        ttl_ms: u64,
        wait: WaitPolicy,
    ) -> RequestId {
        match self.asks(names, token, want, ttl_ms, wait) {
            Ok(AcquireOutcome::Waiting(request)) => request,
            other => panic!("{token} asked to wait for {names} and got {other:?}"),
        }
    }

    /// Asks to wait, and gets this error.
    pub(super) fn is_refused(&mut self, names: &str, token: &str, want: Want) -> LockError {
        self.asks(names, token, want, TTL_MS, WaitPolicy::Forever).expect_err("it is refused")
    }

    pub(super) fn releases(&mut self, name: &str, token: &str) {
        assert_eq!(self.releases_all(name, token), 1, "{token} releases {name}");
    }

    pub(super) fn releases_all(&mut self, names: &str, token: &str) -> usize {
        let (now, hold) = (self.now(), self.hold_ref(token));
        let count = self.manager.release(Operation::new(&mut self.store, now, 0, &words(names)), hold, None);
        self.ends_step();
        count.unwrap()
    }

    pub(super) fn extends(&mut self, name: &str, token: &str, ttl_ms: u64) -> bool {
        let (now, hold, to) = (self.now(), self.hold_ref(token), Extension::To(ttl_ms));
        let extended = self.manager.extend(Operation::new(&mut self.store, now, 0, &words(name)), hold, to);
        self.ends_step();
        extended.unwrap()
    }

    pub(super) fn downgrades(&mut self, name: &str, token: &str) -> u64 {
        let (now, hold) = (self.now(), self.hold_ref(token));
        let fence =
            self.manager.downgrade(Operation::new(&mut self.store, now, 0, &words(name)), hold, TTL_MS);
        self.ends_step();
        fence.unwrap()
    }

    /// The client of this request goes.
    pub(super) fn abandons(&mut self, request: RequestId) -> bool {
        let records = self.store.records.len();
        let did_wait = self.manager.abandon(request);
        assert_eq!(self.store.records.len(), records, "touches no lock");
        self.ends_step();
        did_wait
    }

    /// The token cancels what it waits for at this name. How many requests.
    pub(super) fn cancels(&mut self, name: &str, token: &str) -> usize {
        let count = self.manager.cancel(id(name).as_ref(), token.as_bytes());
        self.ends_step();
        count
    }

    /// The token ends all that it wants of these names, and is revoked for so long. On how many it has held.
    pub(super) fn ends(&mut self, names: &str, token: &str, ms: u64) -> usize {
        let (now, token) = (self.now(), token.as_bytes());
        let count = self.manager.end(Operation::new(&mut self.store, now, 0, &words(names)), token, ms);
        self.ends_step();
        count.unwrap()
    }

    fn hold_ref<'t>(&self, token: &'t str) -> HoldRef<'t> {
        HoldRef { token: token.as_bytes(), fence: self.fence }
    }

    pub(super) fn closes(&mut self, connection: u64) {
        self.manager.connection_closed(connection);
        self.ends_step();
    }

    /// Something out of our hands happens to the key, and the manager hears of it.
    pub(super) fn happens(&mut self, name: &str, what: impl FnOnce(&mut MemoryStore, &LockId)) {
        let id = id(name);
        what(&mut self.store, &id);
        self.manager.key_changed(id.as_ref());
        self.ends_step();
    }

    /// No new hold is given for so many milliseconds.
    pub(super) fn starts_grace(&mut self, ms: u64) {
        let until_ms = self.now().monotonic_ms() + ms;
        self.manager.set_grace(Some(until_ms));
        self.ends_step();
    }

    /// Every answer since the last call, in order, as "token granted", "token timed out" or "token" and
    /// the error.
    pub(super) fn news(&mut self) -> Vec<String> {
        self.results().into_iter().map(|(news, _)| news).collect()
    }

    /// The fences of the grants since the last call, in order.
    pub(super) fn fences(&mut self) -> Vec<u64> {
        self.results().into_iter().filter_map(|(_, fence)| fence).collect()
    }

    fn results(&mut self) -> Vec<(String, Option<u64>)> {
        let results = self.manager.take_answers(usize::MAX).into_iter();
        let named = results.map(|Answer { request, result, .. }| {
            let who = self.who.remove(&request).expect("one result each");
            match result {
                WaitResult::Granted(fence) => (format!("{who} granted"), Some(fence)),
                WaitResult::TimedOut => (format!("{who} timed out"), None),
                WaitResult::Failed(error) => (format!("{who} {error:?}"), None),
            }
        });
        named.collect()
    }

    /// The hold that the token has now, if any.
    pub(super) fn hold(&self, name: &str, token: &str) -> Option<&Holder> {
        self.store.lock(&id(name))?.holder(token.as_bytes(), self.wall_ms())
    }

    /// Who holds the lock now and how, oldest first: "A reads", "A writes".
    pub(super) fn held(&self, name: &str) -> Vec<String> {
        let Some(lock) = self.store.lock(&id(name)) else { return Vec::new() };
        let how = if lock.mode() == Mode::Write { "writes" } else { "reads" };
        let live = lock.holders().filter(|holder| holder.is_live(self.wall_ms()));
        live.map(|holder| format!("{} {how}", String::from_utf8_lossy(holder.token()))).collect()
    }

    /// Who waits for this name, the next one first.
    pub(super) fn queue(&self, name: &str) -> Vec<String> {
        let waiters = self.manager.waitlist().at(id(name).as_ref());
        waiters.map(|waiter| String::from_utf8_lossy(&waiter.token).into_owned()).collect()
    }

    /// When the queues have to be served next.
    pub(super) fn due_in(&self) -> Option<u64> {
        let now = self.now();
        self.manager.next_due_ms(now).map(|due_ms| due_ms - now.monotonic_ms())
    }
}
