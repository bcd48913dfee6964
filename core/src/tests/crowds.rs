//! Locks with many readers, most of them expired: what is counted, and how they go.

use std::collections::BTreeMap;

use super::heap::growth_of;
use super::memory_store::{MemoryStore, id};
use super::parts::{READ, TestClients, UPGRADE, WRITE, bound, changed, ms, request, whole_turn};
use super::random::{Random, rounds};
use super::scene::Scene;
use crate::effect::{Change, Effect};
use crate::error::LockError;
use crate::format::{decode, encode};
use crate::ids::{HoldRef, RequestId};
use crate::limits::{DROPPED_AT_ONCE, NUMBER_MAX};
use crate::lock::{Admission, Holder, Lock};
use crate::manager::{LockManager, Operation};
use crate::mode::{Mode, Want};
use crate::request::{AcquireOutcome, Request, WaitPolicy};

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
/// put together. Each way to find a holder finds what a naive map has: the token and the deadline of each fence.
#[test]
fn readers_come_and_go_in_any_order() {
    for seed in 0..rounds(30) as u64 {
        let mut random = Random::new(seed);
        let fences = random.pick(&[8, 30, 300, if cfg!(miri) { 60 } else { 1_500 }]);
        // Of a few, some end by time too; a crowd that has ended goes step by step.
        let longest_ms = if fences <= DROPPED_AT_ONCE { 50 } else { 1_000_000 };
        let stays = fences as u64 + 1;
        let token_of = |number: usize| format!("token {number}");
        let reader = Holder::new(token_of(fences).as_bytes(), b"", stays, 1, NUMBER_MAX);
        let mut lock = Lock::from_parts(Mode::Read, vec![reader]).unwrap();
        let mut naive = BTreeMap::from([(stays, (fences, NUMBER_MAX))]);
        let mut now_ms = 1;
        for round in 0..4 * fences {
            now_ms += random.below(2) as u64;
            let fence = 1 + random.below(fences) as u64;
            let number = random.below(fences);
            let token = token_of(number);
            let deadline_ms = now_ms + random.within(1, longest_ms);
            naive.retain(|_, (_, deadline_ms)| *deadline_ms > now_ms);
            let change = if random.chance(if round % fences < fences / 2 { 90 } else { 30 }) {
                naive.retain(|_, (other, _)| *other != number);
                naive.insert(fence, (number, deadline_ms));
                let (mode, token) = (Mode::Read, token.as_bytes());
                Change::Hold { mode, token, fence, since_ms: 1, deadline_ms, meta: b"" }
            } else if random.chance(50) {
                let own = naive.values_mut().find(|(other, _)| *other == number);
                own.into_iter().for_each(|own| own.1 = deadline_ms);
                Change::Extend { token: token.as_bytes(), deadline_ms }
            } else {
                naive.retain(|_, (other, _)| *other != number);
                Change::Release { token: token.as_bytes() }
            };
            lock.apply(&Effect { at_ms: now_ms, change });
            assert_eq!(lock.holder_with_fence(fence, 1).is_some(), naive.contains_key(&fence), "seed {seed}");
            let above = naive.range(fence + 1..).next().map(|(fence, _)| *fence);
            let found = lock.holders().map(|holder| holder.fence).find(|other| *other > fence);
            assert_eq!(found, above, "seed {seed}");
            if round % 64 == 0 || fences < 10 {
                assert_equals(&lock, &naive, now_ms);
            }
        }
        assert_equals(&lock, &naive, now_ms);
        assert_equals(&decode(&encode(&lock)).unwrap(), &naive, now_ms);
    }
}

fn assert_equals(lock: &Lock, naive: &BTreeMap<u64, (usize, u64)>, now_ms: u64) {
    let known = naive
        .iter()
        .map(|(fence, (number, deadline_ms))| (*fence, format!("token {number}").into_bytes(), *deadline_ms));
    let holders = lock.holders().map(|holder| (holder.fence, holder.token().to_vec(), holder.deadline_ms));
    assert!(holders.eq(known));
    let last_ms = naive.values().map(|(_, deadline_ms)| *deadline_ms).max().unwrap();
    assert_eq!(
        (lock.len(), lock.live_len(now_ms), lock.last_deadline_ms()),
        (naive.len(), naive.len(), last_ms)
    );
    for holder in lock.holders() {
        assert_eq!(lock.holder(holder.token(), now_ms), Some(holder));
        assert_eq!(lock.holder_with_fence(holder.fence, now_ms), Some(holder));
        let others_ms = lock.holders().filter(|other| other.fence != holder.fence && naive.len() < 100);
        if let Some(others_ms) = others_ms.map(|other| other.deadline_ms).max() {
            let until_ms = others_ms.min(holder.deadline_ms);
            let admission = lock.admission(HoldRef::of(holder.token()), Want::Upgrade, None, now_ms);
            assert_eq!(admission, Admission::Blocked { until_ms });
        }
    }
    assert!(lock.holder(b"nobody", 0).is_none() && lock.holder_with_fence(9_999, 0).is_none());
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
        let (mut scene, key) = (Scene::new(), id("a"));
        let deadline_ms = |nth: usize| if nth == 0 { 60_000 } else { 2_000 + (nth / same_ms) as u64 };
        scene.store.replace(&key, crowd(COUNT, deadline_ms));
        scene.now_ms = 10_000;
        assert_eq!((scene.extends("a", "5", 900), scene.releases_all("a", "5")), (false, 0));
        let mut len = COUNT;
        while len > 1 {
            assert!(scene.extends("a", "0", 60_000));
            let lock = scene.store.lock(&key).unwrap();
            assert_eq!(lock.len(), len.saturating_sub(DROPPED_AT_ONCE).max(1));
            assert_eq!((lock.live_len(10_000), lock.holder(b"3999", 10_000)), (1, None));
            len = lock.len();
        }
        scene.store.assert_rebuilt_by_records_heard_once();
    }
}

