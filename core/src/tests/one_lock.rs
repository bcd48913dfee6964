//! One lock without a queue equals a plain list of holders and a clock.
//!
//! The model below was written from the contract, not from the core: no index, no effects, no order
//! of slots. Every history is random from a numbered seed; a failure prints the seed and the step.

use std::num::{NonZeroU32, NonZeroU64};

use super::memory_store::{MemoryStore, id};
use super::random::{Random, rounds};
use super::scene::{changed, one, request, several};
use crate::error::LockError;
use crate::format::{decode, encode};
use crate::ids::HoldRef;
use crate::lock::{Admission, Holder, Lock};
use crate::manager::LockManager;
use crate::mode::{Mode, Want};
use crate::request::{AcquireOutcome, Extension, Request, WaitPolicy};
use crate::time::Timestamp;

const BASE_US: u64 = 1_700_000_000_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Hold {
    token: Vec<u8>,
    mode: Mode,
    fence: u64,
    since_ms: u64,
    deadline_ms: u64,
    meta: Vec<u8>,
}

/// Who was given the lock and has not been seen to leave. Those whose time is up are forgotten when
/// the lock next changes.
#[derive(Debug, Default)]
struct Naive {
    holds: Vec<Hold>,
    last_fence: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Fence(u64),
    Refused,
    Done(bool),
    WrongMode,
    NotHeld,
}

#[derive(Clone, Debug)]
enum Step {
    Acquire(Acquire),
    Release { token: Vec<u8>, mode: Option<Mode>, fence: Option<u64> },
    Extend { token: Vec<u8>, ttl_ms: u64, may_shorten: bool, fence: Option<u64> },
    Downgrade { token: Vec<u8>, ttl_ms: u64, fence: Option<u64> },
}

#[derive(Clone, Debug)]
struct Acquire {
    token: Vec<u8>,
    want: Want,
    ttl_ms: u64,
    meta: Option<Vec<u8>>,
    limit: Option<NonZeroU32>,
    only_refreshes: bool,
    fence: Option<u64>,
}

impl Naive {
    fn step(&mut self, now: Timestamp, step: &Step) -> Reply {
        let now_ms = now.unix_ms();
        let live = |hold: &&Hold| hold.deadline_ms > now_ms;
        let (token, ttl_ms, fence) = match step {
            Step::Acquire(Acquire { token, ttl_ms, fence, .. })
            | Step::Extend { token, ttl_ms, fence, .. }
            | Step::Downgrade { token, ttl_ms, fence } => (token, *ttl_ms, *fence),
            Step::Release { token, fence, .. } => (token, 0, *fence),
        };
        let is_meant = |own: &Hold| fence.is_none_or(|fence| fence == own.fence);
        let own = self.holds.iter().filter(live).find(|hold| hold.token == *token).cloned();
        let mut others = self.holds.iter().filter(live).filter(|hold| hold.token != *token);
        match step {
            Step::Acquire(Acquire { want, meta, limit, only_refreshes, .. }) => {
                let mode = match want {
                    Want::Hold(mode) => *mode,
                    Want::Upgrade => Mode::Write,
                };
                match own {
                    Some(own) if own.mode == mode => match meta.clone() {
                        None => self.prolong(now_ms, own, ttl_ms),
                        Some(meta) => {
                            let deadline_ms = own.deadline_ms.max(now_ms + ttl_ms);
                            self.put(now_ms, Hold { deadline_ms, meta, ..own })
                        }
                    },
                    _ if *only_refreshes => Reply::Refused,
                    Some(own) if *want == Want::Upgrade && !is_meant(&own) => Reply::NotHeld,
                    Some(_) if *want != Want::Upgrade => Reply::WrongMode,
                    None if *want == Want::Upgrade => Reply::NotHeld,
                    own => {
                        let is_full =
                            limit.is_some_and(|limit| others.clone().count() >= limit.get() as usize);
                        if is_full || others.any(|other| mode == Mode::Write || other.mode == Mode::Write) {
                            return Reply::Refused;
                        }
                        let (kept, before_ms) =
                            own.map_or_else(Default::default, |own| (own.meta, own.deadline_ms));
                        let deadline_ms = before_ms.max(now_ms + ttl_ms);
                        self.give(now, token, mode, deadline_ms, meta.clone().unwrap_or(kept))
                    }
                }
            }
            Step::Downgrade { .. } => match own {
                None => Reply::NotHeld,
                Some(own) if own.mode == Mode::Read => self.prolong(now_ms, own, ttl_ms),
                Some(own) if !is_meant(&own) => Reply::NotHeld,
                Some(own) => {
                    let deadline_ms = own.deadline_ms.max(now_ms + ttl_ms);
                    self.give(now, token, Mode::Read, deadline_ms, own.meta)
                }
            },
            Step::Extend { may_shorten, .. } => Reply::Done(own.filter(is_meant).is_some_and(|own| {
                if *may_shorten {
                    self.put(now_ms, Hold { deadline_ms: now_ms + ttl_ms, ..own });
                } else {
                    self.prolong(now_ms, own, ttl_ms);
                }
                true
            })),
            Step::Release { mode, .. } => {
                let own = own.filter(is_meant);
                let released = own.is_some_and(|own| mode.is_none_or(|mode| mode == own.mode));
                if released {
                    self.holds.retain(|hold| hold.deadline_ms > now_ms && hold.token != *token);
                }
                Reply::Done(released)
            }
        }
    }

