//! Random histories: a manager with its locks and two clocks, and what can happen to it.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroU64};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::memory_store::MemoryStore;
use super::random::Random;
use super::scene::{TestClients, channel, one, several};
use crate::error::LockError;
use crate::ids::{ConnectionId, HoldRef, LockId, LockIdRef, RequestId};
use crate::limits::NUMBER_MAX;
use crate::lock::{Holder, Lock};
use crate::manager::LockManager;
use crate::mode::{Mode, Want};
use crate::request::{AcquireOutcome, Claim, Extension, ReplyTo, Request, Terms, WaitPolicy};
use crate::time::Timestamp;

/// Whether a history is printed while it is played.
#[derive(Clone, Copy)]
pub(super) enum Telling {
    Silent,
    Aloud,
}

impl Telling {
    pub(super) fn tell(self, what: impl FnOnce() -> String) {
        if matches!(self, Self::Aloud) {
            eprintln!("{}", what());
        }
    }
}

/// Plays a history for each seed. One that fails is played again, aloud.
pub(super) fn with_seeds(seeds: std::ops::Range<u64>, mut play: impl FnMut(u64, Telling)) {
    for seed in seeds {
        let result = catch_unwind(AssertUnwindSafe(|| play(seed, Telling::Silent)));
        if result.is_err() {
            eprintln!("the history with seed {seed}:");
            play(seed, Telling::Aloud);
            panic!("the history with seed {seed} went well the second time");
        }
    }
}

pub(super) const BASE_MS: u64 = 1_700_000_000_000;
const BASE_MONOTONIC_MS: u64 = 5_000;

/// Names and tokens are numbers here. The last token never asks: locks come from elsewhere with it.
pub(super) const TOKENS: [&str; 9] = ["A", "B", "C", "D", "E", "F", "G", "H", "stranger"];
const STRANGER: usize = TOKENS.len() - 1;
const WORDS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Each word in database 0, then each in database 1.
pub(super) const NAMES: usize = 2 * WORDS.len();

pub(super) fn token_number(token: &[u8]) -> usize {
    TOKENS.iter().position(|known| known.as_bytes() == token).expect("a known token")
}

pub(super) fn id_of(name: usize) -> LockIdRef<'static> {
    LockIdRef { db: (name / WORDS.len()) as i32, name: WORDS[name % WORDS.len()].as_bytes() }
}

/// The same word in the other database.
pub(super) fn twin_of(name: usize) -> usize {
    (name + WORDS.len()) % NAMES
}

fn words_of(names: &[usize]) -> Vec<&'static [u8]> {
    names.iter().map(|name| id_of(*name).name).collect()
}

/// A request, as a history has it.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// All in one database.
    pub(super) names: Vec<usize>,
    pub(super) token: usize,
    pub(super) want: Want,
    pub(super) ttl_ms: u64,
    pub(super) meta: Option<Vec<u8>>,
    pub(super) wait: WaitPolicy,
    pub(super) limit: Option<NonZeroU32>,
    pub(super) connection: Option<ConnectionId>,
    /// On which it is answered, if its client is not.
    pub(super) channel: Option<u32>,
    pub(super) tag: Vec<u8>,
    /// Of an upgrade, the hold that is meant.
    pub(super) fence: Option<u64>,
    /// Who asks.
    pub(super) user: usize,
}

/// The users of a history.
pub(super) const USERS: [&str; 3] = ["ann", "bob", "eve"];

/// A hold somewhere, as far as an owner knows it: its name, token and fence.
pub(super) type KnownHold = (usize, usize, u64);

