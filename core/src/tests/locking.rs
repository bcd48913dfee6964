//! One lock without a queue, step by step.
//!
//! Each table is one story: a row has its moment in milliseconds, what is done to the lock, and what comes of it. Fences
//! are those of the start of the story or later, in microseconds. `no` is a refusal, or that nothing was done.

use std::num::NonZeroU64;

use super::memory_store::{MemoryStore, id};
use super::parts::{READ, UPGRADE, WRITE, changed, ms, request};
use crate::error::LockError;
use crate::fence::Fences;
use crate::ids::HoldRef;
use crate::manager::{LockManager, Operation};
use crate::mode::Mode;
use crate::request::{AcquireOutcome, Extension, Request, WaitPolicy};
use crate::timestamp::Timestamp;

fn run(story: &[(u64, &str, &str)]) {
    let (mut manager, mut store) = (LockManager::default(), MemoryStore::default());
    for (number, &(now_ms, what, expected)) in story.iter().enumerate() {
        let records = store.records.len();
        let before = store.lock(&id("key")).cloned();
        let got = act(&mut manager, &mut store, now_ms, what).unwrap_or_else(|error| format!("{error:?}"));
        assert_eq!(got, expected, "row {number} at {now_ms} ms: {what}");
        let has_changed = store.lock(&id("key")) != before.as_ref();
        let has_effect = store.records.len() > records;
        assert_eq!(has_effect, has_changed, "row {number}: an effect if and only if it did something");
    }
    store.assert_rebuilt_by_records();
}

/// Of the words of a command, without the key: `LOCK token ms`, and maybe `XX`, `GT`, `META text` and `FENCE number`. What
/// is no command is a question: how long a token holds (`PTTL`), and so on.
fn act(
    manager: &mut LockManager,
    store: &mut MemoryStore,
    now_ms: u64,
    what: &str,
) -> Result<String, LockError> {
    let words: Vec<&str> = what.split(' ').collect();
    let [command, token] = [words[0], words[1]];
    let ttl_ms = words.get(2).and_then(|word| word.parse().ok()).unwrap_or(0);
    let at = |option: &str| words.iter().position(|word| *word == option);
    let meta = at("META").map(|at| words[at + 1].as_bytes());
    let fence = at("FENCE").map(|at| words[at + 1].parse().unwrap());
    let (now, key) = (ms(now_ms), id("key"));
    let names = [&*key.name];
    let hold = HoldRef { token: token.as_bytes(), fence };
    let yes = |done: bool| Ok((if done { "yes" } else { "no" }).to_owned());
    let want = match command {
        "LOCK" => WRITE,
        "RLOCK" => READ,
        "UPGRADE" => UPGRADE,
        "UNLOCK" | "RUNLOCK" | "MUNLOCK" => {
            let mode = match command {
                "UNLOCK" => Some(Mode::Write),
                "RUNLOCK" => Some(Mode::Read),
                _ => None,
            };
            return yes(manager.release(Operation::new(store, now, 0, &names), hold, mode)? == 1);
        }
        "EXTEND" => {
            let to = if at("GT").is_some() { Extension::AtLeastTo(ttl_ms) } else { Extension::To(ttl_ms) };
            return yes(manager.extend(Operation::new(store, now, 0, &names), hold, to)?);
        }
        "DOWNGRADE" => {
            return Ok(manager.downgrade(Operation::new(store, now, 0, &names), hold, ttl_ms)?.to_string());
        }
        _ => {
            let lock = store.lock(&key);
            let Some(own) = lock.and_then(|lock| lock.holder(token.as_bytes(), now_ms)) else {
                return yes(false);
            };
            return Ok(match command {
                "PTTL" => (own.deadline_ms - now_ms).to_string(),
                "SINCE" => own.since_ms().to_string(),
                "META" => String::from_utf8_lossy(own.meta()).into_owned(),
                "HELD-AS" => own.fence.to_string(),
                _ => panic!("{what}"),
            });
        }
    };
    let wait = if at("XX").is_some() { WaitPolicy::OnlyRefresh } else { WaitPolicy::NoWait };
    let asked = changed(Request { wait, ..request(token.as_bytes(), want) }, |claim| {
        (claim.meta, claim.terms.ttl_ms, claim.terms.fence) = (meta, ttl_ms, fence.and_then(NonZeroU64::new));
    });
    match manager.acquire(Operation::new(store, now, 0, &names), &asked)? {
        AcquireOutcome::Granted(fence) => Ok(fence.to_string()),
        AcquireOutcome::Refused => yes(false),
        AcquireOutcome::Waiting(_) => panic!("waits though it would not"),
    }
}

