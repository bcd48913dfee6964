//! Cycles that arise by what happens to locks outside, or while other searches go on: all are found, and none is made up.

use super::memory_store::{MemoryStore, id};
use super::scene::{READ, Scene, TTL_MS, UPGRADE, WRITE};

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

/// One slice of the work.
fn serves_a_slice(scene: &mut Scene, looks: usize) {
    let (now, mut left) = (scene.now(), looks + 1);
    scene.manager.serve_queues(&mut scene.store, &mut scene.clients, &mut || {
        left -= 1;
        (left > 0).then_some(now)
    });
}

/// A crowd that waits for a hub, and each of it for the one before.
fn crowd_at_a_hub() -> Scene {
    const CROWD: usize = 2_000;
    let mut scene = Scene::new();
    scene.takes("hub", "H", WRITE);
    for number in 0..=CROWD {
        scene.takes(&format!("own{number}"), &format!("m{number}"), WRITE);
    }
    for number in 1..=CROWD {
        scene.waits(&format!("hub own{}", number - 1), &format!("m{number}"), WRITE);
    }
    scene
}

/// `M` waits behind a crowd since long, and turns a lock that somebody waits for from writing to reading and back, again
/// and again. Meanwhile a cycle arises among others, who came later.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn one_owner_who_changes_what_he_holds_keeps_no_other_from_being_searched_for() {
    for toggles in [false, true] {
        let mut scene = crowd_at_a_hub();
        scene.waits("hub", "M", WRITE);
        scene.takes("toy", "M", WRITE);
        scene.waits("toy", "W", WRITE);
        scene.takes("a", "A", WRITE);
        scene.takes("k", "X", WRITE);
        scene.takes("s", "S", WRITE);
        scene.waits("k", "A", WRITE);
        scene.waits("a", "S", WRITE);
        let mut turns = 0;
        scene.in_one_turn(|scene| {
            scene.downgrades("toy", "M");
            serves_a_slice(scene, 4);
            let lock = scene.store.lock(&id("s")).unwrap().clone();
            scene.happens("s", MemoryStore::delete);
            scene.happens("k", |store, id| store.replace(id, lock));
            while turns < 4_000 && scene.manager.counters.deadlocks == 0 {
                if toggles && turns % 20 == 0 {
                    scene.takes("toy", "M", UPGRADE);
                    scene.downgrades("toy", "M");
                }
                serves_a_slice(scene, 1);
                turns += 1;
            }
        });
        assert!(turns < 1_000, "toggles: {toggles}; found after {turns} slices");
    }
}

/// `M` waits behind a crowd, and again and again cancels that and asks anew. Meanwhile a cycle arises among others.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn one_owner_who_asks_anew_keeps_no_other_from_being_searched_for() {
    let mut scene = crowd_at_a_hub();
    scene.takes("a", "A", WRITE);
    scene.takes("k", "X", WRITE);
    scene.takes("s", "S", WRITE);
    scene.waits("k", "A", WRITE);
    scene.waits("a", "S", WRITE);
    scene.takes("toy", "M", READ);
    scene.waits("toy", "W", WRITE);
    scene.waits("hub", "M", WRITE);
    let mut turns = 0;
    scene.in_one_turn(|scene| {
        while turns < 2_000 && scene.manager.counters.deadlocks == 0 {
            if turns % 20 == 0 {
                scene.cancels("hub", "M");
                scene.waits("hub", "M", WRITE);
                scene.takes("toy", "M", UPGRADE);
                scene.downgrades("toy", "M");
            }
            if turns == 200 {
                let lock = scene.store.lock(&id("s")).unwrap().clone();
                scene.happens("s", MemoryStore::delete);
                scene.happens("k", |store, id| store.replace(id, lock));
            }
            serves_a_slice(scene, 1);
            turns += 1;
        }
    });
    assert!((200..1_000).contains(&turns), "found after {turns} slices");
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
/// found when `W` is looked at.
#[test]
fn a_lock_that_came_under_a_free_name_is_found_when_the_name_is_checked() {
    let mut scene = Scene::new();
    scene.takes("x", "T", WRITE);
    scene.takes("a", "H", WRITE);
    scene.waits("a b", "W", WRITE);
    scene.waits("a", "T", WRITE);
    let lock = scene.store.lock(&id("x")).unwrap().clone();
    scene.store.delete(&id("x"));
    scene.store.replace(&id("b"), lock);
    scene.serves();
    assert_eq!(scene.news(), [""; 0]);
    scene.looks_at_names();
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

/// `EXPIRE` on a lock with many readers, one a turn: each is looked at once more, not once for each.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn looks_at_the_holders_of_one_lock_do_not_pile_up() {
    const READERS: usize = 5_000;
    let mut looks = [0, 0];
    for (at, events) in [1, 600].into_iter().enumerate() {
        let mut scene = Scene::new();
        for number in 0..READERS {
            scene.takes("k", &format!("r{number}"), READ);
        }
        scene.waits("k", "W", WRITE);
        scene.takes("other", "O", WRITE);
        for number in 0..READERS {
            scene.waits("other", &format!("r{number}"), READ);
        }
        scene.in_one_turn(|scene| {
            for _ in 0..events {
                scene.happens("k", |_, _| {});
                serves_a_slice(scene, 1);
            }
            while scene.manager.has_work() {
                serves_a_slice(scene, 1);
                looks[at] += 1;
            }
        });
    }
    assert!(looks[1] <= 3 * looks[0], "{looks:?} slices for 1 and 600 events");
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
