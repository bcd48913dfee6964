//! The whole core over random histories, side by side with [`NaiveServer`].
//!
//! Owners ask, release, wait, cancel; connections close; keys go, change, move away and change databases;
//! the wall clock steps forth and back. Any number of steps fall into one turn, and a turn may be interrupted
//! after any number of looks at the clock. What has to hold after every step, `side_by_side.rs` says.
//!
//! [`NaiveServer`]: super::naive_server::NaiveServer

use std::num::NonZeroU32;
use std::thread;

use super::history::{Asked, BASE_MS, Op, USERS, WORDS, World};
use super::naive_server::Hold;
use super::random::{Random, rounds};
use super::side_by_side::{SideBySide, Tally};
use crate::limits::NUMBER_MAX;
use crate::manager::Bounds;
use crate::mode::{Mode, Want};
use crate::request::{Extension, WaitPolicy};

/// What owners mostly do in a history.
struct Habits {
    /// In each database.
    names: usize,
    databases: usize,
    tokens: usize,
    longest_ttl_ms: u64,
    percent_readers: u64,
    percent_many: u64,
    percent_waiting: u64,
    percent_ephemeral: u64,
    /// Of the readers.
    percent_limited: u64,
    percent_channels: u64,
    /// What happens to keys and clocks; with none of it no connection closes either.
    percent_strange: u64,
}

impl Habits {
    fn draw(random: &mut Random) -> Self {
        Self {
            names: random.pick(&[1, 2, 3, 4, 6]),
            databases: random.pick(&[1, 1, 2]),
            tokens: 3 + random.below(6),
            longest_ttl_ms: random.pick(&[5, 30, 10_000, 10_000]),
            percent_readers: random.pick(&[20, 50, 50, 80]),
            percent_many: random.pick(&[0, 20, 40]),
            percent_waiting: random.pick(&[0, 60, 80, 95]),
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

    /// Often one of two, so that two requests of a token ask for the same; rarely more than there is.
    fn ttl_ms(&self, random: &mut Random) -> u64 {
        match random.below(60) {
            0 if self.percent_strange > 0 => NUMBER_MAX,
            0..=20 => self.longest_ttl_ms,
            21..=40 => self.longest_ttl_ms.div_ceil(3),
            _ => random.within(1, self.longest_ttl_ms),
        }
    }

    fn asked(&self, random: &mut Random, both: &SideBySide) -> Asked {
        let upgrades = random.chance(12);
        let names = if upgrades { vec![self.name(random)] } else { self.names(random) };
        let mode = if random.chance(self.percent_readers) { Mode::Read } else { Mode::Write };
        let wait = if !upgrades && random.chance(5) {
            WaitPolicy::OnlyRefresh
        } else if !random.chance(self.percent_waiting) {
            WaitPolicy::NoWait
        } else if random.chance(40) {
            WaitPolicy::Timeout(random.within(1, 2 * self.longest_ttl_ms))
        } else {
            WaitPolicy::Forever
        };
        let only_refreshes = wait == WaitPolicy::OnlyRefresh;
        let is_ephemeral = !upgrades && !only_refreshes && random.chance(self.percent_ephemeral);
        let is_limited = !upgrades && mode == Mode::Read && random.chance(self.percent_limited);
        let on_channel = !only_refreshes && random.chance(self.percent_channels);
        let token = random.below(self.tokens);
        Asked {
            fence: fence(random, both, names[0], token).filter(|_| upgrades),
            names,
            token,
            want: if upgrades { Want::Upgrade } else { Want::Hold(mode) },
            ttl_ms: self.ttl_ms(random),
            meta: (!upgrades && random.chance(20)).then(|| vec![b'm'; random.below(3)]),
            wait,
            limit: NonZeroU32::new(random.pick(&[1, 1, 2, 3])).filter(|_| is_limited),
            connection: is_ephemeral.then(|| random.pick(&both.connections)),
            channel: on_channel.then(|| random.pick(&both.channels)),
            tag: vec![b't', random.below(256) as u8],
            user: if random.chance(80) { 0 } else { random.below(USERS.len()) },
        }
    }

    fn strange(&self, random: &mut Random, both: &SideBySide) -> Op {
        let name = self.name(random);
        let mode = if random.chance(50) { Mode::Read } else { Mode::Write };
        match random.below(17) {
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
            14 | 15 => Op::Deafen(random.pick(&both.channels), random.chance(50)),
            _ => Op::Probe,
        }
    }

    /// The next thing to happen.
    fn op(&self, random: &mut Random, both: &SideBySide) -> Op {
        if random.chance(self.percent_strange) {
            return self.strange(random, both);
        }
        if self.percent_strange > 0 && random.chance(self.percent_ephemeral / 6) {
            let gone = random.pick(&both.connections);
            return Op::Close(gone, both.waiting_by(gone));
        }
        let (name, names, waiting) = (self.name(random), self.names(random), &both.model.waiting);
        let (token, ttl_ms) = (random.below(self.tokens), self.ttl_ms(random));
        let (own, own_of_many) = (fence(random, both, name, token), fence(random, both, names[0], token));
        match random.below(20) {
            0..=2 => {
                let mode = random.pick(&[None, Some(Mode::Read), Some(Mode::Write)]);
                Op::Release { names: vec![name], token, mode, fence: own }
            }
            3 | 4 => Op::Release { names, token, mode: None, fence: own_of_many },
            5 => {
                let extension = random.pick(&[Extension::To(ttl_ms), Extension::AtLeastTo(ttl_ms)]);
                Op::Extend { names, token, extension, fence: own_of_many }
            }
            6 => Op::Downgrade { name, token, ttl_ms, fence: own },
            7 if random.chance(15) => Op::Cancel { name, token },
            7 if random.chance(15) => Op::End { names, token, ms: random.within(1, self.longest_ttl_ms) },
            7 if !waiting.is_empty() => Op::Abandon(waiting[random.below(waiting.len())].id),
            8 if !waiting.is_empty() => Op::TimeOut(waiting[random.below(waiting.len())].id),
            _ => Op::Ask(self.asked(random, both)),
        }
    }
}

/// What an owner may name: nothing, its own fence, somebody's, or nobody's.
fn fence(random: &mut Random, both: &SideBySide, name: usize, token: usize) -> Option<u64> {
    let holds = || both.model.names.iter().flat_map(|name| &name.holds);
    match random.below(10) {
        0..=4 => None,
        5..=7 => both.model.names[name].holds.iter().find(|hold| hold.token == token).map(|hold| hold.fence),
        8 if holds().count() > 0 => holds().nth(random.below(holds().count())).map(|hold| hold.fence),
        _ => Some(1),
    }
}

fn pass_some_time(world: &mut World, random: &mut Random) {
    match random.below(10) {
        0..=4 => {}
        5 | 6 => world.pass(random.within(1, 4_000)),
        7 | 8 => {
            // To the next moment at which something is due, or beside it.
            if let Some(due_ms) = world.manager.next_due_ms(world.now()) {
                world.pass_to(due_ms - 1 + random.within(0, 2), random.within(0, 999));
            }
        }
        _ => world.pass(random.within(1, 60_000)),
    }
}

/// Whether the step can be compared: that a hold comes back whose time was up and whose connection is
/// being ended is not promised, nor is what becomes of it.
fn can_step(both: &SideBySide, op: &Op) -> bool {
    let now_ms = both.world.now().unix_ms();
    let is_past = |hold: &Hold| hold.connection.is_some() && hold.deadline_ms <= now_ms;
    match op {
        Op::StepWallClock(us) if *us < 0 => {
            both.world.now().unix_us() as i64 + us > BASE_MS as i64 * 1000
                && !both.model.names.iter().flat_map(|name| &name.holds).any(is_past)
        }
        _ => true,
    }
}

/// What has happened, which is told if it ends badly.
struct Told(Vec<String>);

impl Drop for Told {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.0.join("\n"));
        }
    }
}

