//! Every state of a small world: breadth first, of the core itself, with three owners and two names.
//!
//! A state is reached by playing its history on a fresh manager. In each new state is checked what `side_by_side.rs`
//! says, that copies made from effects alone are equal, and that everybody who waits is answered in time if nobody acts
//! any more. So the first history that breaks a promise is a shortest one, and is told step by step.
//!
//! Two states are the same if the same facts decide how they go on ([`describe`]): who holds and waits, in which order,
//! how long yet, what is still to be looked at. Owners and names that change places make no other state. A fingerprint
//! of 128 bits stands for the facts, so that millions of states fit in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hashbrown::HashSet;
use hashbrown::hash_map::{Entry, HashMap};

use super::deeds::{Deed, describe};
use super::history::{id_of, token_number};
use super::random::Random;
use super::side_by_side::SideBySide;
use super::small_worlds::{OWNERS, SmallWorld, Step, Turns, WORLDS};
use crate::lock::Lock;
use crate::mode::Mode;

/// More are not kept: about 50 bytes each.
const STATES_MAX: usize = 100_000_000;
/// So many states a thread takes at a time.
const AT_ONCE: usize = 64;

/// A state, by the one that it came from and the step that led to it.
#[derive(Clone, Copy)]
struct Node {
    from: u32,
    step: u16,
}

/// A history that breaks a promise.
struct Failure {
    node: usize,
    step: usize,
    what: String,
}

/// How far the search through one world has come.
struct Exploration {
    world: &'static SmallWorld,
    steps: Vec<Step>,
    nodes: Vec<Node>,
    /// Those that were reached last, and from which it goes on.
    front: Range<usize>,
    seen: Vec<Mutex<HashSet<u128>>>,
    depth: usize,
    /// How much of the front has been gone through.
    done: usize,
    transitions: AtomicU64,
    spent: Duration,
}

impl Exploration {
    fn new(world: &'static SmallWorld) -> Self {
        let new = Self {
            world,
            steps: world.steps(),
            nodes: vec![Node { from: 0, step: 0 }],
            front: 0..1,
            seen: (0..256).map(|_| Mutex::default()).collect(),
            depth: 0,
            done: 0,
            transitions: AtomicU64::new(0),
            spent: Duration::ZERO,
        };
        new.is_new(fingerprint(&mut SideBySide::new(), world.names));
        new
    }

    fn is_new(&self, fingerprint: u128) -> bool {
        self.seen[fingerprint as usize % self.seen.len()].lock().unwrap().insert(fingerprint)
    }

    fn states(&self) -> usize {
        self.seen.iter().map(|some| some.lock().unwrap().len()).sum()
    }

    fn way_to(&self, node: usize) -> Vec<usize> {
        let before = |node: &usize| Some(self.nodes[*node].from as usize);
        let nodes: Vec<_> = iter::successors(Some(node), before).take_while(|node| *node > 0).collect();
        nodes.iter().rev().map(|node| usize::from(self.nodes[*node].step)).collect()
    }

    /// What a step does in this state, with the end of its turn.
    fn deeds(&self, both: &SideBySide, step: usize) -> Option<Vec<Deed>> {
        let mut deeds = vec![self.steps[step].deed(both)?];
        if self.world.turns == Turns::Short {
            deeds.push(Deed::Serve { looks: usize::MAX });
        }
        Some(deeds)
    }

    fn play(&self, way: &[usize]) -> (SideBySide, Vec<Deed>) {
        let (mut both, mut past) = (SideBySide::new(), Vec::new());
        for step in way {
            let deeds = self.deeds(&both, *step).expect("it could happen before");
            deeds.iter().for_each(|deed| deed.happens(&mut both));
            past.extend(deeds);
        }
        (both, past)
    }