#[derive(Clone, Debug)]
pub(super) enum Op {
    Ask(Asked),
    Release {
        name: usize,
        token: usize,
        mode: Option<Mode>,
        fence: Option<u64>,
    },
    ReleaseAll {
        names: Vec<usize>,
        token: usize,
        fence: Option<u64>,
    },
    Extend {
        names: Vec<usize>,
        token: usize,
        extension: Extension,
        fence: Option<u64>,
    },
    Downgrade {
        name: usize,
        token: usize,
        ttl_ms: u64,
        fence: Option<u64>,
    },
    Abandon(RequestId),
    TimeOut(RequestId),
    Cancel {
        name: usize,
        token: usize,
    },
    /// `MUNLOCK … REFUSE`.
    End {
        names: Vec<usize>,
        token: usize,
        ms: u64,
    },
    /// The user of this token loses the permission to go on, or has it back.
    Deny(usize),
    /// Nobody listens to this channel any more; whether the manager is told.
    Deafen(u32, bool),
    Allow(usize),
    /// The connection closes; its requests, given here, are cancelled.
    Close(ConnectionId, Vec<RequestId>),
    Delete(usize),
    Retype(usize),
    Replace(usize, Mode, u64),
    MoveAway(usize),
    ComeBack(usize),
    SwapDatabases,
    /// The wall clock is set.
    StepWallClock(i64),
    StartGrace(u64),
    EndWaits,
    Probe,
}

/// What a command answers at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Granted(u64),
    Refused,
    Waiting(RequestId),
    Count(usize),
    Error(LockError),
    Nothing,
}

