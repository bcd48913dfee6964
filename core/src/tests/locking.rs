//! One lock without a queue, step by step.
//!
//! Each table is one story: rows are numbered, each has its own moment in milliseconds, and fences
//! are those of the start of the story or later, in microseconds.

use super::memory_store::{MemoryStore, Record, id};
use super::scene::{changed, ms, one, request, several};
use crate::effect::Event;
use crate::error::LockError;
use crate::fence::Fences;
use crate::ids::HoldRef;
use crate::manager::LockManager;
use crate::mode::{Mode, Want};
use crate::request::{AcquireOutcome, Extension, Request, WaitPolicy};
use crate::time::Timestamp;
use std::num::NonZeroU64;

/// What is done to the lock, or asked about it.
#[derive(Clone, Copy, Debug)]
enum Do {
    Lock(&'static str, u64),
    LockMeta(&'static str, u64, &'static str),
    LockXx(&'static str, u64),
    Rlock(&'static str, u64),
    RlockMeta(&'static str, u64, &'static str),
    RlockXx(&'static str, u64),
    Unlock(&'static str),
    UnlockFence(&'static str, u64),
    Runlock(&'static str),
    RunlockFence(&'static str, u64),
    ReleaseAny(&'static str),
    Extend(&'static str, u64),
    ExtendGt(&'static str, u64),
    ExtendFence(&'static str, u64, u64),
    Upgrade(&'static str, u64),
    UpgradeFence(&'static str, u64, u64),
    Downgrade(&'static str, u64),
    DowngradeFence(&'static str, u64, u64),
    Pttl(&'static str),
    Meta(&'static str),
    Since(&'static str),
    Check(u64),
    Keys,
}

/// What comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gets {
    Fence(u64),
    Number(u64),
    Text(&'static str),
    Yes,
    No,
    WrongMode(Mode),
    NotHeld,
}

use Do::*;
use Extension::{AtLeastTo, To};
use Gets::*;

type Row = (u32, u64, Do, Gets);

/// All that rows bring.
const METADATA: [&str; 6] = ["", "mine", "one", "two", "old", "again"];

fn run(story: &[Row]) {
    let (mut manager, mut store) = (LockManager::default(), MemoryStore::default());
    for (at, &(number, now_ms, what, expected)) in story.iter().enumerate() {
        assert_eq!(number as usize, at + 1, "rows are numbered");
        let records = store.records.len();
        let before = store.lock(&id("key")).cloned();
        let got = act(&mut manager, &mut store, now_ms, what);
        let got = match (got, expected) {
            // Metadata is compared as text.
            (Ok(got), _) => got,
            (Err(LockError::WrongMode(mode)), _) => WrongMode(mode),
            (Err(LockError::NotHeld), _) => NotHeld,
            (Err(other), _) => panic!("row {number}: {other:?}"),
        };
        assert_eq!(got, expected, "row {number} at {now_ms} ms: {what:?}");
        let has_changed = store.lock(&id("key")) != before.as_ref();
        let has_effect = store.records.len() > records;
        assert_eq!(has_effect, has_changed, "row {number}: an effect if and only if it did something");
    }
    store.assert_rebuilt_by_records();
}

fn act(manager: &mut LockManager, store: &mut MemoryStore, now_ms: u64, what: Do) -> Result<Gets, LockError> {
    let (now, key) = (ms(now_ms), id("key"));
    let names = [&*key.name];
    let asked = |token: &'static str, want, ttl_ms, meta: Option<&'static str>| {
        let asked = Request { wait: WaitPolicy::NoWait, ..request(token.as_bytes(), want) };
        changed(asked, |claim| (claim.meta, claim.terms.ttl_ms) = (meta.map(str::as_bytes), ttl_ms))
    };
    let only_refresh = |asked| Request { wait: WaitPolicy::OnlyRefresh, ..asked };
    let mut acquire = |asked: Request<'_>| {
        manager.acquire(several(store, now, 0, &names), &asked).map(|outcome| match outcome {
            AcquireOutcome::Granted(fence) => Fence(fence),
            AcquireOutcome::Refused => No,
            AcquireOutcome::Waiting(_) => panic!("waits though it would not"),
        })
    };
    let any = |token: &'static str| HoldRef::of(token.as_bytes());
    let with = |token: &'static str, fence| HoldRef { token: token.as_bytes(), fence: Some(fence) };
    let yes = |done| if done { Yes } else { No };
    let (write, read) = (Want::Hold(Mode::Write), Want::Hold(Mode::Read));
    Ok(match what {
        Lock(token, ttl_ms) => acquire(asked(token, write, ttl_ms, None))?,
        LockMeta(token, ttl_ms, meta) => acquire(asked(token, write, ttl_ms, Some(meta)))?,
        LockXx(token, ttl_ms) => acquire(only_refresh(asked(token, write, ttl_ms, None)))?,
        Rlock(token, ttl_ms) => acquire(asked(token, read, ttl_ms, None))?,
        RlockMeta(token, ttl_ms, meta) => acquire(asked(token, read, ttl_ms, Some(meta)))?,
        RlockXx(token, ttl_ms) => acquire(only_refresh(asked(token, read, ttl_ms, None)))?,
        Upgrade(token, ttl_ms) => acquire(asked(token, Want::Upgrade, ttl_ms, None))?,
        UpgradeFence(token, ttl_ms, fence) => {
            let asked = asked(token, Want::Upgrade, ttl_ms, None);
            acquire(changed(asked, |claim| claim.terms.fence = NonZeroU64::new(fence)))?
        }
        Downgrade(token, ttl_ms) => {
            Fence(manager.downgrade(one(store, now, &key.as_ref()), any(token), ttl_ms)?)
        }
        DowngradeFence(token, ttl_ms, fence) => {
            Fence(manager.downgrade(one(store, now, &key.as_ref()), with(token, fence), ttl_ms)?)
        }
        Unlock(token) => {
            yes(manager.release(one(store, now, &key.as_ref()), any(token), Some(Mode::Write))? == 1)
        }
        UnlockFence(token, fence) => {
            yes(manager.release(one(store, now, &key.as_ref()), with(token, fence), Some(Mode::Write))? == 1)
        }
        Runlock(token) => {
            yes(manager.release(one(store, now, &key.as_ref()), any(token), Some(Mode::Read))? == 1)
        }
        RunlockFence(token, fence) => {
            yes(manager.release(one(store, now, &key.as_ref()), with(token, fence), Some(Mode::Read))? == 1)
        }
        ReleaseAny(token) => yes(manager.release(one(store, now, &key.as_ref()), any(token), None)? == 1),
        Extend(token, ttl_ms) => {
            yes(manager.extend(several(store, now, 0, &names), any(token), To(ttl_ms))?)
        }
        ExtendGt(token, ttl_ms) => {
            yes(manager.extend(several(store, now, 0, &names), any(token), AtLeastTo(ttl_ms))?)
        }
        ExtendFence(token, ttl_ms, fence) => {
            yes(manager.extend(several(store, now, 0, &names), with(token, fence), To(ttl_ms))?)
        }
        Keys => Number(store.lock(&key).map_or(0, |lock| lock.len() as u64)),
        Check(fence) => {
            yes(store.lock(&key).is_some_and(|lock| lock.holder_with_fence(fence, now_ms).is_some()))
        }
        Pttl(token) | Meta(token) | Since(token) => {
            let own = store.lock(&key).and_then(|lock| lock.holder(token.as_bytes(), now_ms));
            match (what, own) {
                (_, None) => No,
                (Pttl(_), Some(own)) => Number(own.deadline_ms - now_ms),
                (Since(_), Some(own)) => Number(own.since_ms()),
                (_, Some(own)) => {
                    let text = METADATA.into_iter().find(|text| text.as_bytes() == own.meta());
                    Text(text.expect("the metadata of a row"))
                }
            }
        }
    })
}

#[test]
fn a_writer_excludes_everybody_and_only_its_token_releases() {
    run(&[
        (1, 1_000, Lock("A", 100), Fence(1_000_000)),
        (2, 1_001, Lock("B", 100), No),
        (3, 1_001, Rlock("B", 100), No),
        (4, 1_001, Pttl("A"), Number(99)),
        (5, 1_001, Pttl("B"), No),
        (6, 1_001, Check(1_000_000), Yes),
        (7, 1_001, Check(1_000_001), No),
        (8, 1_001, Unlock("B"), No),
        (9, 1_001, Runlock("A"), No),
        (10, 1_002, Unlock("A"), Yes),
        (11, 1_002, Keys, Number(0)),
        (12, 1_002, Unlock("A"), No),
        (13, 1_002, Check(1_000_000), No),
        (14, 1_002, Lock("B", 100), Fence(1_002_000)),
        (15, 1_003, ReleaseAny("B"), Yes),
    ]);
}

#[test]
fn the_same_token_again_refreshes_and_keeps_its_fence() {
    run(&[
        (1, 1_000, Lock("A", 100), Fence(1_000_000)),
        (2, 1_050, Lock("A", 100), Fence(1_000_000)),
        (3, 1_050, Pttl("A"), Number(100)),
        (4, 1_050, Since("A"), Number(1_000)),
        (5, 1_060, Lock("A", 10), Fence(1_000_000)),
        (6, 1_060, Pttl("A"), Number(90)),
        (7, 1_065, Unlock("A"), Yes),
        (8, 1_065, Keys, Number(0)),
        (9, 1_070, Rlock("A", 100), Fence(1_070_000)),
        (10, 1_080, Rlock("B", 100), Fence(1_080_000)),
        (11, 1_090, Rlock("A", 100), Fence(1_070_000)),
        (12, 1_090, Pttl("A"), Number(100)),
        (13, 1_090, Pttl("B"), Number(90)),
        (14, 1_095, Runlock("A"), Yes),
        (15, 1_095, Pttl("A"), No),
        (16, 1_095, Keys, Number(1)),
    ]);
}

#[test]
fn a_token_holds_in_one_mode_at_a_time() {
    run(&[
        (1, 1_000, Lock("A", 100), Fence(1_000_000)),
        (2, 1_001, Rlock("A", 500), WrongMode(Mode::Write)),
        (3, 1_001, Pttl("A"), Number(99)),
        (4, 1_002, Unlock("A"), Yes),
        (5, 1_003, Rlock("A", 100), Fence(1_003_000)),
        (6, 1_004, Lock("A", 500), WrongMode(Mode::Read)),
        (7, 1_004, Pttl("A"), Number(99)),
        (8, 1_005, Rlock("B", 100), Fence(1_005_000)),
        (9, 1_006, Lock("A", 500), WrongMode(Mode::Read)),
        (10, 1_103, Lock("A", 500), No),
        (11, 1_105, Lock("A", 500), Fence(1_105_000)),
    ]);
}

#[test]
fn a_hold_ends_at_its_very_millisecond() {
    run(&[
        (1, 1_000, Lock("A", 50), Fence(1_000_000)),
        (2, 1_049, Pttl("A"), Number(1)),
        (3, 1_049, Lock("B", 50), No),
        (4, 1_049, Check(1_000_000), Yes),
        (5, 1_050, Pttl("A"), No),
        (6, 1_050, Check(1_000_000), No),
        (7, 1_050, Unlock("A"), No),
        (8, 1_050, Extend("A", 50), No),
        (9, 1_050, Downgrade("A", 50), NotHeld),
        (10, 1_050, Keys, Number(1)),
        (11, 1_050, Lock("B", 50), Fence(1_050_000)),
        (12, 1_050, Keys, Number(1)),
        (13, 1_051, Lock("A", 50), No),
        (14, 1_100, Lock("A", 1), Fence(1_100_000)),
        (15, 1_101, Lock("A", 1), Fence(1_101_000)),
    ]);
}

#[test]
fn extend_sets_the_deadline_in_either_mode_and_may_shorten() {
    run(&[
        (1, 1_000, Extend("A", 100), No),
        (2, 1_000, Lock("A", 100), Fence(1_000_000)),
        (3, 1_010, Extend("A", 500), Yes),
        (4, 1_010, Pttl("A"), Number(500)),
        (5, 1_010, Extend("B", 500), No),
        (6, 1_020, Extend("A", 5), Yes),
        (7, 1_024, Check(1_000_000), Yes),
        (8, 1_025, Extend("A", 5), No),
        (9, 1_030, Rlock("A", 100), Fence(1_030_000)),
        (10, 1_030, Rlock("B", 100), Fence(1_030_001)),
        (11, 1_040, Extend("A", 7), Yes),
        (12, 1_040, Pttl("A"), Number(7)),
        (13, 1_040, Pttl("B"), Number(90)),
        (14, 1_047, Pttl("A"), No),
    ]);
}

#[test]
fn upgrade_makes_the_only_reader_the_writer_with_a_new_fence() {
    run(&[
        (1, 1_000, Upgrade("A", 100), NotHeld),
        (2, 1_000, RlockMeta("A", 100, "mine"), Fence(1_000_000)),
        (3, 1_000, Rlock("B", 50), Fence(1_000_001)),
        (4, 1_001, Upgrade("A", 100), No),
        (5, 1_001, Upgrade("C", 100), NotHeld),
        (6, 1_001, Pttl("A"), Number(99)),
        (7, 1_050, Upgrade("A", 200), Fence(1_050_000)),
        (8, 1_050, Keys, Number(1)),
        (9, 1_050, Pttl("A"), Number(200)),
        (10, 1_050, Since("A"), Number(1_050)),
        (11, 1_050, Meta("A"), Text("mine")),
        (12, 1_050, Check(1_000_000), No),
        (13, 1_050, Rlock("B", 50), No),
        (14, 1_060, Upgrade("A", 100), Fence(1_050_000)),
        (15, 1_060, Pttl("A"), Number(190)),
        (16, 1_070, Runlock("A"), No),
        (17, 1_070, Unlock("A"), Yes),
    ]);
}

#[test]
fn downgrade_makes_the_writer_a_reader_with_a_new_fence() {
    run(&[
        (1, 1_000, Downgrade("A", 100), NotHeld),
        (2, 1_000, LockMeta("A", 100, "mine"), Fence(1_000_000)),
        (3, 1_001, Downgrade("B", 100), NotHeld),
        (4, 1_010, Downgrade("A", 300), Fence(1_010_000)),
        (5, 1_010, Pttl("A"), Number(300)),
        (6, 1_010, Since("A"), Number(1_010)),
        (7, 1_010, Meta("A"), Text("mine")),
        (8, 1_010, Lock("B", 100), No),
        (9, 1_010, Rlock("B", 100), Fence(1_010_001)),
        (10, 1_020, Downgrade("A", 100), Fence(1_010_000)),
        (11, 1_020, Pttl("A"), Number(290)),
        (12, 1_020, Pttl("B"), Number(90)),
        (13, 1_030, Unlock("A"), No),
        (14, 1_030, Runlock("A"), Yes),
    ]);
}

#[test]
fn metadata_is_replaced_if_given_and_else_kept() {
    run(&[
        (1, 1_000, LockMeta("A", 100, "one"), Fence(1_000_000)),
        (2, 1_001, LockMeta("B", 100, "other"), No),
        (3, 1_001, Meta("A"), Text("one")),
        (4, 1_002, Lock("A", 100), Fence(1_000_000)),
        (5, 1_002, Meta("A"), Text("one")),
        (6, 1_003, Extend("A", 100), Yes),
        (7, 1_003, Meta("A"), Text("one")),
        (8, 1_004, LockMeta("A", 100, "two"), Fence(1_000_000)),
        (9, 1_004, Meta("A"), Text("two")),
        (10, 1_004, Since("A"), Number(1_000)),
        (11, 1_005, LockMeta("A", 100, ""), Fence(1_000_000)),
        (12, 1_005, Meta("A"), Text("")),
        (13, 1_006, LockMeta("A", 4, "old"), Fence(1_000_000)),
        (14, 1_006, Meta("A"), Text("old")),
        (15, 1_006, Pttl("A"), Number(99)),
        (16, 1_006, Extend("A", 4), Yes),
        (17, 1_010, Lock("A", 100), Fence(1_010_000)),
        (18, 1_010, Meta("A"), Text("")),
        (19, 1_011, Unlock("A"), Yes),
        (20, 1_012, RlockMeta("A", 100, "read"), Fence(1_012_000)),
        (21, 1_012, Rlock("B", 100), Fence(1_012_001)),
        (22, 1_013, RlockMeta("A", 100, "again"), Fence(1_012_000)),
        (23, 1_013, Meta("A"), Text("again")),
        (24, 1_013, Meta("B"), Text("")),
    ]);
}

#[test]
fn a_fence_means_one_hold_and_no_other() {
    run(&[
        (1, 1_000, Lock("A", 100), Fence(1_000_000)),
        (2, 1_001, UnlockFence("A", 1), No),
        (3, 1_001, ExtendFence("A", 200, 1), No),
        (4, 1_001, ExtendFence("A", 200, 1_000_000), Yes),
        (5, 1_001, RunlockFence("A", 1_000_000), No),
        (6, 1_001, UnlockFence("A", 1_000_000), Yes),
        (7, 1_002, Lock("A", 100), Fence(1_002_000)),
        (8, 1_003, UnlockFence("A", 1_000_000), No),
        (9, 1_003, ExtendFence("A", 5, 1_000_000), No),
        (10, 1_003, DowngradeFence("A", 100, 1_000_000), NotHeld),
        (11, 1_004, DowngradeFence("A", 100, 1_002_000), Fence(1_004_000)),
        (12, 1_005, DowngradeFence("A", 100, 1_002_000), Fence(1_004_000)),
        (13, 1_006, RunlockFence("A", 1_002_000), No),
        (14, 1_006, UpgradeFence("A", 100, 1_002_000), NotHeld),
        (15, 1_007, UpgradeFence("A", 100, 1_004_000), Fence(1_007_000)),
        (16, 1_008, UpgradeFence("A", 100, 1_004_000), Fence(1_007_000)),
        (17, 1_009, UnlockFence("A", 1_004_000), No),
        (18, 1_009, UnlockFence("A", 1_007_000), Yes),
        (19, 1_009, UnlockFence("A", 1_007_000), No),
        (20, 1_010, Rlock("A", 100), Fence(1_010_000)),
        (21, 1_011, RunlockFence("A", 1_007_000), No),
        (22, 1_011, RunlockFence("A", 1_010_000), Yes),
    ]);
}

#[test]
fn nothing_but_a_plain_extension_ends_a_hold_earlier() {
    run(&[
        (1, 1_000, Lock("A", 100), Fence(1_000_000)),
        (2, 1_010, Lock("A", 90), Fence(1_000_000)),
        (3, 1_010, Lock("A", 89), Fence(1_000_000)),
        (4, 1_010, ExtendGt("A", 50), Yes),
        (5, 1_010, Pttl("A"), Number(90)),
        (6, 1_010, ExtendGt("A", 91), Yes),
        (7, 1_010, Pttl("A"), Number(91)),
        (8, 1_010, Downgrade("A", 5), Fence(1_010_000)),
        (9, 1_010, Pttl("A"), Number(91)),
        (10, 1_010, Downgrade("A", 5), Fence(1_010_000)),
        (11, 1_010, Rlock("A", 5), Fence(1_010_000)),
        (12, 1_010, Pttl("A"), Number(91)),
        (13, 1_010, Upgrade("A", 5), Fence(1_010_001)),
        (14, 1_010, Upgrade("A", 5), Fence(1_010_001)),
        (15, 1_010, Pttl("A"), Number(91)),
        (16, 1_010, Extend("A", 5), Yes),
        (17, 1_010, Pttl("A"), Number(5)),
        (18, 1_010, ExtendGt("B", 5), No),
    ]);
}

#[test]
fn a_refresh_alone_gives_nothing_new() {
    run(&[
        (1, 1_000, LockXx("A", 100), No),
        (2, 1_000, RlockXx("A", 100), No),
        (3, 1_000, Lock("A", 100), Fence(1_000_000)),
        (4, 1_001, RlockXx("A", 200), No),
        (5, 1_001, LockXx("B", 200), No),
        (6, 1_001, LockXx("A", 200), Fence(1_000_000)),
        (7, 1_001, Pttl("A"), Number(200)),
        (8, 1_002, Downgrade("A", 5), Fence(1_002_000)),
        (9, 1_002, LockXx("A", 200), No),
        (10, 1_002, RlockXx("A", 300), Fence(1_002_000)),
        (11, 1_302, RlockXx("A", 300), No),
    ]);
}

#[test]
fn each_effect_is_announced_for_what_it_is() {
    let (mut manager, mut store) = (LockManager::default(), MemoryStore::default());
    for what in [
        LockMeta("A", 100, "one"),
        Lock("A", 110),
        Lock("A", 110),
        LockMeta("A", 110, "two"),
        Extend("A", 100),
        ExtendGt("A", 100),
        Lock("B", 100),
        Downgrade("A", 100),
        Downgrade("A", 110),
        Rlock("B", 100),
        RlockMeta("B", 100, "three"),
        Runlock("B"),
        Upgrade("A", 100),
        Upgrade("A", 120),
        ReleaseAny("A"),
    ] {
        act(&mut manager, &mut store, 1_000, what).expect("no error");
    }
    let events = store.records.iter().filter_map(|record| match record {
        Record::Effect { event, .. } => Some(*event),
        _ => None,
    });
    use Event as E;
    let held = [E::Lock, E::Extend, E::Extend, E::Extend, E::Downgrade, E::Extend];
    let read = [E::Rlock, E::Extend, E::Runlock, E::Upgrade, E::Extend, E::Unlock];
    assert_eq!(events.collect::<Vec<_>>(), [held, read].concat());
}

#[test]
fn fences_rise_though_the_clock_steps_back() {
    run(&[
        (1, 1_000, Lock("A", 10), Fence(1_000_000)),
        (2, 1_001, Unlock("A"), Yes),
        (3, 900, Lock("A", 10), Fence(1_000_001)),
        (4, 900, Unlock("A"), Yes),
        (5, 900, Rlock("A", 10), Fence(1_000_002)),
        (6, 800, Rlock("B", 10), Fence(1_000_003)),
        (7, 805, Runlock("A"), Yes),
        (8, 805, Upgrade("B", 10), Fence(1_000_004)),
        (9, 806, Downgrade("B", 10), Fence(1_000_005)),
        (10, 999, Lock("C", 10), Fence(1_000_006)),
        (11, 1_001, Unlock("C"), Yes),
        (12, 1_001, Lock("C", 10), Fence(1_001_000)),
    ]);
}

#[test]
fn a_deadline_that_passed_counts_again_if_the_clock_steps_back_before_anything_changed() {
    run(&[
        (1, 1_000, Lock("A", 10), Fence(1_000_000)),
        (2, 1_010, Pttl("A"), No),
        (3, 1_005, Pttl("A"), Number(5)),
        (4, 1_005, Lock("B", 10), No),
        (5, 1_010, Lock("B", 10), Fence(1_010_000)),
        (6, 1_005, Pttl("A"), No),
        (7, 1_005, Pttl("B"), Number(15)),
    ]);
}

#[test]
fn a_fence_is_the_last_one_plus_one_or_the_time_in_microseconds() {
    let mut fences = Fences::default();
    let us = |unix_us| Timestamp::new(unix_us, 77);
    assert_eq!(fences.last(), 0);
    let cases = [
        // (moment in µs, the fence that is given)
        (0, 1),
        (1_000_000, 1_000_000),
        (1_000_000, 1_000_001),
        (1_000_001, 1_000_002),
        (1_000_500, 1_000_500),
        (999_000, 1_000_501),
        (0, 1_000_502),
        (1_000_502, 1_000_503),
        (1_000_504, 1_000_504),
    ];
    for (number, (now_us, fence)) in cases.into_iter().enumerate() {
        assert_eq!(fences.next(us(now_us)), Some(fence), "case {number}");
        assert_eq!(fences.last(), fence, "case {number}");
    }
    for (seen, last, next) in [(5_000_000, 5_000_000, 5_000_001), (4_000_000, 5_000_001, 5_000_002)] {
        fences.see(seen);
        assert_eq!((fences.last(), fences.next(us(1_000))), (last, Some(next)), "what is lower is no news");
    }
    assert_eq!((us(1_999).unix_ms(), us(2_000).unix_ms()), (1, 2), "milliseconds are rounded down");
}