#[test]
fn a_writer_excludes_everybody_and_only_its_token_releases() {
    run(&[
        (1_000, "LOCK A 100", "1000000"),
        (1_001, "LOCK B 100", "no"),
        (1_001, "RLOCK B 100", "no"),
        (1_001, "PTTL A", "99"),
        (1_001, "PTTL B", "no"),
        (1_001, "UNLOCK B", "no"),
        (1_001, "RUNLOCK A", "no"),
        (1_002, "UNLOCK A", "yes"),
        (1_002, "UNLOCK A", "no"),
        (1_002, "LOCK B 100", "1002000"),
        (1_003, "MUNLOCK B", "yes"),
    ]);
}

#[test]
fn the_same_token_again_refreshes_and_keeps_its_fence() {
    run(&[
        (1_000, "LOCK A 100", "1000000"),
        (1_050, "LOCK A 100", "1000000"),
        (1_050, "PTTL A", "100"),
        (1_050, "SINCE A", "1000"),
        (1_065, "UNLOCK A", "yes"),
        (1_070, "RLOCK A 100", "1070000"),
        (1_080, "RLOCK B 100", "1080000"),
        (1_090, "RLOCK A 100", "1070000"),
        (1_090, "PTTL A", "100"),
        (1_090, "PTTL B", "90"),
        (1_095, "RUNLOCK A", "yes"),
        (1_095, "PTTL A", "no"),
        (1_095, "PTTL B", "85"),
    ]);
}

#[test]
fn a_token_holds_in_one_mode_at_a_time() {
    run(&[
        (1_000, "LOCK A 100", "1000000"),
        (1_001, "RLOCK A 500", "WrongMode(Write)"),
        (1_001, "PTTL A", "99"),
        (1_002, "UNLOCK A", "yes"),
        (1_003, "RLOCK A 100", "1003000"),
        (1_005, "RLOCK B 100", "1005000"),
        (1_006, "LOCK A 500", "WrongMode(Read)"),
        (1_006, "PTTL A", "97"),
        (1_103, "LOCK A 500", "no"),
        (1_105, "LOCK A 500", "1105000"),
    ]);
}

#[test]
fn a_hold_ends_at_its_very_millisecond() {
    run(&[
        (1_000, "LOCK A 50", "1000000"),
        (1_049, "PTTL A", "1"),
        (1_049, "LOCK B 50", "no"),
        (1_050, "PTTL A", "no"),
        (1_050, "UNLOCK A", "no"),
        (1_050, "EXTEND A 50", "no"),
        (1_050, "DOWNGRADE A 50", "NotHeld"),
        (1_050, "LOCK B 50", "1050000"),
        (1_051, "LOCK A 50", "no"),
        (1_100, "LOCK A 1", "1100000"),
        (1_101, "LOCK A 1", "1101000"),
    ]);
}

#[test]
fn extend_sets_the_deadline_in_either_mode_and_may_shorten() {
    run(&[
        (1_000, "EXTEND A 100", "no"),
        (1_000, "LOCK A 100", "1000000"),
        (1_010, "EXTEND A 500", "yes"),
        (1_010, "PTTL A", "500"),
        (1_010, "EXTEND B 500", "no"),
        (1_020, "EXTEND A 5", "yes"),
        (1_024, "HELD-AS A", "1000000"),
        (1_025, "EXTEND A 5", "no"),
        (1_030, "RLOCK A 100", "1030000"),
        (1_030, "RLOCK B 100", "1030001"),
        (1_040, "EXTEND A 7", "yes"),
        (1_040, "PTTL A", "7"),
        (1_040, "PTTL B", "90"),
        (1_047, "PTTL A", "no"),
    ]);
}