pub(super) struct World {
    pub(super) manager: LockManager,
    pub(super) store: MemoryStore,
    pub(super) clients: TestClients,
    unix_us: u64,
    monotonic_us: u64,
    foreign_fence: u64,
    /// Names that somebody waits for and under which something has come since they were checked, without any report.
    pub(super) untold: BTreeSet<usize>,
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            manager: LockManager::default(),
            store: MemoryStore::default(),
            clients: TestClients::default(),
            unix_us: BASE_MS * 1000,
            monotonic_us: BASE_MONOTONIC_MS * 1000,
            foreign_fence: 0,
            untold: BTreeSet::new(),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::new(self.unix_us, self.monotonic_us / 1000)
    }

    pub(super) fn pass(&mut self, duration_us: u64) {
        self.unix_us += duration_us;
        self.monotonic_us += duration_us;
    }

    /// To this moment of the monotonic clock, or so many microseconds later.
    pub(super) fn pass_to(&mut self, monotonic_ms: u64, and_us: u64) {
        self.pass((monotonic_ms * 1000 + and_us).saturating_sub(self.monotonic_us));
    }

    pub(super) fn lock(&self, name: usize) -> Option<&Lock> {
        self.store.lock(&id_of(name))
    }

    /// Serves the queues, for so many looks at the clock at most. Whether nothing was left to do.
    pub(super) fn serve(&mut self, looks: usize) -> bool {
        let (now, taken, is_over) = (self.now(), Cell::new(0), Cell::new(false));
        let operations = self.store.operations;
        let mut turn = || {
            taken.set(taken.get() + 1);
            is_over.set(taken.get() > looks);
            assert!(taken.get() < 100_000, "it goes on for ever");
            (!is_over.get()).then_some(now)
        };
        self.manager.serve_queues(&mut self.store, &mut self.clients, &mut turn);
        assert!(self.store.operations - operations <= 3 * taken.get(), "several steps for one look");
        assert!(is_over.get() || !self.manager.has_work());
        if is_over.get() {
            return false;
        }
        let (mut position, found) = (None, self.manager.counters.deadlocks);
        while let Some(next) = self.manager.look_at_owner(&mut self.store, now, position) {
            position = Some(next);
        }
        // A look finds one cycle around an owner.
        let is_over = !self.manager.has_work() && self.manager.counters.deadlocks == found;
        is_over || self.serve(looks)
    }

    /// Makes it happen. What was done to a key without the manager is marked, not served.
    pub(super) fn does(&mut self, op: &Op) -> Reply {
        let operations = self.store.operations;
        let (now, manager, store) = (self.now(), &mut self.manager, &mut self.store);
        let bytes = |token: &usize| TOKENS[*token].as_bytes();
        let hold = |token: &usize, fence: &Option<u64>| HoldRef { token: bytes(token), fence: *fence };
        let db_of = |names: &[usize]| id_of(names[0]).db;
        let mut opens = 1;
        let result = match op {
            Op::Ask(asked) => {
                let (db, names) = (db_of(&asked.names), words_of(&asked.names));
                let channel = asked.channel.map(channel);
                let user = USERS[asked.user].as_bytes();
                let user = || Some(user.into());
                let terms = Terms {
                    want: asked.want,
                    fence: asked.fence.and_then(NonZeroU64::new),
                    ttl_ms: asked.ttl_ms,
                    limit: asked.limit,
                    client: asked.connection.unwrap_or(0),
                    is_ephemeral: asked.connection.is_some(),
                    counts_keys: false,
                };
                let claim = Claim { token: bytes(&asked.token), meta: asked.meta.as_deref(), terms };
                let on_channel = |channel| ReplyTo::Channel { channel, tag: &asked.tag };
                let reply_to = channel.as_deref().map_or(ReplyTo::Client, on_channel);
                let asked = Request { claim, wait: asked.wait, reply_to, user: &user };
                manager.acquire(several(store, now, db, &names), &asked).map(|outcome| match outcome {
                    AcquireOutcome::Granted(fence) => Reply::Granted(fence),
                    AcquireOutcome::Refused => Reply::Refused,
                    AcquireOutcome::Waiting(request) => Reply::Waiting(request),
                })
            }
            Op::Release { name, token, mode, fence } => {
                let released = manager.release(one(store, now, &id_of(*name)), hold(token, fence), *mode);
                released.map(Reply::Count)
            }
            Op::ReleaseAll { names, token, fence } => manager
                .release(several(store, now, db_of(names), &words_of(names)), hold(token, fence), None)
                .map(Reply::Count),
            Op::Extend { names, token, extension, fence } => manager
                .extend(several(store, now, db_of(names), &words_of(names)), hold(token, fence), *extension)
                .map(|done| Reply::Count(usize::from(done))),
            Op::Downgrade { name, token, ttl_ms, fence } => {
                let hold = hold(token, fence);
                manager.downgrade(one(store, now, &id_of(*name)), hold, *ttl_ms).map(Reply::Granted)
            }
            Op::Cancel { name, token } => {
                opens = 0;
                Ok(Reply::Count(manager.cancel(id_of(*name), bytes(token))))
            }
            Op::End { names, token, ms } => manager
                .end(several(store, now, db_of(names), &words_of(names)), bytes(token), *ms)
                .map(Reply::Count),
            _ => {
                opens = 0;
                self.happens(op);
                Ok(Reply::Nothing)
            }
        };
        if !matches!(op, Op::Probe) {
            assert_eq!(self.store.operations - operations, opens, "each name is looked at once: {op:?}");
        }
        result.unwrap_or_else(Reply::Error)
    }

    fn happens(&mut self, op: &Op) {
        let (now, manager, store) = (self.now(), &mut self.manager, &mut self.store);
        match op {
            Op::Abandon(request) => assert!(manager.abandon(*request)),
            Op::TimeOut(request) => assert!(manager.time_out(*request)),
            Op::Close(connection, requests) => {
                manager.connection_closed(*connection);
                requests.iter().for_each(|request| assert!(manager.abandon(*request)));
            }
            Op::Deafen(number, is_told) => {
                self.clients.deaf.insert(channel(*number));
                if *is_told {
                    manager.channel_closed(&channel(*number));
                }
            }
            Op::Deny(token) => drop(self.clients.denied.insert(TOKENS[*token].into())),
            Op::Allow(token) => drop(self.clients.denied.remove(TOKENS[*token].as_bytes())),
            Op::SwapDatabases => {
                store.swap(&WORDS);
                manager.databases_swapped(0, 1);
            }
            Op::StepWallClock(step_us) => self.unix_us = self.unix_us.checked_add_signed(*step_us).unwrap(),
            Op::StartGrace(ms) => manager.set_grace(Some(now.monotonic_ms() + ms)),
            Op::EndWaits => manager.end_waits(&mut || Some(now)),
            Op::Probe => {
                let mut position = None;
                while let Some(next) = manager.look_at_name(store, now, position) {
                    position = Some(next);
                }
                self.untold.clear();
            }
            Op::Delete(name)
            | Op::Retype(name)
            | Op::Replace(name, ..)
            | Op::MoveAway(name)
            | Op::ComeBack(name) => {
                let id = LockId::from(id_of(*name));
                // What comes under a free name is reported only if it comes by `RESTORE` or `COPY`.
                let is_told = store.lock(&id).is_some() || matches!(op, Op::MoveAway(_) | Op::ComeBack(_));
                match op {
                    Op::Delete(_) => store.delete(&id),
                    Op::Retype(_) => store.replace_by_other_type(&id),
                    Op::Replace(_, mode, ttl_ms) => {
                        self.foreign_fence += 1;
                        let (fence, since_ms) = (self.foreign_fence, now.unix_ms());
                        let deadline_ms = since_ms + ttl_ms;
                        let token = TOKENS[STRANGER].as_bytes();
                        let holder = Holder::new(token, b"away", fence, since_ms, deadline_ms);
                        store.replace(&id, Lock::from_parts(*mode, vec![holder]).expect("one holder"));
                    }
                    _ => store.set_served(&id, matches!(op, Op::ComeBack(_))),
                }
                if is_told {
                    manager.key_changed(id.as_ref());
                } else if manager.waitlist().len_at(id.as_ref()) > 0 {
                    self.untold.insert(*name);
                }
            }
            _ => unreachable!("{op:?} is a command"),
        }
    }
}

