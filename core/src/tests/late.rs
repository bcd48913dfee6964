//! Commands that come late: a fence says which hold they mean, nothing but an extension ends a hold earlier, and a
//! token whose acquisition was ended gets no new hold. (`locking.rs` has the same of one name, in tables.)

use super::memory_store::MemoryStore;
use super::parts::{READ, TTL_MS, UPGRADE, WRITE, ms};
use super::scene::Scene;
use crate::error::LockError;
use crate::ids::{HoldRef, LockIdRef};
use crate::lock::{Holder, Lock};
use crate::manager::Operation;
use crate::mode::{Mode, Want};
use crate::request::{AcquireOutcome, Extension, WaitPolicy};
use crate::revoked_tokens::{ENTRIES, RevokedTokens};

/// Asks to refresh only: the fence, or `None`.
fn refreshes(scene: &mut Scene, names: &str, token: &str, want: Want) -> Option<u64> {
    match scene.asks(names, token, want, TTL_MS, WaitPolicy::OnlyRefresh) {
        Ok(AcquireOutcome::Granted(fence)) => Some(fence),
        Ok(AcquireOutcome::Refused) => None,
        other => panic!("{token} asked to refresh {names} and got {other:?}"),
    }
}

/// How long the token still holds each of these names.
fn left_ms<const N: usize>(scene: &Scene, names: [&str; N]) -> [u64; N] {
    names.map(|name| scene.hold(name, "A").unwrap().deadline_ms - scene.wall_ms())
}

/// Each of the holds moves by itself; where none moves there is no effect.
#[test]
fn an_extension_to_at_least_never_ends_a_hold_earlier_and_neither_does_a_grant() {
    let mut scene = Scene::after("A writes a for 100; A reads b for 300");
    let now = scene.now();
    for (ttl_ms, left, effects) in [(50, [100, 300], 0), (200, [200, 300], 1), (400, [400, 400], 2)] {
        let records = scene.store.records.len();
        let (names, to): ([&[u8]; 2], _) = ([b"a", b"b"], Extension::AtLeastTo(ttl_ms));
        let names = Operation::new(&mut scene.store, now, 0, &names);
        assert_eq!(scene.manager.extend(names, HoldRef::of(b"A"), to), Ok(true));
        assert_eq!(scene.store.records.len() - records, effects);
        assert_eq!(left_ms(&scene, ["a", "b"]), left);
    }
    let mut scene =
        Scene::after("A writes a for 900; A writes a b for 100; B writes c; A waits to write a c for 100");
    assert_eq!(scene.plays("B releases c"), ["A granted"]);
    assert_eq!(left_ms(&scene, ["a", "b", "c"]), [900, 100, 100]);
}

#[test]
fn a_refresh_alone_needs_one_hold_of_all_names_in_its_mode() {
    let mut scene = Scene::new();
    let fence = scene.takes("a b", "A", WRITE);
    let other = scene.takes("c", "A", WRITE);
    scene.plays("A reads d; W waits to write a");
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
    assert_eq!(left_ms(&scene, ["a"]), [TTL_MS]);
    scene.happens("e", MemoryStore::replace_by_other_type);
    assert_eq!(scene.asks("a e", "A", WRITE, 9, WaitPolicy::OnlyRefresh), Err(LockError::WrongType));
}

/// By another grant of the token the hold that was to be upgraded has become another one.
#[test]
fn a_waiting_upgrade_looks_at_its_fence_again_at_the_grant() {
    for names_fence in [false, true] {
        let mut scene = Scene::new();
        let fence = scene.takes("a", "A", READ);
        scene.plays("B reads a; C writes b");
        scene.fence = Some(fence).filter(|_| names_fence);
        scene.waits("a", "A", UPGRADE);
        scene.fence = None;
        let news = scene.plays("A waits to read a b; C releases b");
        assert_ne!(scene.hold("a", "A").unwrap().fence, fence);
        assert_eq!(news, if names_fence { &["A granted", "A NotHeld"][..] } else { &["A granted"] });
        assert_eq!(scene.plays("B releases a"), if names_fence { &[][..] } else { &["A granted"] });
    }
}