#[test]
fn upgrade_makes_the_only_reader_the_writer_with_a_new_fence() {
    run(&[
        (1_000, "UPGRADE A 100", "NotHeld"),
        (1_000, "RLOCK A 100 META mine", "1000000"),
        (1_000, "RLOCK B 50", "1000001"),
        (1_001, "UPGRADE A 100", "no"),
        (1_001, "UPGRADE C 100", "NotHeld"),
        (1_001, "PTTL A", "99"),
        (1_050, "UPGRADE A 200", "1050000"),
        (1_050, "HELD-AS A", "1050000"),
        (1_050, "PTTL A", "200"),
        (1_050, "SINCE A", "1050"),
        (1_050, "META A", "mine"),
        (1_050, "RLOCK B 50", "no"),
        (1_060, "UPGRADE A 100", "1050000"),
        (1_060, "PTTL A", "190"),
        (1_070, "RUNLOCK A", "no"),
        (1_070, "UNLOCK A", "yes"),
    ]);
}

#[test]
fn downgrade_makes_the_writer_a_reader_with_a_new_fence() {
    run(&[
        (1_000, "DOWNGRADE A 100", "NotHeld"),
        (1_000, "LOCK A 100 META mine", "1000000"),
        (1_001, "DOWNGRADE B 100", "NotHeld"),
        (1_010, "DOWNGRADE A 300", "1010000"),
        (1_010, "PTTL A", "300"),
        (1_010, "SINCE A", "1010"),
        (1_010, "META A", "mine"),
        (1_010, "LOCK B 100", "no"),
        (1_010, "RLOCK B 100", "1010001"),
        (1_020, "DOWNGRADE A 100", "1010000"),
        (1_020, "PTTL A", "290"),
        (1_020, "PTTL B", "90"),
        (1_030, "UNLOCK A", "no"),
        (1_030, "RUNLOCK A", "yes"),
    ]);
}

#[test]
fn metadata_is_replaced_if_given_and_else_kept() {
    run(&[
        (1_000, "LOCK A 100 META one", "1000000"),
        (1_001, "LOCK B 100 META other", "no"),
        (1_002, "LOCK A 100", "1000000"),
        (1_003, "EXTEND A 100", "yes"),
        (1_003, "META A", "one"),
        (1_004, "LOCK A 100 META two", "1000000"),
        (1_004, "META A", "two"),
        (1_004, "SINCE A", "1000"),
        (1_005, "LOCK A 100 META ", "1000000"),
        (1_005, "META A", ""),
        (1_006, "LOCK A 4 META old", "1000000"),
        (1_006, "PTTL A", "99"),
        (1_006, "EXTEND A 4", "yes"),
        (1_010, "LOCK A 100", "1010000"),
        (1_010, "META A", ""),
        (1_011, "UNLOCK A", "yes"),
        (1_012, "RLOCK A 100 META read", "1012000"),
        (1_012, "RLOCK B 100", "1012001"),
        (1_013, "RLOCK A 100 META again", "1012000"),
        (1_013, "META A", "again"),
        (1_013, "META B", ""),
    ]);
}

#[test]
fn a_fence_means_one_hold_and_no_other() {
    run(&[
        (1_000, "LOCK A 100", "1000000"),
        (1_001, "UNLOCK A FENCE 1", "no"),
        (1_001, "EXTEND A 200 FENCE 1", "no"),
        (1_001, "EXTEND A 200 FENCE 1000000", "yes"),
        (1_001, "RUNLOCK A FENCE 1000000", "no"),
        (1_001, "UNLOCK A FENCE 1000000", "yes"),
        (1_002, "LOCK A 100", "1002000"),
        (1_003, "UNLOCK A FENCE 1000000", "no"),
        (1_003, "EXTEND A 5 FENCE 1000000", "no"),
        (1_003, "DOWNGRADE A 100 FENCE 1000000", "NotHeld"),
        (1_004, "DOWNGRADE A 100 FENCE 1002000", "1004000"),
        (1_005, "DOWNGRADE A 100 FENCE 1002000", "1004000"),
        (1_006, "RUNLOCK A FENCE 1002000", "no"),
        (1_006, "UPGRADE A 100 FENCE 1002000", "NotHeld"),
        (1_007, "UPGRADE A 100 FENCE 1004000", "1007000"),
        (1_008, "UPGRADE A 100 FENCE 1004000", "1007000"),
        (1_009, "UNLOCK A FENCE 1004000", "no"),
        (1_009, "UNLOCK A FENCE 1007000", "yes"),
        (1_010, "RLOCK A 100", "1010000"),
        (1_011, "RUNLOCK A FENCE 1007000", "no"),
        (1_011, "RUNLOCK A FENCE 1010000", "yes"),
    ]);
}