    /// The same state once more, whose past is known to be as it should.
    fn copy(&self, of: &SideBySide, past: &[Deed]) -> SideBySide {
        let mut copy = SideBySide::new();
        past.iter().for_each(|deed| deed.happens_again(&mut copy.world));
        copy.model = of.model.clone();
        (copy.connections, copy.channels) = (of.connections, of.channels);
        copy
    }

    /// Takes each step from this state. What is new is noted.
    fn expand(&self, node: usize, found: &mut Vec<Node>) -> Result<(), Failure> {
        let (mut origin, past) = self.play(&self.way_to(node));
        let unchanged = fingerprint(&mut origin, self.world.names);
        let mut spare = None;
        for step in 0..self.steps.len() {
            let Some(deeds) = self.deeds(&origin, step) else { continue };
            let mut both = spare.take().unwrap_or_else(|| self.copy(&origin, &past));
            let result = caught(|| {
                deeds.iter().for_each(|deed| deed.happens(&mut both));
                let fingerprint = fingerprint(&mut both, self.world.names);
                if self.is_new(fingerprint) {
                    check(&mut both, self.world.names);
                    found.push(Node { from: node as u32, step: step as u16 });
                }
                fingerprint
            });
            self.transitions.fetch_add(1, Ordering::Relaxed);
            match result {
                Err(what) => return Err(Failure { node, step, what }),
                // If nothing has happened, it serves for the next step; but not for ever: turns are counted.
                Ok(fingerprint) => {
                    let numbers = |of: &SideBySide| (of.connections, of.channels);
                    let is_same = fingerprint == unchanged && numbers(&both) == numbers(&origin);
                    spare = Some(both).filter(|_| is_same && step % 8 > 0);
                }
            }
        }
        Ok(())
    }

    /// What the state at the end of this way may become next.
    fn successors(&self, way: &[usize]) -> BTreeSet<u128> {
        let (origin, past) = self.play(way);
        let next = |step| {
            let mut both = self.copy(&origin, &past);
            self.deeds(&origin, step)?.iter().for_each(|deed| deed.happens(&mut both));
            Some(fingerprint(&mut both, self.world.names))
        };
        (0..self.steps.len()).filter_map(next).collect()
    }

    /// One level deeper, or as far as the time suffices. A shortest history that breaks a promise, if one does.
    fn go_deeper(&mut self, until: Instant) -> Option<Failure> {
        let (next, is_over, began) = (AtomicUsize::new(0), AtomicBool::new(false), Instant::now());
        let mut found = Vec::new();
        let mut failure: Option<Failure> = None;
        let explore = || {
            let (mut found, mut failure) = (Vec::new(), None);
            loop {
                let first = self.front.start + next.fetch_add(AT_ONCE, Ordering::Relaxed);
                if first >= self.front.end || is_over.load(Ordering::Relaxed) {
                    break;
                }
                for node in first..(first + AT_ONCE).min(self.front.end) {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    failure = self.expand(node, &mut found).err();
                    is_over.fetch_or(failure.is_some() || Instant::now() > until, Ordering::Relaxed);
                }
            }
            (found, failure)
        };
        thread::scope(|scope| {
            let threads = thread::available_parallelism().map_or(1, usize::from);
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(explore)).collect();
            for one in all {
                let (nodes, broken) = one.join().expect("it catches what fails");
                found.extend(nodes);
                let earlier = |old: &Failure, new: &Failure| (new.node, new.step) < (old.node, old.step);
                if let Some(new) = broken
                    && failure.as_ref().is_none_or(|old| earlier(old, &new))
                {
                    failure = Some(new);
                }
            }
        });
        self.spent += began.elapsed();
        if is_over.into_inner() {
            self.done = next.into_inner().min(self.front.len());
        } else {
            self.front = self.nodes.len()..self.nodes.len() + found.len();
            self.depth += 1;
            self.nodes.append(&mut found);
        }
        failure
    }

    /// Tells the history that leads to the failure.
    fn tell(&self, failure: &Failure) -> String {
        let mut way = self.way_to(failure.node);
        way.push(failure.step);
        let mut told = format!("{}: a shortest history that breaks a promise:\n", self.world.title);
        let (mut both, mut number) = (SideBySide::new(), 0);
        let again = caught(|| {
            for step in &way {
                for deed in self.deeds(&both, *step).expect("it could happen before") {
                    number += 1;
                    told += &format!("{number:4}. {:<60}", deed.to_string());
                    deed.happens(&mut both);
                    told += &format!("{}\n", state_of(&both, self.world.names));
                    both.compare();
                }
            }
            told += "      and nobody acts any more\n";
            check(&mut both, self.world.names);
        });
        let what = again.err().unwrap_or_else(|| format!("(only once) {}", failure.what));
        format!("{}\n{what}", told.trim_end())
    }
}

