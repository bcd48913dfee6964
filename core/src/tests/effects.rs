//! Effects on locks they were not decided for: a stream that is loaded again, or onto a later copy.
//!
//! On a primary an effect always fits. A copy may be further on, or the stream may begin in the
//! middle; then the newer word counts, and what comes of it is still a consistent lock.

use crate::effect::{Change, Effect};
use crate::format::{decode, encode};
use crate::lock::Lock;
use crate::mode::Mode;
use crate::mode::Mode::{Read, Write};

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

/// Asserts who holds the lock that these effects lead to: each with its mode, fence and deadline.
#[track_caller]
fn lead_to(effects: &[Effect<'_>], expected: &[&str]) {
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
    let named = lock.iter().flat_map(|lock| lock.holders().map(move |holder| (lock.mode(), holder)));
    let named = named.map(|(mode, holder)| {
        let token = String::from_utf8_lossy(holder.token());
        format!("{token} {mode:?} {} to {}", holder.fence, holder.deadline_ms)
    });
    assert_eq!(named.collect::<Vec<_>>(), expected);
}

#[test]
fn a_hold_makes_a_lock_and_the_last_release_leaves_none() {
    lead_to(&[hold(Write, "A", 1, 200)], &["A Write 1 to 200"]);
    lead_to(&[extend("A", 300)], &[]);
    lead_to(&[release("A")], &[]);
    lead_to(&[hold(Write, "A", 1, 200), release("A")], &[]);
    lead_to(&[hold(Read, "A", 1, 200), hold(Read, "B", 2, 200), release("B"), release("A")], &[]);
}

#[test]
fn a_writer_replaces_who_is_there_and_a_reader_joins_readers() {
    let writer = hold(Write, "C", 3, 300);
    lead_to(&[hold(Read, "A", 1, 200), hold(Read, "B", 2, 200), writer], &["C Write 3 to 300"]);
    lead_to(&[hold(Write, "A", 1, 200), writer], &["C Write 3 to 300"]);
    lead_to(&[hold(Write, "A", 1, 200), hold(Read, "B", 2, 200)], &["B Read 2 to 200"]);
    lead_to(&[hold(Read, "A", 1, 200), hold(Read, "B", 2, 300)], &["A Read 1 to 200", "B Read 2 to 300"]);
}

#[test]
fn the_same_token_again_is_one_hold() {
    lead_to(&[hold(Read, "A", 1, 200), hold(Read, "A", 2, 300)], &["A Read 2 to 300"]);
    lead_to(&[hold(Read, "A", 2, 200), hold(Read, "A", 1, 300)], &["A Read 1 to 300"]);
    lead_to(&[hold(Write, "A", 1, 200), hold(Read, "A", 2, 300)], &["A Read 2 to 300"]);
    // A fence that another token has goes to the newer word.
    lead_to(
        &[hold(Read, "A", 1, 200), hold(Read, "B", 2, 200), hold(Read, "C", 1, 300)],
        &["C Read 1 to 300", "B Read 2 to 200"],
    );
    for speaks_of_nobody in [extend("B", 900), release("B")] {
        lead_to(&[hold(Read, "A", 1, 200), speaks_of_nobody], &["A Read 1 to 200"]);
    }
}

#[test]
fn holders_that_had_ended_when_an_effect_was_decided_go_with_it() {
    let [a, b, c] = ["A Read 1 to 150", "B Read 2 to 200", "C Read 3 to 300"];
    for (at_ms, effect, expected) in [
        (149, extend("C", 300), &[a, b, c][..]),
        (150, extend("C", 300), &[b, c]),
        (200, extend("C", 300), &[c]),
        // It had ended and stays so.
        (200, extend("B", 900), &[c]),
        (200, release("B"), &[c]),
        (300, release("B"), &[]),
        // No moment, nobody goes.
        (0, extend("C", 300), &[a, b, c]),
    ] {
        let readers = [hold(Read, "A", 1, 150), hold(Read, "B", 2, 200), hold(Read, "C", 3, 300)];
        lead_to(&[&readers[..], &[Effect { at_ms, ..effect }]].concat(), expected);
    }
}

/// Two locks are equal when they have the same mode and the same holders, live or not.
impl PartialEq for Lock {
    fn eq(&self, other: &Self) -> bool {
        self.mode() == other.mode() && self.len() == other.len() && self.holders().eq(other.holders())
    }
}

impl Eq for Lock {}