    fn give(&mut self, now: Timestamp, token: &[u8], mode: Mode, deadline_ms: u64, meta: Vec<u8>) -> Reply {
        self.last_fence = now.unix_us().max(self.last_fence + 1);
        let since_ms = now.unix_ms();
        let hold = Hold { token: token.to_vec(), mode, fence: self.last_fence, since_ms, deadline_ms, meta };
        self.put(now.unix_ms(), hold)
    }

    /// The hold ends later, or nothing happens at all.
    fn prolong(&mut self, now_ms: u64, own: Hold, ttl_ms: u64) -> Reply {
        if own.deadline_ms >= now_ms + ttl_ms {
            return Reply::Fence(own.fence);
        }
        self.put(now_ms, Hold { deadline_ms: now_ms + ttl_ms, ..own })
    }

    fn put(&mut self, now_ms: u64, hold: Hold) -> Reply {
        self.holds.retain(|other| other.deadline_ms > now_ms && other.token != hold.token);
        let fence = hold.fence;
        self.holds.push(hold);
        Reply::Fence(fence)
    }

    /// Oldest first.
    fn sorted(&self) -> Vec<Hold> {
        let mut all = self.holds.clone();
        all.sort_by_key(|hold| hold.fence);
        all
    }
}

fn step_core(manager: &mut LockManager, store: &mut MemoryStore, now: Timestamp, step: &Step) -> Reply {
    let key = id("key");
    let names = [&*key.name];
    let result = match step {
        Step::Acquire(Acquire { token, want, ttl_ms, meta, limit, only_refreshes, fence }) => {
            let (ttl_ms, meta, limit, fence) = (*ttl_ms, meta.as_deref(), *limit, *fence);
            let wait = if *only_refreshes { WaitPolicy::OnlyRefresh } else { WaitPolicy::NoWait };
            let asked = changed(Request { wait, ..request(token, *want) }, |claim| {
                (claim.meta, claim.terms.ttl_ms, claim.terms.limit) = (meta, ttl_ms, limit);
                claim.terms.fence = fence.and_then(NonZeroU64::new);
            });
            manager.acquire(several(store, now, 0, &names), &asked).map(|outcome| match outcome {
                AcquireOutcome::Granted(fence) => Reply::Fence(fence),
                AcquireOutcome::Refused => Reply::Refused,
                AcquireOutcome::Waiting(_) => panic!("waits though it would not"),
            })
        }
        Step::Release { token, mode, fence } => {
            let hold = HoldRef { token, fence: *fence };
            manager
                .release(one(store, now, &key.as_ref()), hold, *mode)
                .map(|released| Reply::Done(released == 1))
        }
        Step::Extend { token, ttl_ms, may_shorten, fence } => {
            let hold = HoldRef { token, fence: *fence };
            let to = if *may_shorten { Extension::To(*ttl_ms) } else { Extension::AtLeastTo(*ttl_ms) };
            manager.extend(several(store, now, 0, &names), hold, to).map(Reply::Done)
        }
        Step::Downgrade { token, ttl_ms, fence } => {
            let hold = HoldRef { token, fence: *fence };
            manager.downgrade(one(store, now, &key.as_ref()), hold, *ttl_ms).map(Reply::Fence)
        }
    };
    match result {
        Ok(reply) => reply,
        Err(LockError::WrongMode(_)) => Reply::WrongMode,
        Err(LockError::NotHeld) => Reply::NotHeld,
        Err(other) => panic!("{other:?}"),
    }
}

/// What kind of history: how many owners, how long they stay, and what they mostly do.
struct Habits {
    owners: usize,
    longest_ttl_ms: u64,
    percent_readers: u64,
    percent_leaving: u64,
    percent_at_deadline: u64,
    steps: usize,
}