/// What must be true in every state. What is left of it is of no more use.
fn check(both: &mut SideBySide, names: usize) {
    both.compare();
    let now_ms = both.world.now().unix_ms();
    let mut fences = BTreeMap::new();
    for name in 0..names {
        let lock = both.world.lock(name);
        let live: Vec<_> =
            lock.into_iter().flat_map(Lock::holders).filter(|own| own.is_live(now_ms)).collect();
        let is_written = lock.is_some_and(|lock| lock.mode() == Mode::Write);
        assert!(!is_written || live.len() <= 1, "a writer among others: {live:?}");
        for own in live {
            let owner = fences.insert(own.fence, own.token());
            assert!(owner.is_none_or(|owner| owner == own.token()), "two owners of one fence: {own:?}");
        }
    }
    both.world.store.assert_rebuilt_by_records();
    both.run_out();
    both.world.store.assert_rebuilt_by_records();
}

/// Who holds and who waits.
fn state_of(both: &SideBySide, names: usize) -> String {
    let now_ms = both.world.now().unix_ms();
    let of_name = |name: usize| {
        let lock = both.world.lock(name);
        let live = lock.into_iter().flat_map(Lock::holders).filter(|own| own.is_live(now_ms));
        let held: Vec<_> = live.map(|own| String::from_utf8_lossy(own.token()).into_owned()).collect();
        let how = match lock.map(Lock::mode) {
            _ if held.is_empty() => "free",
            Some(Mode::Write) => " writes",
            _ => " reads",
        };
        let waiters = both.world.manager.waitlist().at(id_of(name));
        let tell = |token| format!(", {} waits", String::from_utf8_lossy(token));
        let waiting: String = waiters.map(|waiter| tell(&waiter.token)).collect();
        format!("{}: {}{how}{waiting}", ["a", "b"][name], held.join(" "))
    };
    (0..names).map(of_name).collect::<Vec<_>>().join("; ")
}

/// The least of the fingerprints that the state has when owners and names change places.
fn fingerprint(both: &mut SideBySide, names: usize) -> u128 {
    const NOBODY: usize = OWNERS;
    let mut facts: Vec<(u64, usize, usize)> = Vec::with_capacity(32);
    describe(both, names, &mut |kind, token, name, numbers| {
        let token = token.map_or(NOBODY, token_number);
        let name = name.map_or(2, |name| usize::from(name[0] - b'a'));
        let hash = numbers.iter().fold(u64::from(kind), |hash, number| mix(hash ^ mix(*number)));
        facts.push((hash, token, name));
    });
    const ORDERS: [[usize; OWNERS]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let of_order = |order: [usize; OWNERS], swap: usize| {
        facts.iter().fold(0_u128, |sum, (hash, token, name)| {
            let token = order.get(*token).map_or(*token, |token| *token) as u64;
            let name = (if *name < 2 { name ^ swap } else { *name }) as u64;
            let low = mix(hash ^ mix(token * 16 + name + 1));
            // A sum, so that the order of the facts does not matter.
            sum.wrapping_add(u128::from(low) << 64 | u128::from(mix(low ^ hash.rotate_left(32))))
        })
    };
    let all = ORDERS.into_iter().flat_map(|order| (0..names).map(move |swap| (order, swap)));
    all.map(|(order, swap)| of_order(order, swap)).min().expect("there are some")
}

fn mix(number: u64) -> u64 {
    Random::new(number ^ 0x9e37_79b9_7f4a_7c15).next()
}

/// How it failed, if it did.
fn caught<T>(act: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(act)).map_err(|payload| match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload.downcast::<&str>().map_or(String::new(), |text| (*text).to_owned()),
    })
}

