//! Effects on locks they were not decided for: a stream that is loaded again, or onto a later copy.
//!
//! On a primary an effect always fits. A copy may be further on, or the stream may begin in the
//! middle; then the newer word counts, and what comes of it is still a consistent lock.

use crate::effect::{Change, Effect};
use crate::format::{decode, encode};
use crate::lock::Lock;
use crate::mode::Mode;

fn hold(mode: Mode, token: &'static str, fence: u64, deadline_ms: u64) -> Effect<'static> {
    let token = token.as_bytes();
    Effect { at_ms: 100, change: Change::Hold { mode, token, fence, since_ms: 100, deadline_ms, meta: b"" } }
}

fn extend(token: &'static str, deadline_ms: u64) -> Effect<'static> {
    Effect { at_ms: 100, change: Change::Extend { token: token.as_bytes(), deadline_ms } }
}

fn release(token: &'static str) -> Effect<'static> {
    Effect { at_ms: 100, change: Change::Release { token: token.as_bytes() } }
}

/// Who holds the lock that these effects lead to, and how.
fn result(effects: &[Effect<'_>]) -> Vec<String> {
    let mut lock: Option<Lock> = None;
    for effect in effects {
        lock = match lock.take() {
            None => Lock::born_of(effect),
            Some(mut lock) => (!lock.apply(effect).is_empty).then_some(lock),
        };
        if let Some(lock) = &lock {
            assert!(decode(&encode(lock)).as_ref() == Ok(lock), "inconsistent after {effect:?}");
        }
    }
    let Some(lock) = lock else { return Vec::new() };
    let how = if lock.mode() == Mode::Write { "writes" } else { "reads" };
    let named = lock.holders().map(|holder| {
        let token = String::from_utf8_lossy(holder.token());
        format!("{token} {how}, fence {}, to {}", holder.fence, holder.deadline_ms)
    });
    named.collect()
}

const READ: Mode = Mode::Read;
const WRITE: Mode = Mode::Write;

#[test]
fn a_hold_makes_a_lock_and_nothing_else_does() {
    assert_eq!(result(&[hold(WRITE, "A", 1, 200)]), ["A writes, fence 1, to 200"]);
    assert!(result(&[extend("A", 300)]).is_empty());
    assert!(result(&[release("A")]).is_empty());
}

#[test]
fn the_last_release_leaves_no_lock() {
    assert!(result(&[hold(WRITE, "A", 1, 200), release("A")]).is_empty());
    assert!(
        result(&[hold(READ, "A", 1, 200), hold(READ, "B", 2, 200), release("B"), release("A")]).is_empty()
    );
}

#[test]
fn a_writer_replaces_whoever_is_there() {
    let writer = hold(WRITE, "C", 3, 300);
    assert_eq!(
        result(&[hold(READ, "A", 1, 200), hold(READ, "B", 2, 200), writer]),
        ["C writes, fence 3, to 300"]
    );
    assert_eq!(result(&[hold(WRITE, "A", 1, 200), writer]), ["C writes, fence 3, to 300"]);
}

#[test]
fn a_reader_replaces_a_writer_and_joins_readers() {
    assert_eq!(result(&[hold(WRITE, "A", 1, 200), hold(READ, "B", 2, 200)]), ["B reads, fence 2, to 200"]);
    assert_eq!(
        result(&[hold(READ, "A", 1, 200), hold(READ, "B", 2, 300)]),
        ["A reads, fence 1, to 200", "B reads, fence 2, to 300"]
    );
}

#[test]
fn the_same_token_again_is_one_hold() {
    assert_eq!(result(&[hold(READ, "A", 1, 200), hold(READ, "A", 2, 300)]), ["A reads, fence 2, to 300"]);
    assert_eq!(result(&[hold(READ, "A", 2, 200), hold(READ, "A", 1, 300)]), ["A reads, fence 1, to 300"]);
    assert_eq!(result(&[hold(WRITE, "A", 1, 200), hold(READ, "A", 2, 300)]), ["A reads, fence 2, to 300"]);
}

#[test]
fn a_fence_that_another_token_has_goes_to_the_newer_word() {
    assert_eq!(
        result(&[hold(READ, "A", 1, 200), hold(READ, "B", 2, 200), hold(READ, "C", 1, 300)]),
        ["C reads, fence 1, to 300", "B reads, fence 2, to 200"]
    );
}

#[test]
fn what_speaks_of_somebody_who_is_not_there_changes_nothing() {
    let lock = [hold(READ, "A", 1, 200)];
    for effect in [extend("B", 900), release("B")] {
        assert_eq!(result(&[&lock[..], &[effect]].concat()), ["A reads, fence 1, to 200"]);
    }
}

#[test]
fn holders_that_had_ended_when_an_effect_was_decided_go_with_it() {
    let readers = [hold(READ, "A", 1, 150), hold(READ, "B", 2, 200), hold(READ, "C", 3, 300)];
    let later = |at_ms, effect: Effect<'static>| Effect { at_ms, ..effect };
    let result_with = |effect| result(&[&readers[..], &[effect]].concat());
    let (b, c) = ("B reads, fence 2, to 200", "C reads, fence 3, to 300");
    assert_eq!(result_with(later(149, extend("C", 300))).len(), 3);
    assert_eq!(result_with(later(150, extend("C", 300))), [b, c]);
    assert_eq!(result_with(later(200, extend("C", 300))), [c]);
    assert_eq!(result_with(later(200, extend("B", 900))), [c], "it had ended and stays so");
    assert_eq!(result_with(later(200, release("B"))), [c]);
    assert!(result_with(later(300, release("B"))).is_empty());
    assert_eq!(result_with(later(0, extend("C", 300))).len(), 3, "no moment, nobody goes");
}
