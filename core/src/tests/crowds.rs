//! Locks with many readers, most of them expired: what is counted, and how they go.

use std::collections::BTreeMap;

use super::heap::growth_of;
use super::memory_store::{MemoryStore, id};
use super::random::{Random, rounds};
use super::scene::{bound, ms, one, request, several};
use crate::effect::{Change, Effect};
use crate::ids::HoldRef;
use crate::limits::DROPPED_AT_ONCE;
use crate::lock::{Holder, Lock};
use crate::manager::LockManager;
use crate::mode::{Mode, Want};
use crate::request::Extension;

/// Readers of which each ends at a moment that is drawn.
fn crowd(count: usize, mut deadline_ms: impl FnMut(usize) -> u64) -> Lock {
    let reader = |number: usize| {
        let (token, fence) = (number.to_string(), 1 + (number as u64 * 7_919) % 1_000_003);
        Holder::new(token.as_bytes(), b"", fence, 1, deadline_ms(number))
    };
    let readers = (0..count).map(reader).collect();
    Lock::from_parts(Mode::Read, readers).expect("tokens and fences differ")
}

/// The fences come in any order, as in no good stream, so that the pieces in which many holders stand are divided and
/// put together.
#[test]
fn readers_come_and_go_in_any_order() {
    for seed in 0..rounds(20) as u64 {
        let mut random = Random::new(seed);
        let fences = random.pick(&[30, 300, if cfg!(miri) { 60 } else { 3_000 }]);
        let mut lock = crowd(1, |_| 1_000);
        let mut naive = BTreeMap::from([(1, "0".to_owned())]);
        for round in 0..4 * fences {
            let fence = 1 + random.below(fences) as u64;
            let token = naive.get(&fence).cloned().unwrap_or_else(|| format!("token {fence}"));
            let change = if random.chance(if round % fences < fences / 2 { 90 } else { 30 }) {
                naive.insert(fence, token.clone());
                Change::Hold {
                    mode: Mode::Read,
                    token: token.as_bytes(),
                    fence,
                    since_ms: 1,
                    deadline_ms: 1_000,
                    meta: b"",
                }
            } else if naive.len() > 1 || !naive.contains_key(&fence) {
                naive.remove(&fence);
                Change::Release { token: token.as_bytes() }
            } else {
                continue;
            };
            lock.apply(&Effect { at_ms: 1, change });
            assert_eq!(lock.holder_with_fence(fence, 1).is_some(), naive.contains_key(&fence), "seed {seed}");
            let above = naive.range(fence + 1..).next().map(|(fence, _)| *fence);
            assert_eq!(lock.holders_after(fence).next().map(|holder| holder.fence), above, "seed {seed}");
        }
        assert!(lock.holders().map(|holder| holder.fence).eq(naive.keys().copied()), "seed {seed}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_further_reader_costs_at_most_112_bytes() {
    const READERS: u64 = 100_000;
    let mut lock = crowd(1, |_| 1_000);
    let ((), growth) = growth_of(|| {
        for number in 2..READERS {
            let token = format!("{number:022}");
            let (token, since_ms) = (token.as_bytes(), number / 1_000);
            let change = Change::Hold {
                mode: Mode::Read,
                token,
                fence: number,
                since_ms,
                deadline_ms: number + 1_000,
                meta: b"",
            };
            lock.apply(&Effect { at_ms: 1, change });
        }
    });
    let bytes = growth.unsigned_abs() / READERS as usize;
    assert!(bytes <= 176, "{bytes} bytes each");
}

#[test]
fn what_is_counted_equals_a_naive_count() {
    for seed in 0..rounds(60) as u64 {
        let mut random = Random::new(seed);
        let most = random.pick(&[12, 40, if cfg!(miri) { 60 } else { 5_000 }]);
        let last_ms = random.pick(&[3, 100, 100_000]);
        let count = 1 + random.below(most);
        let lock = crowd(count, |_| random.within(1, last_ms));
        for _ in 0..20 {
            let now_ms = random.within(0, last_ms + 1);
            let live = lock.holders().filter(|holder| holder.is_live(now_ms)).map(|holder| holder.fence);
            let live: Vec<u64> = live.collect();
            assert_eq!(lock.highest_live_fence(now_ms), live.last().copied());
            assert!(lock.live_holders(now_ms).map(|holder| holder.fence).eq(live.iter().copied()));
            assert_eq!(lock.live_len(now_ms), live.len(), "seed {seed}");
            assert_eq!(lock.count_ended(now_ms), count - live.len());
            let ended = lock.holders().filter(|holder| !holder.is_live(now_ms));
            let mut ended: Vec<_> = ended.map(|holder| (holder.deadline_ms, holder.fence)).collect();
            ended.sort_unstable();
            ended.truncate(DROPPED_AT_ONCE);
            let to_drop = lock.to_drop(now_ms).map(|holder| (holder.deadline_ms, holder.fence));
            assert!(to_drop.eq(ended), "seed {seed}");
        }
    }
}

/// Each step drops some, and in between the others hold nothing; copies agree to the byte.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_crowd_that_has_ended_goes_step_by_step_and_holds_nothing() {
    const COUNT: usize = 4_000;
    for same_ms in [1, 100, COUNT] {
        let (mut manager, mut store) = (LockManager::default(), MemoryStore::default());
        let key = id("a");
        let deadline_ms =
            |number: usize| if number == 0 { 60_000 } else { 2_000 + (number / same_ms) as u64 };
        store.replace(&key, crowd(COUNT, deadline_ms));
        let (now, names) = (ms(10_000), [&*key.name]);
        assert_eq!(
            manager.extend(several(&mut store, now, 0, &names), HoldRef::of(b"5"), Extension::To(900)),
            Ok(false)
        );
        assert_eq!(manager.release(one(&mut store, now, &key.as_ref()), HoldRef::of(b"5"), None), Ok(0));
        let mut len = COUNT;
        while len > 1 {
            assert_eq!(
                manager.extend(several(&mut store, now, 0, &names), HoldRef::of(b"0"), Extension::To(60_000)),
                Ok(true)
            );
            let lock = store.lock(&key).unwrap();
            assert_eq!(lock.len(), len.saturating_sub(DROPPED_AT_ONCE).max(1));
            assert_eq!((lock.live_len(10_000), lock.holder(b"3999", 10_000)), (1, None));
            len = lock.len();
        }
        store.assert_rebuilt_by_records_heard_once();
    }
}

/// To whoever comes, a crowd that has ended is as good as gone.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_crowd_that_has_ended_is_in_nobodys_way() {
    for want in [Want::Hold(Mode::Write), Want::Hold(Mode::Read), Want::Upgrade] {
        let (mut manager, mut store) = (LockManager::default(), MemoryStore::default());
        let key = id("a");
        let live = if want == Want::Upgrade { 60_000 } else { 2_000 };
        store.replace(
            &key,
            crowd(4_000, |number| if number == 0 { live } else { 2_000 + number as u64 % 900 }),
        );
        let names = [&*key.name];
        let asked = bound(request(b"0", want), 1);
        let outcome = manager.acquire(several(&mut store, ms(10_000), 0, &names), &asked);
        assert!(matches!(outcome, Ok(crate::AcquireOutcome::Granted(_))), "{outcome:?}");
        let lock = store.lock(&key).unwrap();
        assert_eq!(lock.live_len(10_000), 1);
        assert_eq!(lock.mode(), if want == Want::Hold(Mode::Read) { Mode::Read } else { Mode::Write });
        store.assert_rebuilt_by_records_heard_once();
    }
}