#[test]
fn nothing_but_a_plain_extension_ends_a_hold_earlier() {
    run(&[
        (1_000, "LOCK A 100", "1000000"),
        (1_010, "LOCK A 90", "1000000"),
        (1_010, "LOCK A 89", "1000000"),
        (1_010, "EXTEND A 50 GT", "yes"),
        (1_010, "PTTL A", "90"),
        (1_010, "EXTEND A 91 GT", "yes"),
        (1_010, "PTTL A", "91"),
        (1_010, "DOWNGRADE A 5", "1010000"),
        (1_010, "PTTL A", "91"),
        (1_010, "DOWNGRADE A 5", "1010000"),
        (1_010, "RLOCK A 5", "1010000"),
        (1_010, "PTTL A", "91"),
        (1_010, "UPGRADE A 5", "1010001"),
        (1_010, "UPGRADE A 5", "1010001"),
        (1_010, "PTTL A", "91"),
        (1_010, "EXTEND A 5", "yes"),
        (1_010, "PTTL A", "5"),
        (1_010, "EXTEND B 5 GT", "no"),
    ]);
}

#[test]
fn a_refresh_alone_gives_nothing_new() {
    run(&[
        (1_000, "LOCK A 100 XX", "no"),
        (1_000, "RLOCK A 100 XX", "no"),
        (1_000, "LOCK A 100", "1000000"),
        (1_001, "RLOCK A 200 XX", "no"),
        (1_001, "LOCK B 200 XX", "no"),
        (1_001, "LOCK A 200 XX", "1000000"),
        (1_001, "PTTL A", "200"),
        (1_002, "DOWNGRADE A 5", "1002000"),
        (1_002, "LOCK A 200 XX", "no"),
        (1_002, "RLOCK A 300 XX", "1002000"),
        (1_302, "RLOCK A 300 XX", "no"),
    ]);
}

#[test]
fn fences_rise_though_the_clock_steps_back() {
    run(&[
        (1_000, "LOCK A 10", "1000000"),
        (1_001, "UNLOCK A", "yes"),
        (900, "LOCK A 10", "1000001"),
        (900, "UNLOCK A", "yes"),
        (900, "RLOCK A 10", "1000002"),
        (800, "RLOCK B 10", "1000003"),
        (805, "RUNLOCK A", "yes"),
        (805, "UPGRADE B 10", "1000004"),
        (806, "DOWNGRADE B 10", "1000005"),
        (999, "LOCK C 10", "1000006"),
        (1_001, "UNLOCK C", "yes"),
        (1_001, "LOCK C 10", "1001000"),
    ]);
}

#[test]
fn a_fence_is_the_last_one_plus_one_or_the_time_in_microseconds() {
    let mut fences = Fences::default();
    let us = |unix_us| Timestamp::new(unix_us, 77);
    assert_eq!(fences.last(), 0);
    // The moment in microseconds, and the fence that is given.
    for (now_us, fence) in [
        (0, 1),
        (1_000_000, 1_000_000),
        (1_000_000, 1_000_001),
        (1_000_001, 1_000_002),
        (1_000_500, 1_000_500),
        (999_000, 1_000_501),
        (0, 1_000_502),
        (1_000_502, 1_000_503),
        (1_000_504, 1_000_504),
    ] {
        assert_eq!((fences.next(us(now_us)), fences.last()), (Some(fence), fence));
    }
    for (seen, last, next) in [(5_000_000, 5_000_000, 5_000_001), (4_000_000, 5_000_001, 5_000_002)] {
        fences.see(seen);
        assert_eq!((fences.last(), fences.next(us(1_000))), (last, Some(next)), "what is lower is no news");
    }
    assert_eq!((us(1_999).unix_ms(), us(2_000).unix_ms()), (1, 2), "milliseconds are rounded down");
}
