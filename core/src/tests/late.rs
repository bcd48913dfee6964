//! Commands that come late: a fence says which hold they mean, nothing but an extension ends a hold earlier, and a
//! token whose acquisition was ended gets no new hold.

use super::memory_store::{MemoryStore, id};
use super::scene::{READ, Scene, TTL_MS, UPGRADE, WRITE, ms, one, several};
use crate::error::LockError;
use crate::ids::{HoldRef, LockIdRef};
use crate::request::{AcquireOutcome, Extension, WaitPolicy};
use crate::revoked_tokens::{ENTRIES, RevokedTokens};

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
fn the_end_of_an_acquisition_withdraws_releases_and_revokes() {
    let mut scene = Scene::new();
    scene.takes("a", "H", WRITE);
    scene.takes("b", "A", READ);
    scene.waits("a", "A", WRITE);
    scene.waits("c a", "A", READ);
    scene.waits("a", "B", WRITE);
    scene.waits("b", "C", WRITE);
    assert_eq!(scene.ends("a b", "A", 100), 1);
    assert_eq!(scene.news(), ["A timed out", "A timed out", "C granted"]);
    assert_eq!((scene.held("b"), scene.queue("a")), (vec!["C writes".to_owned()], vec!["B".to_owned()]));
    assert_eq!(scene.manager.counters.cancels, 2);
    let refused = |left_ms| Err(LockError::Revoked(left_ms));
    scene.now_ms += 1;
    for (names, wait) in
        [("a", WaitPolicy::Forever), ("c b", WaitPolicy::Timeout(5)), ("a", WaitPolicy::NoWait)]
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
    scene.takes("c", "A", WRITE);
    scene.takes("a", "B", WRITE);
    scene.releases("a", "B");
    assert_eq!(scene.manager.counters.revoked_requests, 7);
    scene.now_ms += 98;
    assert_eq!(scene.asks("a", "A", WRITE, TTL_MS, WaitPolicy::NoWait), refused(1));
    scene.now_ms += 1;
    scene.takes("a", "A", WRITE);
}

#[test]
fn repeated_while_the_token_is_revoked_the_end_replies_as_it_did_first() {
    let mut scene = Scene::new();
    scene.takes("a b", "A", WRITE);
    scene.takes("c", "B", WRITE);
    assert_eq!(scene.ends("a b c", "A", 100), 2);
    let records = scene.store.records.len();
    scene.takes("a", "B", WRITE);
    scene.now_ms += 60;
    assert_eq!(scene.ends("a b c", "A", 100), 2);
    scene.now_ms += 60;
    assert_eq!(scene.ends("a b c", "A", 1), 2, "a repetition revokes for longer");
    assert_eq!((scene.ends("a", "A", 1), scene.ends("c", "A", 1), scene.ends("c d", "A", 1)), (1, 0, 0));
    assert_eq!(scene.releases_all("a b c", "A"), 0, "a release counts what it has released itself");
    assert_eq!(scene.store.records.len(), records + 1, "only B has changed anything");
    scene.now_ms += 40;
    assert_eq!(scene.ends("a b c", "A", 1), 0, "its time was up");
}

#[test]
fn the_end_changes_nothing_if_one_of_the_names_has_another_type() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.takes("b", "B", WRITE);
    scene.waits("b", "A", WRITE);
    scene.happens("c", MemoryStore::replace_by_other_type);
    let (now, names): (_, [&[u8]; 3]) = (scene.now(), [b"a", b"b", b"c"]);
    let ended = scene.manager.end(several(&mut scene.store, now, 0, &names), b"A", 100);
    assert_eq!(ended, Err(LockError::WrongType));
    assert_eq!((scene.held("a"), scene.queue("b")), (vec!["A writes".to_owned()], vec!["A".to_owned()]));
    scene.takes("d", "A", WRITE);
    scene.releases("b", "B");
    assert_eq!(scene.news(), ["A granted"]);
}

fn lock(db: i32, name: &[u8]) -> LockIdRef<'_> {
    LockIdRef { db, name }
}

#[test]
fn a_token_is_revoked_for_one_name_of_one_database() {
    let mut revoked = RevokedTokens::default();
    assert!(!revoked.revoke(lock(0, b"a"), b"bc", ms(10), 10, false));
    for (db, name, token, left_ms) in [
        (0, &b"a"[..], &b"bc"[..], Some(5)),
        (1, b"a", b"bc", None),
        (0, b"ab", b"c", None),
        (0, b"a", b"b", None),
        (0, b"", b"abc", None),
    ] {
        assert_eq!(revoked.left_ms(lock(db, name), token, ms(15)), left_ms);
    }
    assert_eq!(revoked.left_ms(lock(0, b"a"), b"bc", ms(20)), None);
}

#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn the_table_of_revoked_tokens_does_not_grow_and_counts_what_it_forgets() {
    let mut revoked = RevokedTokens::default();
    let token = |number: usize| number.to_be_bytes();
    let is_revoked =
        |revoked: &RevokedTokens, number| revoked.left_ms(lock(0, b"a"), &token(number), ms(10)).is_some();
    for number in 0..ENTRIES {
        assert!(!revoked.revoke(lock(0, b"a"), &token(number), ms(10), 90, false));
        assert!(is_revoked(&revoked, number), "the last one is always there");
    }
    let left = (0..ENTRIES).filter(|number| is_revoked(&revoked, *number)).count();
    assert_eq!(left + revoked.overwritten as usize, ENTRIES);
    assert!(left > ENTRIES / 2, "{left} are left");
    // One whose time is up is not forgotten, but over.
    let before = revoked.overwritten;
    (0..100).for_each(|number| _ = revoked.revoke(lock(0, b"b"), &token(number), ms(100), 0, false));
    assert_eq!(revoked.overwritten, before);
}
