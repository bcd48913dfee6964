//! Random histories: a desk with its locks and a clock, and what can happen to it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::random::Random;
use super::space::Primary;
use crate::desk::{Ask, Desk, Outcome, Patience, Refusal};
use crate::fence::Moment;
use crate::lock::{Holder, Lock, Mode, Want};
use crate::queue::{Place, PlaceRef, Ticket};

/// Whether a history is told while it is played.
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

/// Names and tokens are numbers here. The last token never asks: locks come from elsewhere with it.
pub(super) const TOKENS: [&str; 9] = ["A", "B", "C", "D", "E", "F", "G", "H", "stranger"];
pub(super) const STRANGER: usize = TOKENS.len() - 1;
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

pub(super) fn token_number(token: &[u8]) -> usize {
    TOKENS.iter().position(|known| known.as_bytes() == token).expect("a known token")
}

pub(super) fn place_of(name: usize) -> PlaceRef<'static> {
    PlaceRef { db: 0, name: NAMES[name].as_bytes() }
}

pub(super) fn name_number(place: &Place) -> usize {
    NAMES.iter().position(|known| known.as_bytes() == &*place.name).expect("a known name")
}

/// The first word of an error reply.
pub(super) fn code(refusal: &Refusal) -> String {
    refusal.to_string().split(' ').next().unwrap_or_default().to_owned()
}

/// A request, as a history has it.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) names: Vec<usize>,
    pub(super) token: usize,
    pub(super) want: Want,
    pub(super) ttl_ms: u64,
    pub(super) meta: Option<Vec<u8>>,
    pub(super) patience: Patience,
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    Ask(Asked),
    Release { name: usize, token: usize, mode: Option<Mode> },
    ReleaseAll { names: Vec<usize>, token: usize },
    Extend { names: Vec<usize>, token: usize, ttl_ms: u64 },
    Downgrade { name: usize, token: usize, ttl_ms: u64 },
    Leave(Ticket),
    Told(Ticket),
    Delete(usize),
    Retype(usize),
    Replace(usize, Mode, u64),
    MoveAway(usize),
    ComeBack(usize),
}

/// What a command answers at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Granted(u64),
    Refused,
    Parked(Ticket),
    Count(usize),
    Error(String),
    Nothing,
}

pub(super) struct World {
    pub(super) desk: Desk,
    pub(super) space: Primary,
    pub(super) now: Moment,
    pub(super) names: usize,
    foreign_fence: u64,
}

impl World {
    pub(super) fn new(names: usize) -> Self {
        let now = Moment::from_unix_ms(BASE_MS);
        Self { desk: Desk::default(), space: Primary::default(), now, names, foreign_fence: 0 }
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.now.ms()
    }

    pub(super) fn pass(&mut self, duration_us: u64) {
        self.now = Moment::from_unix_us(self.now.us() + duration_us);
    }

    pub(super) fn lock(&self, name: usize) -> Option<&Lock> {
        self.space.lock(&place_of(name).into())
    }

    pub(super) fn ask(&mut self, asked: &Asked) -> Result<Outcome, Refusal> {
        let names: Vec<&[u8]> = asked.names.iter().map(|name| place_of(*name).name).collect();
        let ask = Ask {
            db: 0,
            names: &names,
            token: TOKENS[asked.token].as_bytes(),
            want: asked.want,
            ttl_ms: asked.ttl_ms,
            meta: asked.meta.as_deref(),
            patience: asked.patience,
            connection: None,
        };
        self.desk.acquire(&mut self.space, self.now, &ask)
    }

    pub(super) fn drive(&mut self) {
        self.desk.drive(&mut self.space, self.now);
        self.desk.waitlist().check();
        assert!(!self.desk.has_work());
    }

    /// Makes it happen. What was done to a key behind the desk's back is marked, not driven.
    pub(super) fn does(&mut self, op: &Op) -> Reply {
        let reply = self.does_unchecked(op);
        self.desk.waitlist().check();
        reply
    }