impl Habits {
    fn draw(random: &mut Random) -> Self {
        match random.below(10) {
            // A crowd of readers that grows past the size from which holders are indexed, and back.
            0 | 1 => Self {
                owners: 24 + random.below(40),
                longest_ttl_ms: random.pick(&[100, 1_000, 10_000]),
                percent_readers: 99,
                percent_leaving: random.pick(&[2, 10, 25]),
                percent_at_deadline: 4,
                steps: 130,
            },
            // Long holds of a few owners: refusals, upgrades, refreshes.
            2..=5 => Self {
                owners: 2 + random.below(4),
                longest_ttl_ms: 100,
                percent_readers: 60,
                percent_leaving: 30,
                percent_at_deadline: 20,
                steps: 50,
            },
            // Short holds: deadlines pass at every other step.
            _ => Self {
                owners: 2 + random.below(6),
                longest_ttl_ms: 6,
                percent_readers: 50,
                percent_leaving: 20,
                percent_at_deadline: 25,
                steps: 60,
            },
        }
    }

    fn step(&self, random: &mut Random, model: &Naive) -> Step {
        let mut token = format!("owner-{}", random.below(self.owners)).into_bytes();
        token.push(0xff);
        let ttl_ms = random.within(1, self.longest_ttl_ms);
        // The token's own, or somebody's, or nobody's.
        let own = model.holds.iter().find(|hold| hold.token == token).map(|hold| hold.fence);
        let others = model.holds.get(random.below(self.owners)).map(|hold| hold.fence);
        let fence = random.pick(&[None, None, own, others, Some(1)]);
        if random.chance(self.percent_leaving) {
            let mode = random.pick(&[None, Some(Mode::Read), Some(Mode::Write)]);
            return Step::Release { token, mode, fence };
        }
        match random.below(10) {
            0 => Step::Extend { token, ttl_ms, may_shorten: random.chance(50), fence },
            1 => Step::Downgrade { token, ttl_ms, fence },
            2 => Step::Acquire(Acquire {
                token,
                want: Want::Upgrade,
                ttl_ms,
                meta: None,
                limit: None,
                only_refreshes: false,
                fence,
            }),
            _ => {
                let reads = random.chance(self.percent_readers);
                let want = Want::Hold(if reads { Mode::Read } else { Mode::Write });
                let meta = random.chance(25).then(|| vec![random.next() as u8; random.below(4)]);
                let limit = 1 + random.below(self.owners) as u32;
                let limit = NonZeroU32::new(limit).filter(|_| reads && random.chance(30));
                let only_refreshes = random.chance(10);
                Step::Acquire(Acquire { token, want, ttl_ms, meta, limit, only_refreshes, fence: None })
            }
        }
    }
}

/// Mostly a little later; sometimes exactly at, or next to, somebody's deadline; rarely back.
fn advance(random: &mut Random, habits: &Habits, now_us: u64, model: &Naive) -> u64 {
    if random.chance(habits.percent_at_deadline) && !model.holds.is_empty() {
        let deadline_ms = model.holds[random.below(model.holds.len())].deadline_ms;
        let near_ms = deadline_ms - 1 + random.within(0, 2);
        return now_us.max(near_ms * 1000 + random.within(0, 999));
    }
    match random.below(20) {
        0..=8 => now_us,
        18 => now_us.saturating_sub(random.within(1, 5_000)).max(BASE_US),
        19 => now_us + random.within(1, 50_000),
        _ => now_us + random.within(1, 3_000),
    }
}

fn assert_same_holds(lock: Option<&Lock>, model: &Naive) {
    let Some(lock) = lock else {
        assert!(model.holds.is_empty(), "the key is gone, but {:?}", model.holds);
        return;
    };
    let holds: Vec<Hold> = lock
        .holders()
        .map(|holder| Hold {
            token: holder.token().to_vec(),
            mode: lock.mode(),
            fence: holder.fence,
            since_ms: holder.since_ms(),
            deadline_ms: holder.deadline_ms,
            meta: holder.meta().to_vec(),
        })
        .collect();
    assert_eq!(holds, model.sorted());
}

/// Asserts that every way to find a holder finds the same ones.
fn assert_index_is_right(lock: &Lock, now_ms: u64) {
    let all: Vec<_> = lock.holders().collect();
    assert_eq!(all.len(), lock.len());
    assert!(all.windows(2).all(|pair| pair[0].fence < pair[1].fence));
    assert!(!lock.is_empty());
    let last_ms = all.iter().map(|holder| holder.deadline_ms).max().unwrap();
    assert_eq!(lock.last_deadline_ms(), last_ms);
    for at_ms in [0, now_ms, last_ms - 1, last_ms] {
        let ended = all.iter().filter(|holder| holder.deadline_ms <= at_ms).count();
        assert_eq!(lock.count_ended(at_ms), ended);
        assert_eq!(lock.live_len(at_ms), all.len() - ended);
        assert_eq!(lock.is_live(at_ms), ended < all.len());
    }
    for holder in &all {
        let live = holder.deadline_ms > now_ms;
        assert_eq!(lock.holder(holder.token(), now_ms), live.then_some(*holder));
        assert_eq!(lock.holder_with_fence(holder.fence, now_ms), live.then_some(*holder));
        assert_eq!(lock.holder(holder.token(), 0), Some(*holder));
        assert_eq!(lock.holder_with_fence(holder.fence, 0), Some(*holder));
        if live && lock.mode() == Mode::Read {
            let others = all.iter().filter(|other| other.fence != holder.fence);
            let others_ms = others.map(|other| other.deadline_ms).max().unwrap_or(0);
            let expected = if others_ms <= now_ms {
                Admission::Free
            } else {
                Admission::Blocked { until_ms: others_ms.min(holder.deadline_ms) }
            };
            assert_eq!(lock.admission(HoldRef::of(holder.token()), Want::Upgrade, None, now_ms), expected);
        }
    }
    assert_eq!(lock.holder(b"nobody", 0), None);
    assert_eq!(lock.holder_with_fence(1, 0), None);
}

