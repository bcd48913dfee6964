//! Commands that come late: a fence says which hold they mean, nothing but an extension ends a hold earlier, and who
//! has given up gets nothing anew.

use super::memory_store::{MemoryStore, id};
use super::scene::{READ, Scene, TTL_MS, UPGRADE, WRITE, one, several};
use crate::error::LockError;
use crate::ids::{HoldRef, LockIdRef};
use crate::refused_tokens::{REFUSED_TOKENS_MAX, RefusedTokens};
use crate::request::{AcquireOutcome, Extension, WaitPolicy};

/// Asks to refresh only: the fence, or `None`.
fn refreshes(scene: &mut Scene, names: &str, token: &str, want: crate::mode::Want) -> Option<u64> {
    match scene.asks(names, token, want, TTL_MS, WaitPolicy::OnlyRefresh) {
        Ok(AcquireOutcome::Granted(fence)) => Some(fence),
        Ok(AcquireOutcome::Refused) => None,
        other => panic!("{token} asked to refresh {names} and got {other:?}"),
    }
}

#[test]
fn with_a_fence_only_those_of_several_holds_are_released_that_have_it() {
    let mut scene = Scene::new();
    let first = scene.takes("a b", "A", WRITE);
    scene.takes("c", "A", READ);
    scene.releases("b", "A");
    let second = scene.takes("b", "A", WRITE);
    scene.fence = Some(first);
    assert_eq!(scene.releases_all("a b c d", "A"), 1);
    assert_eq!((scene.held("a").len(), scene.held("b").len(), scene.held("c").len()), (0, 1, 1));
    scene.fence = Some(second);
    assert_eq!(scene.releases_all("a b c d", "A"), 1);
    assert_eq!(scene.held("c"), ["A reads"]);
}

#[test]
fn with_a_fence_all_of_several_holds_are_extended_that_have_it_or_none() {
    let mut scene = Scene::new();
    let fence = scene.takes_for("a b", "A", WRITE, 100);
    scene.takes_for("c", "A", WRITE, 100);
    let now = scene.now();
    for (names, fence, extended, left_ms) in [
        (&[&b"a"[..], b"b"][..], fence + 1, false, 100),
        (&[b"a", b"b", b"c"], fence, false, 100),
        (&[b"a", b"b"], fence, true, 70),
    ] {
        let hold = HoldRef { token: b"A", fence: Some(fence) };
        let records = scene.store.records.len();
        assert_eq!(
            scene.manager.extend(several(&mut scene.store, now, 0, names), hold, Extension::To(70)),
            Ok(extended)
        );
        assert_eq!(scene.store.records.len() > records, extended);
        assert_eq!(scene.hold("a", "A").unwrap().deadline_ms - scene.wall_ms(), left_ms);
    }
    assert_eq!(scene.hold("c", "A").unwrap().deadline_ms - scene.wall_ms(), 100);
}

/// Each of the holds moves by itself; where none moves there is no effect.
#[test]
fn an_extension_to_at_least_never_ends_a_hold_earlier() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", WRITE, 100);
    scene.takes_for("b", "A", READ, 300);
    let now = scene.now();
    for (ttl_ms, left_ms, effects) in [(50, [100, 300], 0), (200, [200, 300], 1), (400, [400, 400], 2)] {
        let records = scene.store.records.len();
        let (names, to): ([&[u8]; 2], _) = ([b"a", b"b"], Extension::AtLeastTo(ttl_ms));
        assert_eq!(
            scene.manager.extend(several(&mut scene.store, now, 0, &names), HoldRef::of(b"A"), to),
            Ok(true)
        );
        assert_eq!(scene.store.records.len() - records, effects);
        let left = ["a", "b"].map(|name| scene.hold(name, "A").unwrap().deadline_ms - scene.wall_ms());
        assert_eq!(left, left_ms);
    }
}

/// Not even a new hold of several names, one of which the token holds already.
#[test]
fn no_grant_ends_a_hold_of_its_token_earlier() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", WRITE, 900);
    let fence = scene.takes_for("a b", "A", WRITE, 100);
    assert_eq!(scene.hold("a", "A").unwrap().fence, fence);
    let left = ["a", "b"].map(|name| scene.hold(name, "A").unwrap().deadline_ms - scene.wall_ms());
    assert_eq!(left, [900, 100]);
    scene.takes("c", "B", WRITE);
    scene.waits_with("a c", "A", WRITE, 100, WaitPolicy::Forever);
    scene.releases("c", "B");
    assert_eq!(scene.news(), ["A granted"]);
    assert_eq!(scene.hold("a", "A").unwrap().deadline_ms - scene.wall_ms(), 900);
}

