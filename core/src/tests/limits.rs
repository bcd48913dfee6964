//! Nothing is given, and no deadline is set, that a stored lock could not carry.

use super::memory_store::{MemoryStore, id};
use super::scene::{TestClients, changed, one, request, several, whole_turn};
use crate::error::LockError;
use crate::fence::Fences;
use crate::format::{decode, encode};
use crate::ids::HoldRef;
use crate::limits::NUMBER_MAX;
use crate::manager::LockManager;
use crate::mode::{Mode, Want};
use crate::request::{AcquireOutcome, Extension, WaitResult};
use crate::time::Timestamp;

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

/// What is asked of a lock that A holds.
type Ask = fn(&mut LockManager, &mut MemoryStore, Timestamp, u64) -> Result<bool, LockError>;

fn acquire(
    manager: &mut LockManager,
    store: &mut MemoryStore,
    now: Timestamp,
    names: &[&[u8]],
    token: &[u8],
    want: Want,
    ttl_ms: u64,
) -> Result<bool, LockError> {
    let asked = changed(request(token, want), |claim| claim.terms.ttl_ms = ttl_ms);
    manager
        .acquire(several(store, now, 0, names), &asked)
        .map(|outcome| matches!(outcome, AcquireOutcome::Granted(_)))
}

const WRITE: Want = Want::Hold(Mode::Write);
const READ: Want = Want::Hold(Mode::Read);

#[test]
fn no_operation_goes_beyond_the_greatest_deadline_or_fence() {
    // How A holds `a`, whether the operation gives a fence, and the operation.
    let cases: [(Want, bool, Ask); 8] = [
        (WRITE, true, |m, s, now, ttl_ms| acquire(m, s, now, &[b"b", b"c"], b"B", WRITE, ttl_ms)),
        (WRITE, true, |m, s, now, ttl_ms| acquire(m, s, now, &[b"a", b"c"], b"A", WRITE, ttl_ms)),
        (READ, true, |m, s, now, ttl_ms| acquire(m, s, now, &[b"a"], b"B", READ, ttl_ms)),
        (READ, true, |m, s, now, ttl_ms| acquire(m, s, now, &[b"a"], b"A", Want::Upgrade, ttl_ms)),
        (WRITE, false, |m, s, now, ttl_ms| acquire(m, s, now, &[b"a"], b"A", WRITE, ttl_ms)),
        (WRITE, false, |m, s, now, ttl_ms| {
            m.extend(several(s, now, 0, &[b"a"]), HoldRef::of(b"A"), Extension::To(ttl_ms))
        }),
        (READ, false, |m, s, now, ttl_ms| {
            m.downgrade(one(s, now, &id("a").as_ref()), HoldRef::of(b"A"), ttl_ms).map(|_| true)
        }),
        (WRITE, true, |m, s, now, ttl_ms| {
            m.downgrade(one(s, now, &id("a").as_ref()), HoldRef::of(b"A"), ttl_ms).map(|_| true)
        }),
    ];
    let start_ms = 1_000_000;
    let now = Timestamp::new(start_ms * 1000, 7);
    for (number, (held, gives_fence, ask)) in cases.into_iter().enumerate() {
        let longest_ms = NUMBER_MAX - start_ms;
        for (last_fence, ttl_ms, is_fine) in [
            (NUMBER_MAX - 1, longest_ms, true),
            (NUMBER_MAX - 1, longest_ms + 1, false),
            (NUMBER_MAX - 1, u64::MAX, false),
            (NUMBER_MAX, longest_ms, !gives_fence),
        ] {
            let (mut manager, mut store) = (LockManager::default(), MemoryStore::default());
            acquire(&mut manager, &mut store, now, &[b"a"], b"A", held, 10_000).unwrap();
            manager.fences.see(last_fence);
            let (records, counters) = (store.records.len(), manager.counters.clone());
            let result = ask(&mut manager, &mut store, now, ttl_ms);
            let expected = if is_fine { Ok(true) } else { Err(LockError::OutOfRange) };
            assert_eq!(result, expected, "case {number}, after fence {last_fence}, for {ttl_ms} ms");
            if is_fine {
                for name in ["a", "b", "c"] {
                    let lock = store.lock(&id(name));
                    assert!(lock.is_none_or(|lock| decode(&encode(lock)).as_ref() == Ok(lock)));
                }
            } else {
                assert_eq!((store.records.len(), &manager.counters), (records, &counters), "case {number}");
                assert_eq!(manager.fences.last(), last_fence);
            }
        }
    }
}

#[test]
fn a_waiting_request_that_cannot_be_stored_fails_and_lets_on_those_behind_it() {
    let (mut manager, mut store) = (LockManager::default(), MemoryStore::default());
    let now = Timestamp::new(1_000_000, 7);
    acquire(&mut manager, &mut store, now, &[b"a", b"b"], b"A", WRITE, 10).unwrap();
    let mut waits = |names: &[&[u8]], token, ttl_ms| {
        let asked = changed(request(token, WRITE), |claim| claim.terms.ttl_ms = ttl_ms);
        match manager.acquire(several(&mut store, now, 0, names), &asked) {
            Ok(AcquireOutcome::Waiting(request)) => request,
            other => panic!("{other:?}"),
        }
    };
    let too_long = waits(&[b"a", b"b"], b"B", NUMBER_MAX);
    let fine = waits(&[b"a"], b"C", 1);
    let later = Timestamp::new(1_010_000, 17);
    manager.serve_queues(&mut store, &mut TestClients::default(), &mut whole_turn(later));
    let answers = manager.take_answers(usize::MAX);
    let [(first, failed), (second, granted)] = [0, 1].map(|at| (&answers[at].request, &answers[at].result));
    assert_eq!((first, failed), (&too_long, &WaitResult::Failed(LockError::OutOfRange)));
    assert_eq!((second, granted), (&fine, &WaitResult::Granted(1_010_000)));
    assert_eq!(manager.counters.handoffs, 1);
    manager.fences.see(NUMBER_MAX);
    let asked = request(b"D", WRITE);
    let waiting = manager.acquire(several(&mut store, later, 0, &[b"a"]), &asked);
    assert!(matches!(waiting, Ok(AcquireOutcome::Waiting(_))));
    manager.serve_queues(
        &mut store,
        &mut TestClients::default(),
        &mut whole_turn(Timestamp::new(1_011_000, 18)),
    );
    assert_eq!(
        manager.take_answers(usize::MAX)[0].result,
        WaitResult::Failed(LockError::OutOfRange),
        "no fence is left"
    );
}