struct Tally {
    steps: usize,
    crowds: usize,
    shrunk_crowds: usize,
}

fn play(seed: u64, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let habits = Habits::draw(&mut random);
    let (mut manager, mut store, mut model) =
        (LockManager::default(), MemoryStore::default(), Naive::default());
    let key = id("key");
    let mut now_us = BASE_US;
    let mut most = 0;
    for number in 0..habits.steps {
        now_us = advance(&mut random, &habits, now_us, &model);
        let now = Timestamp::new(now_us, 5);
        let step = habits.step(&mut random, &model);
        let reply = step_core(&mut manager, &mut store, now, &step);
        let expected = model.step(now, &step);
        assert_eq!(reply, expected, "seed {seed}, step {number} at {now:?}: {step:?}");
        let lock = store.lock(&key);
        let len = lock.map_or(0, Lock::len);
        assert_eq!(len, model.holds.len(), "seed {seed}, step {number} at {now:?}: {step:?}");
        if len <= 8 || number % 16 == 0 || number + 1 == habits.steps {
            assert_same_holds(lock, &model);
        }
        if number % 16 == 0 {
            lock.inspect(|lock| assert_index_is_right(lock, now.unix_ms()));
        }
        most = most.max(len);
        tally.steps += 1;
    }
    assert_eq!(manager.fences.last(), model.last_fence);
    assert!(
        manager.waitlist().is_empty()
            && !manager.has_work()
            && manager.next_due_ms(Timestamp::new(now_us, 5)).is_none()
    );
    let last = store.lock(&key);
    if let Some(lock) = last {
        assert_index_is_right(lock, now_us / 1000);
        let again = decode(&encode(lock)).expect("what was encoded decodes");
        assert!(again == *lock);
        assert_index_is_right(&again, now_us / 1000);
    }
    store.assert_rebuilt_by_records();
    tally.crowds += usize::from(most > 16);
    tally.shrunk_crowds += usize::from(most > 16 && last.map_or(0, Lock::len) <= 8);
}

/// Equal replies, equal holders, and copies built from the effects alone that are equal to the byte:
/// from each effect once, from each twice in a row, and from the whole stream twice.
#[test]
fn the_core_equals_a_list_of_holders_and_a_clock() {
    let mut tally = Tally { steps: 0, crowds: 0, shrunk_crowds: 0 };
    (0..rounds(10_000) as u64).for_each(|seed| play(seed, &mut tally));
    if cfg!(miri) {
        return; // too few to have seen everything
    }
    assert!(tally.steps >= 500_000, "{} steps", tally.steps);
    assert!(tally.crowds >= 1_000, "only {} histories had more than 16 holders", tally.crowds);
    assert!(tally.shrunk_crowds >= 100, "only {} crowds shrank again", tally.shrunk_crowds);
}

/// Active defragmentation stops now and then, and goes on behind the last fence.
#[test]
fn what_holders_have_on_the_heap_is_gone_through_in_pieces() {
    let holder = |n: u64| Holder::new(format!("t{n}").as_bytes(), &[b'm'; 100], n, 0, u64::MAX >> 12);
    for count in [1, 10, 300] {
        let mut lock = Lock::from_parts(Mode::Read, (1..=count).map(holder).collect()).unwrap();
        let (mut fences, mut after) = (Vec::new(), 0);
        loop {
            let piece: Vec<(u64, bool)> =
                lock.bytes_after(after).map(|(fence, bytes)| (fence, bytes.is_some())).take(7).collect();
            let Some((last, _)) = piece.last().copied() else { break };
            assert!(piece.iter().all(|(_, has_bytes)| *has_bytes));
            fences.extend(piece.iter().map(|(fence, _)| *fence));
            after = last;
        }
        assert_eq!(fences, (1..=count).collect::<Vec<_>>());
    }
}