#[test]
fn a_refresh_alone_needs_one_hold_of_all_names_in_its_mode() {
    let mut scene = Scene::new();
    let fence = scene.takes("a b", "A", WRITE);
    let other = scene.takes("c", "A", WRITE);
    scene.takes("d", "A", READ);
    scene.waits("a", "W", WRITE);
    let records = scene.store.records.len();
    for (names, want) in [
        ("e", WRITE),
        ("a b c", WRITE),
        ("a e", WRITE),
        ("e a", WRITE),
        ("a", READ),
        ("d", WRITE),
        ("a d", WRITE),
    ] {
        assert_eq!(refreshes(&mut scene, names, "A", want), None, "{names}");
        assert_eq!(refreshes(&mut scene, names, "W", want), None, "{names}");
    }
    assert_eq!(scene.store.records.len(), records, "refused, it changes nothing");
    assert_eq!(scene.manager.counters.refusals, 0, "it did not stand in anybody's way");
    scene.starts_grace(100);
    assert_eq!(refreshes(&mut scene, "e", "A", WRITE), None, "nor does it wait for the end of the grace");
    scene.now_ms += 1;
    assert_eq!(refreshes(&mut scene, "b a", "A", WRITE), Some(fence));
    assert_eq!(refreshes(&mut scene, "c", "A", WRITE), Some(other));
    assert_eq!(scene.hold("a", "A").unwrap().deadline_ms, scene.wall_ms() + TTL_MS);
    scene.happens("e", MemoryStore::replace_by_other_type);
    assert_eq!(scene.asks("a e", "A", WRITE, 9, WaitPolicy::OnlyRefresh), Err(LockError::WrongType));
}

#[test]
fn an_upgrade_with_a_fence_means_that_hold_or_refreshes_the_writer() {
    let mut scene = Scene::new();
    let read = scene.takes("a", "A", READ);
    scene.fence = Some(read + 1);
    assert_eq!(scene.is_refused("a", "A", UPGRADE), LockError::NotHeld);
    assert_eq!(scene.held("a"), ["A reads"]);
    scene.fence = Some(read);
    let written = scene.takes("a", "A", UPGRADE);
    assert_eq!(scene.takes("a", "A", UPGRADE), written, "repeated, it tells the new fence");
}

#[test]
fn a_downgrade_with_a_fence_means_that_hold_or_refreshes_the_reader() {
    let mut scene = Scene::new();
    let written = scene.takes("a", "A", WRITE);
    let now = scene.now();
    let mut downgrade = |fence| {
        let hold = HoldRef { token: b"A", fence: Some(fence) };
        scene.manager.downgrade(one(&mut scene.store, now, &id("a").as_ref()), hold, TTL_MS)
    };
    assert_eq!(downgrade(written + 1), Err(LockError::NotHeld));
    let read = downgrade(written).unwrap();
    assert!(read > written);
    assert_eq!(downgrade(written), Ok(read), "repeated, it tells the new fence");
}

/// By another grant of the token the hold that was to be upgraded has become another one.
#[test]
fn a_waiting_upgrade_looks_at_its_fence_again_at_the_grant() {
    for names_fence in [false, true] {
        let mut scene = Scene::new();
        let fence = scene.takes("a", "A", READ);
        scene.takes("a", "B", READ);
        scene.takes("b", "C", WRITE);
        scene.fence = Some(fence).filter(|_| names_fence);
        scene.waits("a", "A", UPGRADE);
        scene.fence = None;
        scene.waits("a b", "A", READ);
        scene.releases("b", "C");
        assert_ne!(scene.hold("a", "A").unwrap().fence, fence);
        assert_eq!(scene.news(), if names_fence { &["A granted", "A NotHeld"][..] } else { &["A granted"] });
        scene.releases("a", "B");
        assert_eq!(scene.news(), if names_fence { &[][..] } else { &["A granted"] });
    }
}