fn play(seed: u64, tally: &mut Tally, all_wait: bool) {
    let mut random = Random::new(seed);
    let mut habits = Habits::draw(&mut random);
    if all_wait {
        let names = 2 + random.below(5);
        habits = Habits { names, databases: 1, percent_waiting: 100, percent_strange: 0, ..habits };
    }
    let mut both = SideBySide::new();
    both.tally = std::mem::take(tally);
    both.model.bounds = Bounds {
        places: random.pick(&[8, usize::MAX, usize::MAX]),
        places_of_user: random.pick(&[6, usize::MAX, usize::MAX]),
        places_of_token: random.pick(&[2, 4, usize::MAX]),
    };
    both.world.manager.bounds = both.model.bounds;
    // Whether turns are short, long, or interrupted.
    let percent_serving = if all_wait { 100 } else { random.pick(&[15, 40, 100]) };
    let percent_interrupted = if all_wait { 0 } else { random.pick(&[0, 30, 70]) };
    let mut told = Told(vec![format!("the history with seed {seed}:")]);
    for _ in 0..60 {
        pass_some_time(&mut both.world, &mut random);
        let op = habits.op(&mut random, &both);
        if can_step(&both, &op) {
            let now = both.world.now();
            told.0.push(format!("{} ms, wall {}: {op:?}", now.monotonic_ms(), now.unix_ms() - BASE_MS));
            both.step(&op);
        }
        if random.chance(percent_serving) {
            let looks = if random.chance(percent_interrupted) { random.below(6) } else { usize::MAX };
            told.0.push(format!("    serve {looks}"));
            both.serve(looks);
        }
    }
    both.serve(usize::MAX);
    // Everybody who still waits leaves, or is waited for.
    both.world.store.assert_rebuilt_by_records();
    for id in both.model.waiting.iter().map(|request| request.id).collect::<Vec<_>>() {
        if random.chance(50) {
            both.step(&Op::Abandon(id));
        }
    }
    both.run_out();
    *tally = both.tally;
}

#[test]
fn random_histories_equal_the_naive_server() {
    let mut tally = Tally::default();
    (0..rounds(3_000) as u64).for_each(|seed| play(seed, &mut tally, false));
    let Tally { grants, ended, interrupted, waits, deadlocks, late_deadlocks, denied, gone, .. } = tally;
    let has_seen_everything = grants > 5_000 && ended > 1_000 && interrupted > 5_000 && waits > 10_000;
    let and_rare_things = deadlocks > 300 && late_deadlocks > 5 && denied > 50 && gone > 50;
    assert!(cfg!(miri) || (has_seen_everything && and_rare_things), "{tally:?}");
}

#[test]
fn no_cycle_stands_where_all_wait() {
    let mut tally = Tally::default();
    (0..rounds(2_500) as u64).for_each(|seed| play(seed, &mut tally, true));
    let Tally { waits, deadlocks, late_deadlocks, longest_cycle, .. } = tally;
    let has_seen_everything = waits > 5_000 && deadlocks > 300 && late_deadlocks > 15 && longest_cycle >= 3;
    assert!(cfg!(miri) || has_seen_everything, "{tally:?}");
}