/// What owners mostly do in a history.
pub(super) struct Habits {
    /// In each database.
    pub(super) names: usize,
    pub(super) databases: usize,
    pub(super) tokens: usize,
    pub(super) longest_ttl_ms: u64,
    pub(super) percent_readers: u64,
    pub(super) percent_many: u64,
    pub(super) percent_waiting: u64,
    pub(super) percent_ephemeral: u64,
    /// Of the readers.
    pub(super) percent_limited: u64,
    pub(super) percent_channels: u64,
    /// What happens to keys and clocks; with none of it no connection closes either.
    pub(super) percent_strange: u64,
}

impl Habits {
    pub(super) fn draw(random: &mut Random) -> Self {
        Self {
            names: random.pick(&[1, 2, 3, 4, 6]),
            databases: random.pick(&[1, 1, 2]),
            tokens: 3 + random.below(6),
            longest_ttl_ms: random.pick(&[5, 30, 10_000, 10_000]),
            percent_readers: random.pick(&[20, 50, 50, 80]),
            percent_many: random.pick(&[0, 20, 40]),
            percent_waiting: random.pick(&[60, 80, 95]),
            percent_ephemeral: random.pick(&[0, 30, 80]),
            percent_limited: random.pick(&[0, 0, 30, 90]),
            percent_channels: random.pick(&[0, 50, 100]),
            percent_strange: random.pick(&[0, 3, 8, 20]),
        }
    }

    fn name(&self, random: &mut Random) -> usize {
        random.below(self.databases) * WORDS.len() + random.below(self.names)
    }

    fn names(&self, random: &mut Random) -> Vec<usize> {
        let is_many = self.names > 1 && random.chance(self.percent_many);
        let first = random.below(self.databases) * WORDS.len();
        let words = random.some_of(self.names, if is_many { 4 } else { 1 });
        words.into_iter().map(|word| first + word).collect()
    }

    fn asked(
        &self,
        random: &mut Random,
        connections: &[ConnectionId],
        channels: &[u32],
        holds: &[KnownHold],
    ) -> Asked {
        let upgrades = random.chance(12);
        let names = if upgrades { vec![self.name(random)] } else { self.names(random) };
        let mode = if random.chance(self.percent_readers) { Mode::Read } else { Mode::Write };
        let wait = if !random.chance(self.percent_waiting) {
            WaitPolicy::NoWait
        } else if random.chance(40) {
            WaitPolicy::Timeout(random.within(1, 2 * self.longest_ttl_ms))
        } else {
            WaitPolicy::Forever
        };
        let wait = if !upgrades && random.chance(5) { WaitPolicy::OnlyRefresh } else { wait };
        let only_refreshes = wait == WaitPolicy::OnlyRefresh;
        let is_ephemeral = !upgrades && !only_refreshes && random.chance(self.percent_ephemeral);
        let token = random.below(self.tokens);
        let fence = fence(random, holds, names[0], token).filter(|_| upgrades);
        Asked {
            names,
            token,
            want: if upgrades { Want::Upgrade } else { Want::Hold(mode) },
            ttl_ms: self.ttl_ms(random),
            meta: (!upgrades && random.chance(20)).then(|| vec![b'm'; random.below(3)]),
            wait,
            limit: (!upgrades && mode == Mode::Read && random.chance(self.percent_limited))
                .then(|| random.pick(&[1, 1, 2, 3]))
                .and_then(NonZeroU32::new),
            connection: is_ephemeral.then(|| random.pick(connections)),
            channel: (!only_refreshes && random.chance(self.percent_channels)).then(|| random.pick(channels)),
            tag: vec![b't', random.below(256) as u8],
            fence,
            user: if random.chance(80) { 0 } else { random.below(USERS.len()) },
        }
    }