#[test]
fn who_has_given_up_gets_nothing_anew_and_keeps_what_it_holds() {
    let mut scene = Scene::new();
    scene.takes("a", "H", WRITE);
    scene.waits("a", "A", WRITE);
    scene.waits("b a", "A", READ);
    scene.waits("a", "B", WRITE);
    assert_eq!(scene.gives_up("a", "A", 100), 2);
    assert_eq!(scene.news(), ["A timed out", "A timed out"]);
    let refused = |left_ms| Err(LockError::Cancelled(left_ms));
    scene.now_ms += 1;
    for (names, wait) in
        [("a", WaitPolicy::Forever), ("b a", WaitPolicy::Timeout(5)), ("a", WaitPolicy::NoWait)]
    {
        for want in [READ, WRITE] {
            assert_eq!(scene.asks(names, "A", want, TTL_MS, wait), refused(99), "{names}");
        }
    }
    scene.releases("a", "H");
    assert_eq!(scene.news(), ["B granted"]);
    scene.releases("a", "B");
    assert_eq!(scene.asks("a", "A", WRITE, TTL_MS, WaitPolicy::NoWait), refused(99), "free or not");
    assert_eq!(refreshes(&mut scene, "a", "A", WRITE), None);
    scene.takes("b", "A", WRITE);
    scene.takes("a", "B", WRITE);
    scene.releases("a", "B");
    assert_eq!(scene.manager.counters.cancelled, 7);
    scene.now_ms += 98;
    assert_eq!(scene.asks("a", "A", WRITE, TTL_MS, WaitPolicy::NoWait), refused(1));
    scene.now_ms += 1;
    scene.takes("a", "A", WRITE);
}

#[test]
fn a_refused_holder_refreshes_extends_downgrades_and_releases_and_does_not_upgrade() {
    let mut scene = Scene::new();
    let fence = scene.takes("a", "A", WRITE);
    scene.gives_up("a", "A", 1_000);
    assert_eq!(scene.takes("a", "A", WRITE), fence);
    assert_eq!(scene.takes("a", "A", UPGRADE), fence, "a refresh too");
    assert!(scene.extends("a", "A", 900));
    let read = scene.downgrades("a", "A");
    assert_eq!(scene.takes("a", "A", READ), read);
    assert_eq!(scene.is_refused("a", "A", UPGRADE), LockError::Cancelled(1_000));
    assert_eq!(scene.is_refused("a b", "A", READ), LockError::Cancelled(1_000), "which would give it a anew");
    scene.releases("a", "A");
    assert_eq!(scene.is_refused("a", "A", READ), LockError::Cancelled(1_000));
    assert_eq!(scene.gives_up("a", "A", 10), 0);
    assert_eq!(
        scene.is_refused("a", "A", READ),
        LockError::Cancelled(1_000),
        "it does not end earlier either"
    );
}

fn lock(db: i32, name: &[u8]) -> LockIdRef<'_> {
    LockIdRef { db, name }
}

#[test]
fn a_refusal_is_for_one_token_at_one_name_of_one_database() {
    let mut refused = RefusedTokens::default();
    assert!(!refused.insert(lock(0, b"a"), b"bc", 10, 20));
    for (db, name, token, left_ms) in [
        (0, &b"a"[..], &b"bc"[..], Some(5)),
        (1, b"a", b"bc", None),
        (0, b"ab", b"c", None),
        (0, b"a", b"b", None),
        (0, b"", b"abc", None),
    ] {
        assert_eq!(refused.left_ms(lock(db, name), token, 15), left_ms);
    }
    assert_eq!(refused.left_ms(lock(0, b"a"), b"bc", 20), None);
    assert_eq!(refused.len(), 1);
    refused.drop_ended(19, 5);
    assert_eq!(refused.len(), 1);
    refused.drop_ended(20, 5);
    assert!(refused.is_empty());
}

#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn of_too_many_refusals_those_that_have_ended_go_first_and_then_the_oldest() {
    let mut refused = RefusedTokens::default();
    let token = |number: usize| number.to_be_bytes();
    for number in 0..REFUSED_TOKENS_MAX {
        assert!(!refused.insert(lock(0, b"a"), &token(number), 0, if number == 7 { 50 } else { 100 }));
    }
    assert!(!refused.insert(lock(0, b"a"), &token(0), 0, 100), "the first is the youngest now");
    assert_eq!(refused.len(), REFUSED_TOKENS_MAX);
    assert!(!refused.insert(lock(0, b"b"), b"one more", 50, 100), "the eighth had ended");
    assert!(refused.insert(lock(0, b"b"), b"another", 50, 100));
    assert_eq!(refused.len(), REFUSED_TOKENS_MAX);
    let is_refused = |number| refused.left_ms(lock(0, b"a"), &token(number), 60).is_some();
    assert_eq!([0, 1, 2, 7].map(is_refused), [true, false, true, false]);
}
