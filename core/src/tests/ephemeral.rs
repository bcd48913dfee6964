//! Which connection a hold ends with: the one that acquired it, and no later one; and when it ends.

use super::heap::growth_of;
use super::memory_store::id;
use super::parts::{READ, UPGRADE, WRITE};
use super::scene::Scene;
use crate::error::LockError;
use crate::ids::{HoldRef, LockId};
use crate::manager::Operation;

/// A holds `a` for connection 7.
fn held_by_a_connection(want: crate::mode::Want) -> Scene {
    let mut scene = Scene::new();
    scene.connection = Some(7);
    scene.takes("a", "A", want);
    scene.connection = None;
    scene
}

#[test]
fn a_hold_ends_with_the_connection_that_acquired_it_whatever_became_of_it_since() {
    type Since = fn(&mut Scene);
    let since: [Since; 5] = [
        |scene| assert!(scene.tries("a", "A", READ).is_some()),
        |scene| {
            scene.meta = Some("other metadata");
            assert!(scene.tries("a", "A", READ).is_some());
        },
        |scene| assert!(scene.extends("a", "A", 900)),
        |scene| assert!(scene.takes("a", "A", UPGRADE) > 0),
        |scene| assert!(scene.takes("a", "A", UPGRADE) < scene.downgrades("a", "A")),
    ];
    for (number, since) in since.into_iter().enumerate() {
        let mut scene = held_by_a_connection(READ);
        scene.connection = Some(8);
        since(&mut scene);
        scene.closes(8);
        assert!(scene.hold("a", "A").is_some(), "case {number}: not with a later one");
        scene.closes(7);
        assert!(scene.hold("a", "A").is_none(), "case {number}");
        assert!(scene.store.records.len() > 1 && scene.manager.counters.releases == 1);
        scene.store.assert_rebuilt_by_records();
    }
}

#[test]
fn a_hold_of_several_names_ends_on_all_of_them_and_on_those_only() {
    let mut scene = Scene::new();
    scene.connection = Some(7);
    scene.plays("A writes a b c; A writes d");
    scene.connection = None;
    scene.plays("A writes e; A writes d f; A releases b; A writes b");
    scene.closes(7);
    let held = ["a", "b", "c", "d", "e", "f"].map(|name| scene.hold(name, "A").is_some());
    assert_eq!(held, [false, true, false, true, true, true], "b, d and f are other holds by now");
}

#[test]
fn a_waiting_request_is_bound_to_its_own_connection_at_the_grant() {
    let mut scene = held_by_a_connection(WRITE);
    scene.connection = Some(8);
    scene.waits("a", "B", READ);
    scene.connection = None;
    scene.waits("a", "C", READ);
    scene.closes(7);
    assert_eq!(scene.news(), ["B granted", "C granted"]);
    scene.closes(8);
    assert_eq!(scene.held("a"), ["C reads"]);
}

/// Until the end of the turn it is held for others, and not for its owner.
#[test]
fn a_hold_whose_connection_has_closed_is_held_for_all_but_its_owner() {
    let mut scene = held_by_a_connection(WRITE);
    scene.waits("a", "B", WRITE);
    scene.in_one_turn(|scene| {
        scene.closes(7);
        assert!(scene.manager.has_work());
        assert_eq!(scene.tries("a", "C", WRITE), None);
        assert_eq!(scene.held("a"), ["A writes"]);
    });
    assert_eq!(scene.news(), ["B granted"]);
    type Act = fn(&mut Scene) -> bool;
    let acts: [Act; 5] = [
        |scene| scene.extends("a", "A", 900),
        |scene| scene.releases_all("a", "A") > 0,
        |scene| scene.asks("a", "A", UPGRADE, 9, crate::WaitPolicy::NoWait) != Err(LockError::NotHeld),
        |scene| scene.tries("a", "A", READ) == Some(1),
        |scene| {
            let now = scene.now();
            let fence = scene.manager.downgrade(
                Operation::new(&mut scene.store, now, 0, &[b"a"]),
                HoldRef::of(b"A"),
                9,
            );
            fence != Err(LockError::NotHeld)
        },
    ];
    for (number, act) in acts.into_iter().enumerate() {
        let mut scene = held_by_a_connection(READ);
        let first = scene.hold("a", "A").unwrap().fence;
        scene.in_one_turn(|scene| {
            scene.closes(7);
            assert!(!act(scene), "act {number}");
        });
        assert!(scene.hold("a", "A").is_none_or(|hold| hold.fence > first), "act {number}");
        assert_eq!(scene.manager.counters.releases, 1, "act {number}");
    }
}

