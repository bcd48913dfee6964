//! Nothing is given, and no deadline is set, that a stored lock could not carry.

use super::memory_store::id;
use super::parts::{READ, UPGRADE, WRITE};
use super::scene::{START_MS, Scene};
use crate::error::LockError;
use crate::fence::Fences;
use crate::format::{decode, encode};
use crate::ids::HoldRef;
use crate::limits::NUMBER_MAX;
use crate::manager::Operation;
use crate::mode::Want;
use crate::request::{AcquireOutcome, Extension, WaitPolicy};
use crate::timestamp::Timestamp;

#[test]
fn fences_end_below_2_to_the_53rd() {
    let at = |unix_us| Timestamp::new(unix_us, 0);
    let mut fences = Fences::default();
    assert_eq!(fences.next(at(NUMBER_MAX - 1)), Some(NUMBER_MAX - 1));
    assert_eq!(fences.next(at(NUMBER_MAX + 1)), None, "the year 2255 is over");
    assert_eq!(fences.next(at(5)), Some(NUMBER_MAX), "nothing was used up");
    assert_eq!((fences.next(at(5)), fences.last()), (None, NUMBER_MAX));
    fences.see(u64::MAX);
    assert_eq!(fences.next(at(5)), None);
}

#[test]
fn no_operation_goes_beyond_the_greatest_deadline_or_fence() {
    type Ask = fn(&mut Scene, u64) -> Result<u64, LockError>;
    fn acquires(
        scene: &mut Scene,
        names: &str,
        token: &str,
        want: Want,
        ttl_ms: u64,
    ) -> Result<u64, LockError> {
        let outcome = scene.asks(names, token, want, ttl_ms, WaitPolicy::NoWait);
        outcome.map(|outcome| u64::from(outcome == AcquireOutcome::Refused))
    }
    fn extends(scene: &mut Scene, ttl_ms: u64) -> Result<u64, LockError> {
        let (now, to) = (scene.now(), Extension::To(ttl_ms));
        let extended =
            scene.manager.extend(Operation::new(&mut scene.store, now, 0, &[b"a"]), HoldRef::of(b"A"), to);
        extended.map(|extended| u64::from(!extended))
    }
    fn downgrades(scene: &mut Scene, ttl_ms: u64) -> Result<u64, LockError> {
        let now = scene.now();
        let names = Operation::new(&mut scene.store, now, 0, &[b"a"]);
        scene.manager.downgrade(names, HoldRef::of(b"A"), ttl_ms).map(|_| 0)
    }
    // How A holds `a`, whether the operation gives a fence, and the operation.
    let cases: [(Want, bool, Ask); 8] = [
        (WRITE, true, |scene, ttl_ms| acquires(scene, "b c", "B", WRITE, ttl_ms)),
        (WRITE, true, |scene, ttl_ms| acquires(scene, "a c", "A", WRITE, ttl_ms)),
        (READ, true, |scene, ttl_ms| acquires(scene, "a", "B", READ, ttl_ms)),
        (READ, true, |scene, ttl_ms| acquires(scene, "a", "A", UPGRADE, ttl_ms)),
        (WRITE, false, |scene, ttl_ms| acquires(scene, "a", "A", WRITE, ttl_ms)),
        (WRITE, false, extends),
        (READ, false, downgrades),
        (WRITE, true, downgrades),
    ];
    for (number, (held, gives_fence, ask)) in cases.into_iter().enumerate() {
        let longest_ms = NUMBER_MAX - START_MS;
        for (last_fence, ttl_ms, is_fine) in [
            (NUMBER_MAX - 1, longest_ms, true),
            (NUMBER_MAX - 1, longest_ms + 1, false),
            (NUMBER_MAX - 1, u64::MAX, false),
            (NUMBER_MAX, longest_ms, !gives_fence),
        ] {
            let mut scene = Scene::new();
            scene.takes("a", "A", held);
            scene.manager.fences.see(last_fence);
            let (records, counters) = (scene.store.records.len(), scene.manager.counters.clone());
            let expected = if is_fine { Ok(0) } else { Err(LockError::OutOfRange) };
            let what = format!("case {number}, after fence {last_fence}, for {ttl_ms} ms");
            assert_eq!(ask(&mut scene, ttl_ms), expected, "{what}");
            if is_fine {
                for name in ["a", "b", "c"] {
                    let lock = scene.store.lock(&id(name));
                    assert!(lock.is_none_or(|lock| decode(&encode(lock)).as_ref() == Ok(lock)));
                }
            } else {
                assert_eq!(
                    (scene.store.records.len(), &scene.manager.counters),
                    (records, &counters),
                    "{what}"
                );
                assert_eq!(scene.manager.fences.last(), last_fence);
            }
        }
    }
}

#[test]
fn a_waiting_request_that_cannot_be_stored_fails_and_lets_on_those_behind_it() {
    let mut scene = Scene::after("A writes a b for 10");
    scene.waits_with("a b", "B", WRITE, NUMBER_MAX, WaitPolicy::Forever);
    scene.plays("C waits to write a");
    scene.serves_at(scene.now_ms + 10);
    assert_eq!(scene.news(), ["B OutOfRange", "C granted"]);
    assert_eq!(scene.manager.counters.handoffs, 1);
    scene.manager.fences.see(NUMBER_MAX);
    assert_eq!(scene.plays("D waits to write a; C releases a"), ["D OutOfRange"], "no fence is left");
}