    /// The same without a check of the tables, whose cost grows with the crowd.
    pub(super) fn does_unchecked(&mut self, op: &Op) -> Reply {
        let (now, desk, space) = (self.now, &mut self.desk, &mut self.space);
        let bytes = |token: &usize| TOKENS[*token].as_bytes();
        let result = match op {
            Op::Ask(asked) => self.ask(asked).map(|outcome| match outcome {
                Outcome::Granted(fence) => Reply::Granted(fence),
                Outcome::Refused => Reply::Refused,
                Outcome::Parked(ticket) => Reply::Parked(ticket),
            }),
            Op::Release { name, token, mode } => desk
                .release(space, now, place_of(*name), bytes(token), *mode)
                .map(|done| Reply::Count(usize::from(done))),
            Op::ReleaseAll { names, token } => {
                let names: Vec<&[u8]> = names.iter().map(|name| place_of(*name).name).collect();
                desk.release_all(space, now, 0, &names, bytes(token)).map(Reply::Count)
            }
            Op::Extend { names, token, ttl_ms } => {
                let names: Vec<&[u8]> = names.iter().map(|name| place_of(*name).name).collect();
                desk.extend(space, now, 0, &names, bytes(token), *ttl_ms)
                    .map(|done| Reply::Count(usize::from(done)))
            }
            Op::Downgrade { name, token, ttl_ms } => {
                desk.downgrade(space, now, place_of(*name), bytes(token), *ttl_ms).map(Reply::Granted)
            }
            Op::Leave(ticket) => {
                desk.leave(*ticket);
                Ok(Reply::Nothing)
            }
            Op::Told(ticket) => {
                desk.told(*ticket);
                Ok(Reply::Nothing)
            }
            Op::Delete(name)
            | Op::Retype(name)
            | Op::Replace(name, ..)
            | Op::MoveAway(name)
            | Op::ComeBack(name) => {
                let place = Place::from(place_of(*name));
                match op {
                    Op::Delete(_) => space.delete(&place),
                    Op::Retype(_) => space.replace_by_other_type(&place),
                    Op::MoveAway(_) => space.set_elsewhere(&place, true),
                    Op::Replace(_, mode, ttl_ms) => {
                        self.foreign_fence += 1;
                        let (fence, now_ms) = (self.foreign_fence, now.ms());
                        let deadline_ms = now_ms + ttl_ms;
                        let (token, meta) = (bytes(&STRANGER).into(), b"away"[..].into());
                        let holder = Holder { token, fence, since_ms: now_ms, deadline_ms, meta };
                        space.replace(&place, Lock::from_parts(*mode, vec![holder]).expect("one holder"));
                    }
                    _ => space.set_elsewhere(&place, false),
                }
                desk.mark(place.as_ref());
                Ok(Reply::Nothing)
            }
        };
        result.unwrap_or_else(|refusal| Reply::Error(code(&refusal)))
    }
}

/// What owners mostly do in a history.
pub(super) struct Habits {
    pub(super) names: usize,
    pub(super) tokens: usize,
    pub(super) longest_ttl_ms: u64,
    pub(super) percent_readers: u64,
    pub(super) percent_many: u64,
    pub(super) percent_waiting: u64,
    pub(super) percent_strange: u64,
}

impl Habits {
    pub(super) fn draw(random: &mut Random) -> Self {
        Self {
            names: 1 + random.below(4),
            tokens: 3 + random.below(6),
            longest_ttl_ms: random.pick(&[5, 30, 30, 200]),
            percent_readers: random.pick(&[20, 50, 50, 80]),
            percent_many: random.pick(&[0, 20, 40]),
            percent_waiting: random.pick(&[60, 80, 95]),
            percent_strange: random.pick(&[0, 0, 3, 8]),
        }
    }

    pub(super) fn names(&self, random: &mut Random) -> Vec<usize> {
        let many = self.names > 1 && random.chance(self.percent_many);
        random.some_of(self.names, if many { 4 } else { 1 })
    }

    pub(super) fn asked(&self, random: &mut Random) -> Asked {
        let upgrades = random.chance(12);
        let names = if upgrades { vec![random.below(self.names)] } else { self.names(random) };
        let mode = if random.chance(self.percent_readers) { Mode::Read } else { Mode::Write };
        let patience = if !random.chance(self.percent_waiting) {
            Patience::None
        } else if random.chance(40) {
            Patience::Ms(random.within(1, 2 * self.longest_ttl_ms))
        } else {
            Patience::Endless
        };
        Asked {
            names,
            token: random.below(self.tokens),
            want: if upgrades { Want::Upgrade } else { Want::Hold(mode) },
            ttl_ms: self.ttl_ms(random),
            meta: (!upgrades && random.chance(20)).then(|| vec![b'm'; random.below(3)]),
            patience,
        }
    }

    /// Often one of two, so that two requests of a token ask for the same.
    fn ttl_ms(&self, random: &mut Random) -> u64 {
        match random.below(3) {
            0 => self.longest_ttl_ms,
            1 => self.longest_ttl_ms.div_ceil(3),
            _ => random.within(1, self.longest_ttl_ms),
        }
    }

    /// The next thing to happen, given whose requests wait and whose grants are yet to be told.
    pub(super) fn op(&self, random: &mut Random, waiting: &[Ticket], untold: &[Ticket]) -> Op {
        let name = random.below(self.names);
        if random.chance(self.percent_strange) {
            let mode = if random.chance(50) { Mode::Read } else { Mode::Write };
            return match random.below(7) {
                0 | 1 => Op::Delete(name),
                2 => Op::Retype(name),
                3 => Op::MoveAway(name),
                4 => Op::ComeBack(name),
                _ => Op::Replace(name, mode, random.within(1, self.longest_ttl_ms)),
            };
        }
        let (token, ttl_ms) = (random.below(self.tokens), random.within(1, self.longest_ttl_ms));
        match random.below(20) {
            0..=2 => {
                Op::Release { name, token, mode: random.pick(&[None, Some(Mode::Read), Some(Mode::Write)]) }
            }
            3 | 4 => Op::ReleaseAll { names: self.names(random), token },
            5 => Op::Extend { names: self.names(random), token, ttl_ms },
            6 => Op::Downgrade { name, token, ttl_ms },
            7 | 8 if !waiting.is_empty() => Op::Leave(random.pick(waiting)),
            9 if !untold.is_empty() => Op::Leave(random.pick(untold)),
            10..=12 if !untold.is_empty() => Op::Told(random.pick(untold)),
            _ => Op::Ask(self.asked(random)),
        }
    }
}