/// To anybody who comes, a crowd that has ended is as good as gone.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_crowd_that_has_ended_is_in_nobodys_way() {
    for want in [WRITE, READ, UPGRADE] {
        let (mut scene, key) = (Scene::new(), id("a"));
        let live_ms = if want == UPGRADE { 60_000 } else { 2_000 };
        let deadline_ms = |nth| if nth == 0 { live_ms } else { 2_000 + nth as u64 % 900 };
        scene.store.replace(&key, crowd(4_000, deadline_ms));
        (scene.now_ms, scene.connection) = (10_000, Some(1));
        scene.takes("a", "0", want);
        let lock = scene.store.lock(&key).unwrap();
        assert_eq!(lock.live_len(10_000), 1);
        assert_eq!(lock.mode(), if want == READ { Mode::Read } else { Mode::Write });
        scene.store.assert_rebuilt_by_records_heard_once();
    }
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

/// In an effect, moment 0 ends nobody.
#[test]
fn holders_that_ended_at_moment_0() {
    let mut lock = crowd(600, |_| 0);
    let mut left_after = |at_ms| {
        lock.apply(&Effect { at_ms, change: Change::Release { token: b"nobody" } });
        lock.len()
    };
    assert_eq!([0, 1, 1].map(&mut left_after), [600, 100, 0]);
}

/// A crowd that has come and gone leaves the memory as it was, whichever way it went.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_crowd_leaves_no_memory_behind() {
    type Way = fn(&mut LockManager, &mut MemoryStore, &[RequestId]);
    fn released_and_served(manager: &mut LockManager, store: &mut MemoryStore) {
        assert_eq!(
            manager.release(Operation::new(store, ms(1_000), 0, &[b"a"]), HoldRef::of(b"first"), None),
            Ok(1)
        );
        manager.serve_queues(store, &mut TestClients::default(), &mut whole_turn(ms(1_000)));
    }
    let ways: [(&str, Way); 5] = [
        ("left", |manager, _, all| all.iter().for_each(|request| assert!(manager.abandon(*request)))),
        ("timed out", |_, _, _| ()),
        ("failed by a change of role", |manager, _, _| {
            drop(manager.fail_waiters(LockError::NotPrimary));
            manager.end_waits(&mut whole_turn(ms(1_000)));
        }),
        ("granted, and ended by deadlines", |manager, store, _| {
            released_and_served(manager, store);
            let last = changed(request(b"last", WRITE), |claim| claim.terms.ttl_ms = 1);
            manager.acquire(Operation::new(store, ms(2_000), 0, &[b"a"]), &last).unwrap();
            for late in 0..1_100 {
                let (own, other) = (late.to_string(), HoldRef::of(b"other"));
                let names: [&[u8]; 1] = [own.as_bytes()];
                manager
                    .acquire(Operation::new(store, ms(2_000), 0, &names), &bound(request(b"other", WRITE), 9))
                    .unwrap();
                assert_eq!(manager.release(Operation::new(store, ms(2_000), 0, &names), other, None), Ok(1));
            }
        }),
        ("granted, and ended with their connections", |manager, store, _| {
            released_and_served(manager, store);
            (0..2_000).for_each(|connection| manager.connection_closed(connection));
        }),
    ];
    for (how, way) in ways {
        let (mut manager, mut store) = (LockManager::default(), MemoryStore::default());
        let names: [&[u8]; 1] = [b"a"];
        manager.acquire(Operation::new(&mut store, ms(1_000), 0, &names), &request(b"first", WRITE)).unwrap();
        let ((), growth) = growth_of(|| {
            let mut waiting = Vec::new();
            for number in 0..2_000 {
                let (token, wait) = (format!("token {number}"), WaitPolicy::Timeout(100));
                let asked = bound(Request { wait, ..request(token.as_bytes(), READ) }, number);
                match manager.acquire(Operation::new(&mut store, ms(1_000), 0, &names), &asked) {
                    Ok(AcquireOutcome::Waiting(request)) => waiting.push(request),
                    other => panic!("{other:?}"),
                }
            }
            way(&mut manager, &mut store, &waiting);
            // By then each EPHEMERAL hold has been looked at: that of a large crowd that has ended is forgotten so.
            manager.serve_queues(&mut store, &mut TestClients::default(), &mut whole_turn(ms(90_000)));
            manager.take_answers(usize::MAX);
            store.delete(&id("a"));
            store.records = Vec::new();
        });
        manager.waitlist().check();
        assert!(manager.waitlist().is_empty() && !manager.has_work());
        assert!(growth < 4_096, "{how}: {growth} bytes are left");
    }
}