#[test]
fn the_end_of_an_acquisition_withdraws_releases_and_revokes() {
    let mut scene = Scene::after(
        "H writes a; A reads b; A waits to write a; A waits to read c a; B waits to write a; \
         C waits to write b",
    );
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
    assert_eq!(scene.plays("H releases a"), ["B granted"]);
    scene.releases("a", "B");
    assert_eq!(scene.asks("a", "A", WRITE, TTL_MS, WaitPolicy::NoWait), refused(99), "free or not");
    assert_eq!(refreshes(&mut scene, "a", "A", WRITE), None);
    scene.plays("A writes c; B writes a; B releases a");
    assert_eq!(scene.manager.counters.revoked_requests, 7);
    scene.now_ms += 98;
    assert_eq!(scene.asks("a", "A", WRITE, TTL_MS, WaitPolicy::NoWait), refused(1));
    scene.now_ms += 1;
    scene.takes("a", "A", WRITE);
}

/// A key that comes from elsewhere may give a revoked token a hold. It can be refreshed, and not upgraded.
#[test]
fn a_revoked_holder_refreshes_and_gets_nothing_new() {
    let mut scene = Scene::new();
    assert_eq!((scene.ends("a", "A", 100), scene.ends("a", "A", 1)), (0, 0), "the longer one counts");
    let (since_ms, deadline_ms) = (scene.wall_ms(), scene.wall_ms() + 900);
    scene.happens("a", |store, lock| {
        let holder = Holder::new(b"A", b"", 1, since_ms, deadline_ms);
        store.replace(lock, Lock::from_parts(Mode::Read, vec![holder]).unwrap());
    });
    scene.now_ms += 50;
    assert_eq!(scene.tries("a", "A", READ), Some(1));
    let upgraded = scene.asks("a", "A", UPGRADE, TTL_MS, WaitPolicy::NoWait);
    assert_eq!(upgraded, Err(LockError::Revoked(50)));
}

#[test]
fn repeated_while_the_token_is_revoked_the_end_replies_as_it_did_first() {
    let mut scene = Scene::after("A writes a b; B writes c");
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
    let mut scene = Scene::after("A writes a; B writes b; A waits to write b");
    scene.happens("c", MemoryStore::replace_by_other_type);
    let (now, names): (_, [&[u8]; 3]) = (scene.now(), [b"a", b"b", b"c"]);
    let ended = scene.manager.end(Operation::new(&mut scene.store, now, 0, &names), b"A", 100);
    assert_eq!(ended, Err(LockError::WrongType));
    assert_eq!((scene.held("a"), scene.queue("b")), (vec!["A writes".to_owned()], vec!["A".to_owned()]));
    assert_eq!(scene.plays("A writes d; B releases b"), ["A granted"]);
}

#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn the_table_of_revoked_tokens_does_not_grow_and_counts_what_it_forgets() {
    let mut revoked = RevokedTokens::default();
    let (token, lock) = (|number: usize| number.to_be_bytes(), LockIdRef { db: 0, name: b"a" });
    let is_revoked =
        |revoked: &RevokedTokens, number| revoked.left_ms(lock, &token(number), ms(10)).is_some();
    for number in 0..ENTRIES {
        assert!(!revoked.revoke(lock, &token(number), ms(10), 90, false));
        assert!(is_revoked(&revoked, number), "the last one is always there");
    }
    let left = (0..ENTRIES).filter(|number| is_revoked(&revoked, *number)).count();
    assert_eq!(left + revoked.overwritten as usize, ENTRIES);
    assert!(left > ENTRIES * 4 / 5, "{left} are left");
    assert!(
        (ENTRIES * 15 / 16..ENTRIES).all(|number| is_revoked(&revoked, number)),
        "the last thousands are"
    );
    // One whose time is up is not forgotten, but over.
    let before = revoked.overwritten;
    (0..100).for_each(|number| _ = revoked.revoke(lock, &token(number), ms(100), 0, false));
    assert_eq!(revoked.overwritten, before);
}
