//! What can happen to a manager with its locks and two clocks.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroU64};
use std::slice;

use super::memory_store::MemoryStore;
use super::parts::{TestClients, channel};
use crate::error::LockError;
use crate::ids::{ConnectionId, HoldRef, LockId, LockIdRef, RequestId};
use crate::lock::{Holder, Lock};
use crate::manager::{LockManager, Operation};
use crate::mode::{Mode, Want};
use crate::request::{AcquireOutcome, Claim, Extension, ReplyTo, Request, Terms, WaitPolicy};
use crate::timestamp::Timestamp;

pub(super) const BASE_MS: u64 = 1_700_000_000_000;
const BASE_MONOTONIC_MS: u64 = 5_000;

/// Names and tokens are numbers here. The last token never asks: locks come from elsewhere with it.
pub(super) const TOKENS: [&str; 9] = ["A", "B", "C", "D", "E", "F", "G", "H", "stranger"];
const STRANGER: usize = TOKENS.len() - 1;
pub(super) const WORDS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
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
    /// The channel that gets the reply, if the client itself gets none.
    pub(super) channel: Option<u32>,
    pub(super) tag: Vec<u8>,
    /// The fencing token of the lease that an upgrade changes.
    pub(super) fence: Option<u64>,
    /// Who asks.
    pub(super) user: usize,
}

/// The users of a history.
pub(super) const USERS: [&str; 3] = ["ann", "bob", "eve"];

#[derive(Clone, Debug)]
pub(super) enum Op {
    Ask(Asked),
    Release {
        names: Vec<usize>,
        token: usize,
        mode: Option<Mode>,
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
    /// The user of this token loses the permission to go on.
    Deny(usize),
    /// It has it back.
    Allow(usize),
    /// Nobody listens to this channel any more; whether the manager is told.
    Deafen(u32, bool),
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

impl Op {
    /// The names and the token of a command.
    pub(super) fn about(&self) -> Option<(&[usize], usize)> {
        match self {
            Self::Ask(Asked { names, token, .. })
            | Self::Release { names, token, .. }
            | Self::Extend { names, token, .. }
            | Self::End { names, token, .. } => Some((names, *token)),
            Self::Downgrade { name, token, .. } | Self::Cancel { name, token } => {
                Some((slice::from_ref(name), *token))
            }
            _ => None,
        }
    }
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
        let Some((names, token)) = op.about() else {
            self.happens(op);
            return Reply::Nothing;
        };
        let operations = self.store.operations;
        let (now, manager) = (self.now(), &mut self.manager);
        let (db, words, token) = (id_of(names[0]).db, words_of(names), TOKENS[token].as_bytes());
        let open = Operation::new(&mut self.store, now, db, &words);
        let hold = |fence: &Option<u64>| HoldRef { token, fence: *fence };
        let result = match op {
            Op::Ask(asked) => {
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
                let claim = Claim { token, meta: asked.meta.as_deref(), terms };
                let on_channel = |channel| ReplyTo::Channel { channel, tag: &asked.tag };
                let reply_to = channel.as_deref().map_or(ReplyTo::Client, on_channel);
                let asked = Request { claim, wait: asked.wait, reply_to, user: &user };
                manager.acquire(open, &asked).map(|outcome| match outcome {
                    AcquireOutcome::Granted(fence) => Reply::Granted(fence),
                    AcquireOutcome::Refused => Reply::Refused,
                    AcquireOutcome::Waiting(request) => Reply::Waiting(request),
                })
            }
            Op::Release { mode, fence, .. } => manager.release(open, hold(fence), *mode).map(Reply::Count),
            Op::Extend { extension, fence, .. } => {
                manager.extend(open, hold(fence), *extension).map(|done| Reply::Count(usize::from(done)))
            }
            Op::Downgrade { ttl_ms, fence, .. } => {
                manager.downgrade(open, hold(fence), *ttl_ms).map(Reply::Granted)
            }
            Op::Cancel { name, .. } => Ok(Reply::Count(manager.cancel(id_of(*name), token))),
            Op::End { ms, .. } => manager.end(open, token, *ms).map(Reply::Count),
            _ => unreachable!("{op:?} is no command"),
        };
        let opens = usize::from(!matches!(op, Op::Cancel { .. }));
        assert_eq!(self.store.operations - operations, opens, "each name is looked at once: {op:?}");
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
                drop(manager.databases_swapped());
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