    /// Often one of two, so that two requests of a token ask for the same; rarely more than there is.
    fn ttl_ms(&self, random: &mut Random) -> u64 {
        match random.below(60) {
            0 if self.percent_strange > 0 => NUMBER_MAX,
            0..=20 => self.longest_ttl_ms,
            21..=40 => self.longest_ttl_ms.div_ceil(3),
            _ => random.within(1, self.longest_ttl_ms),
        }
    }

    /// The next thing to happen, given the requests that wait (with their connections), the connections that are
    /// open, and the holds.
    pub(super) fn op(
        &self,
        random: &mut Random,
        waiting: &[(RequestId, Option<ConnectionId>)],
        connections: &[ConnectionId],
        channels: &[u32],
        holds: &[KnownHold],
    ) -> Op {
        let name = self.name(random);
        if random.chance(self.percent_strange) {
            let mode = if random.chance(50) { Mode::Read } else { Mode::Write };
            return match random.below(17) {
                0 | 1 => Op::Delete(name),
                2 => Op::Retype(name),
                3 => Op::MoveAway(name),
                4 | 5 => Op::ComeBack(name),
                6 => Op::Replace(name, mode, random.within(1, self.longest_ttl_ms)),
                7 if self.databases > 1 => Op::SwapDatabases,
                8 => Op::StepWallClock(random.within(0, 2_000 * self.longest_ttl_ms) as i64),
                9 => Op::StepWallClock(-(random.within(0, 1_000 * self.longest_ttl_ms) as i64)),
                10 if random.chance(20) => Op::StartGrace(random.within(1, 60)),
                11 => Op::EndWaits,
                12 => Op::Deny(random.below(self.tokens)),
                13 => Op::Allow(random.below(self.tokens)),
                14 | 15 => Op::Deafen(random.pick(channels), random.chance(50)),
                _ => Op::Probe,
            };
        }
        if self.percent_strange > 0 && random.chance(self.percent_ephemeral / 6) {
            let gone = random.pick(connections);
            let theirs = waiting.iter().filter(|(_, connection)| *connection == Some(gone));
            return Op::Close(gone, theirs.map(|(request, _)| *request).collect());
        }
        let (token, ttl_ms) = (random.below(self.tokens), self.ttl_ms(random));
        match random.below(20) {
            0..=2 => {
                let mode = random.pick(&[None, Some(Mode::Read), Some(Mode::Write)]);
                Op::Release { name, token, mode, fence: fence(random, holds, name, token) }
            }
            3 | 4 => {
                let names = self.names(random);
                let fence = fence(random, holds, names[0], token);
                Op::ReleaseAll { names, token, fence }
            }
            5 => {
                let names = self.names(random);
                let fence = fence(random, holds, names[0], token);
                let extension = random.pick(&[Extension::To(ttl_ms), Extension::AtLeastTo(ttl_ms)]);
                Op::Extend { names, token, extension, fence }
            }
            6 => Op::Downgrade { name, token, ttl_ms, fence: fence(random, holds, name, token) },
            7 if random.chance(15) => Op::Cancel { name, token },
            7 if random.chance(15) => {
                Op::End { names: self.names(random), token, ms: random.within(1, self.longest_ttl_ms) }
            }
            7 if !waiting.is_empty() => Op::Abandon(random.pick(waiting).0),
            8 if !waiting.is_empty() => Op::TimeOut(random.pick(waiting).0),
            _ => Op::Ask(self.asked(random, connections, channels, holds)),
        }
    }
}

/// What an owner may name: nothing, its own fence, somebody's, or nobody's.
fn fence(random: &mut Random, holds: &[KnownHold], name: usize, token: usize) -> Option<u64> {
    match random.below(10) {
        0..=4 => None,
        5..=7 => holds.iter().find(|hold| (hold.0, hold.1) == (name, token)).map(|hold| hold.2),
        8 if !holds.is_empty() => Some(random.pick(holds).2),
        _ => Some(1),
    }
}
