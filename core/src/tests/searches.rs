//! Cycles that arise by what happens to locks outside: all are found, and none is made up.

use super::memory_store::{MemoryStore, id};
use super::scene::{READ, Scene, TTL_MS, WRITE};

fn gives_to(scene: &mut Scene, from: &str, to: &str) {
    let lock = scene.store.lock(&id(from)).unwrap().clone();
    scene.in_one_turn(|scene| {
        scene.happens(from, MemoryStore::delete);
        scene.happens(to, |store, id| store.replace(id, lock));
    });
}

/// `RENAME` gives `S`, who waits for three, a lock that `A` and `B` wait for. Two cycles arise; both have to end.
#[test]
fn two_cycles_that_arise_at_once_through_an_owner_of_three_requests() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.takes("b", "B", WRITE);
    scene.takes("c", "C", WRITE);
    scene.takes("k", "X", WRITE);
    scene.takes("s", "S", WRITE);
    scene.waits("k", "A", WRITE);
    scene.waits("k", "B", WRITE);
    scene.waits("a", "S", WRITE);
    scene.waits("b", "S", WRITE);
    scene.waits("c", "S", WRITE);
    gives_to(&mut scene, "s", "k");
    let news = scene.news();
    // S waits at `a` for A, who waits at `k` for S; and at `b` for B, who waits at `k` for S.
    assert_eq!(news.iter().filter(|news| news.contains("Deadlock")).count(), 2, "{news:?}");
}

/// `S` holds for read what it waits for among others, behind `W`. That hold ends by time, and in the same turn the other
/// name comes free: that `S` is looked at for this is no reason to forget that it waits for `W` now.
#[test]
fn a_cycle_by_a_hold_that_ends_while_its_owner_is_looked_at_for_another_reason() {
    let mut scene = Scene::new();
    scene.takes("a", "S", READ);
    scene.now_ms += 1;
    scene.takes("a", "H", READ);
    scene.takes("b", "X", WRITE);
    scene.waits("a", "W", WRITE);
    scene.waits("a b", "S", READ);
    scene.waits("b", "W", WRITE);
    scene.now_ms += TTL_MS - 1;
    scene.releases("b", "X");
    let news = scene.news();
    assert!(news.len() == 1 && news[0].starts_with("W Deadlock"), "{news:?}");
}

/// `RENAME` gives `S` the lock that it waits for behind `A`. `A` waits for `S`, so `S` has to learn of it.
#[test]
fn who_is_given_what_he_waits_for_behind_another_is_answered() {
    let mut scene = Scene::new();
    scene.takes("k", "X", WRITE);
    scene.takes("s", "S", WRITE);
    scene.waits("k", "A", WRITE);
    scene.waits("k", "S", WRITE);
    gives_to(&mut scene, "s", "k");
    assert_eq!(scene.news(), ["S granted"]);
}

/// `RENAME` gives `T` a lock for which `W` waits among others, and the server does not tell: as Valkey, for a free name. It is
/// found when the owners are looked at.
#[test]
fn a_lock_that_came_under_a_free_name_is_found() {
    let mut scene = Scene::new();
    scene.takes("x", "T", WRITE);
    scene.takes("a", "H", WRITE);
    scene.waits("a b", "W", WRITE);
    scene.waits("a", "T", WRITE);
    let lock = scene.store.lock(&id("x")).unwrap().clone();
    scene.store.delete(&id("x"));
    scene.store.replace(&id("b"), lock);
    scene.serves();
    let news = scene.news();
    assert!(news.len() == 1 && news[0].starts_with("T Deadlock"), "{news:?}");
}

#[test]
fn another_type_that_came_under_a_free_name_is_found_when_the_name_is_checked() {
    let mut scene = Scene::new();
    scene.takes("a", "H", WRITE);
    scene.waits("a b", "W", WRITE);
    scene.waits("b a", "V", WRITE);
    scene.waits("a", "X", WRITE);
    scene.store.replace_by_other_type(&id("b"));
    scene.serves();
    assert_eq!(scene.news(), [""; 0]);
    scene.looks_at_names();
    assert_eq!(scene.news(), ["W WrongType", "V WrongType"]);
    assert_eq!(scene.queue("a"), ["X"]);
}

/// `RENAME` gives `S` a lock that it waits for among others, by its second request. When that hold ends by time, `S` waits
/// there behind `A`, who waits for `S` elsewhere.
#[test]
fn a_hold_from_elsewhere_that_ends_by_time_is_noted_for_each_request_of_its_owner() {
    for has_another in [false, true] {
        let mut scene = Scene::new();
        for (name, token) in [("k", "X"), ("w", "W"), ("y", "Y"), ("z", "Z"), ("q", "S")] {
            scene.takes_for(name, token, WRITE, 100_000);
        }
        scene.takes_for("s", "S", WRITE, 50);
        if has_another {
            scene.waits("z", "S", WRITE);
        }
        scene.waits("k w", "A", WRITE);
        scene.waits("k y", "S", WRITE);
        gives_to(&mut scene, "s", "k");
        scene.waits("q", "A", WRITE);
        assert_eq!(scene.news(), [""; 0]);
        let later = scene.now_ms + 60;
        scene.serves_at(later);
        let news = scene.news();
        assert!(news.iter().any(|news| news.contains("Deadlock")), "has another: {has_another}, {news:?}");
    }
}

/// A request that nobody hears any more, or whose time has run out, leaves in a moment. It closes no cycle.
#[test]
fn a_request_that_is_about_to_leave_closes_no_cycle() {
    let mut scene = Scene::new();
    scene.takes("k", "B", WRITE);
    scene.takes("x", "A", WRITE);
    scene.channel = Some(1);
    scene.waits("k", "A", WRITE);
    scene.channel = None;
    scene.in_one_turn(|scene| {
        scene.manager.channel_closed(&super::scene::channel(1));
        scene.waits("x", "B", WRITE);
    });
    assert_eq!(scene.queue("x"), ["B"]);
}