/// Nor does an upgrade of it wait for anybody: A is told so.
#[test]
fn a_hold_of_a_closed_connection_closes_no_cycle() {
    let mut scene = held_by_a_connection(WRITE);
    scene.plays("B writes b; A waits to write b");
    scene.in_one_turn(|scene| {
        scene.closes(7);
        scene.waits("a", "B", WRITE);
    });
    assert_eq!(scene.news(), ["B granted"]);
    let mut scene = held_by_a_connection(READ);
    scene.plays("B reads a; A writes b; A waits to upgrade a");
    scene.in_one_turn(|scene| {
        scene.closes(7);
        scene.waits("b", "B", WRITE);
    });
    assert_eq!((scene.news().concat(), scene.queue("b").concat()), ("A NotHeld".into(), "B".into()));
}

/// It has the same fence.
#[test]
fn a_copy_in_another_database_does_not_end_with_the_connection() {
    let mut scene = held_by_a_connection(WRITE);
    let in_other = LockId { db: 1, name: b"a"[..].into() };
    let copy = scene.store.lock(&id("a")).unwrap().clone();
    scene.store.replace(&in_other, copy);
    scene.in_one_turn(|scene| {
        scene.closes(7);
        let (now, to) = (scene.now(), crate::request::Extension::To(900));
        let in_other = Operation::new(&mut scene.store, now, 1, &[b"a"]);
        assert_eq!(scene.manager.extend(in_other, HoldRef::of(b"A"), to), Ok(true));
    });
    assert!(scene.store.lock(&in_other).is_some() && scene.hold("a", "A").is_none());
}

#[test]
fn what_is_not_served_when_its_connection_closes_ends_by_its_ttl() {
    let mut scene = Scene::new();
    scene.connection = Some(7);
    scene.plays("A writes a b for 60000; A writes c for 60000");
    scene.store.set_served(&id("b"), false);
    scene.closes(7);
    assert!(scene.held("a").is_empty() && scene.held("c").is_empty(), "one does not keep the others");
    scene.store.set_served(&id("b"), true);
    scene.serves();
    assert_eq!((scene.held("b"), scene.due_in()), (vec!["A writes".to_owned()], None));
}

#[test]
fn a_server_that_no_longer_decides_ends_nothing() {
    let mut scene = held_by_a_connection(WRITE);
    scene.manager.connection_closed(7);
    assert!(scene.manager.has_work());
    drop(scene.manager.fail_waiters(LockError::NotPrimary));
    assert!(!scene.manager.has_work() && scene.due_in().is_none());
    scene.serves();
    assert_eq!(scene.held("a"), ["A writes"]);
}

#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_hold_that_ends_with_a_connection_costs_at_most_650_bytes_more() {
    const HOLDS: usize = 10_000;
    let mut scene = Scene::new();
    let mut taken = |kind: &str, is_bound: bool| {
        let takes = || {
            for number in 0..HOLDS {
                scene.connection = is_bound.then_some(number as u64 + 1);
                scene.takes(
                    &format!("{kind}:{number:08}"),
                    &format!("0123456789abcdef0123456789ab{number:08}"),
                    WRITE,
                );
            }
        };
        growth_of(takes).1
    };
    let (plain, bound) = (taken("plain", false), taken("bound", true));
    let each = (bound - plain) / HOLDS.cast_signed();
    assert!(each <= 650, "{each} bytes each");
}