/// All worlds, each level by level in turn, until `seconds` are over or each is as deep as it says.
fn explore(seconds: u64, is_short: bool) {
    let began = Instant::now();
    let budget = Duration::from_secs(seconds) / WORLDS.len() as u32;
    let mut all: Vec<Exploration> = WORLDS.iter().map(Exploration::new).collect();
    let (mut states, mut left) = (0, all.len());
    while left > 0 && states < STATES_MAX {
        left = 0;
        for one in &mut all {
            let is_done = one.done > 0 || one.front.is_empty() || one.spent >= budget;
            if is_done || (is_short && one.depth >= one.world.short_depth) {
                continue;
            }
            left += 1;
            if let Some(failure) = one.go_deeper(Instant::now() + budget - one.spent) {
                panic!("after {:.1} s: {}", began.elapsed().as_secs_f32(), one.tell(&failure));
            }
        }
        states = all.iter().map(Exploration::states).sum();
    }
    println!();
    for one in &all {
        let (transitions, seconds) = (one.transitions.load(Ordering::Relaxed), one.spent.as_secs_f32());
        let further = match one.done * 100 / one.front.len().max(1) {
            0 => String::new(),
            percent => format!(" and {percent} % of {}", one.depth + 1),
        };
        let (title, states, depth) = (one.world.title, one.states(), one.depth);
        println!(
            "{title:<44} {states:>10} states, {transitions:>11} transitions, depth {depth}{further}, {seconds:.0} s"
        );
    }
    println!("{states} states in {:.0} s; no promise was broken", began.elapsed().as_secs_f32());
}

#[test]
#[cfg_attr(miri, ignore = "so many histories take hours there")]
fn every_state_near_the_beginning() {
    explore(600, true);
}

/// `make explore`.
#[test]
#[ignore = "it takes as long as it is given"]
fn every_state_for_a_while() {
    let seconds = std::env::var("SLOCK_EXPLORE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    explore(seconds.unwrap_or(600), false);
}

/// Otherwise a fact is missing that decides how a state goes on, and states would be passed over.
#[test]
#[ignore = "it takes a minute"]
fn states_that_are_taken_for_one_go_on_alike() {
    for world in &WORLDS {
        let one = Exploration::new(world);
        let mut known: HashMap<u128, (Vec<usize>, BTreeSet<u128>)> = HashMap::new();
        let mut ways = vec![Vec::new()];
        for depth in 1..world.short_depth {
            for way in std::mem::take(&mut ways) {
                for step in 0..one.steps.len() {
                    let (mut both, _) = one.play(&way);
                    let Some(deeds) = one.deeds(&both, step) else { continue };
                    deeds.iter().for_each(|deed| deed.happens(&mut both));
                    let longer = [&way[..], &[step]].concat();
                    let next = one.successors(&longer);
                    match known.entry(fingerprint(&mut both, world.names)) {
                        Entry::Occupied(known) => {
                            let (other, expected) = known.get();
                            let told = |way: &[usize]| {
                                let all: Vec<String> =
                                    one.play(way).1.iter().map(ToString::to_string).collect();
                                all.join("; ")
                            };
                            assert_eq!(&next, expected, "{}\nand\n{}", told(other), told(&longer));
                        }
                        Entry::Vacant(new) => {
                            new.insert((longer.clone(), next));
                            ways.extend((depth < world.short_depth - 1).then_some(longer));
                        }
                    }
                }
            }
        }
    }
}
