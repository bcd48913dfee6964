//! What a turn costs, in names looked at; unlike time this is always the same.

use std::cell::Cell;

use super::memory_store::id;
use super::parts::{READ, TestClients, UPGRADE, WRITE};
use super::scene::Scene;

/// A scene whose turns end by [`serves`] alone.
fn in_one_turn() -> Scene {
    let mut scene = Scene::new();
    scene.is_in_turn = true;
    scene
}

/// How many names this opens.
fn opened(scene: &mut Scene, work: impl FnOnce(&mut Scene)) -> usize {
    let before = scene.store.opened;
    work(scene);
    scene.store.opened - before
}

/// How many names a turn opens, how many looks at the clock it takes, and how many requests it grants.
fn serves(scene: &mut Scene) -> (usize, usize, usize) {
    let looks = Cell::new(0);
    let opened = opened(scene, |scene| {
        let now = scene.now();
        scene.manager.serve_queues(&mut scene.store, &mut TestClients::default(), &mut || {
            looks.set(looks.get() + 1);
            Some(now)
        });
    });
    let news = scene.news();
    assert!(news.iter().all(|news| news.ends_with("granted")));
    (opened, looks.get(), news.len())
}

fn words(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

/// Of one name: so many writers wait; the most that one of them costs, from its coming to its grant.
fn most_opened(waiters: usize) -> usize {
    let (mut scene, tokens) = (in_one_turn(), words(waiters + 1));
    scene.takes("a", &tokens[0], WRITE);
    let waits =
        tokens[1..].iter().map(|token| opened(&mut scene, |scene| _ = scene.waits("a", token, WRITE)));
    let mut most = waits.max().unwrap();
    for token in &tokens[..waiters] {
        scene.releases("a", token);
        let (opened, _, granted) = serves(&mut scene);
        assert_eq!(granted, 1);
        most = most.max(opened);
    }
    most
}

#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn the_cost_of_a_grant_does_not_depend_on_how_many_wait() {
    assert_eq!(most_opened(2_000), most_opened(2));
}

/// A thousand requests for 64 names each: to come costs as much as the first, and one grant looks at each of
/// its names a few times, whether the others are of the same token or not.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn requests_for_many_names_cost_what_they_name() {
    const REQUESTS: usize = 1_000;
    const NAMES: usize = 64;
    for tokens in [1, 2, REQUESTS] {
        let (mut scene, names) = (in_one_turn(), words(NAMES));
        scene.manager.bounds.places_of_token = usize::MAX;
        scene.takes(&names.join(" "), "holder", WRITE);
        for number in 0..REQUESTS {
            let mut rotated = names.clone();
            rotated.rotate_left(number % NAMES);
            let (rotated, token) = (rotated.join(" "), format!("token {}", number % tokens));
            let opened = opened(&mut scene, |scene| _ = scene.waits(&rotated, &token, WRITE));
            assert_eq!(opened, NAMES, "{tokens} tokens, request {number}");
        }
        scene.releases_all(&names.join(" "), "holder");
        let (opened, looks, granted) = serves(&mut scene);
        // All of the token that holds now are answered.
        assert_eq!(granted, REQUESTS / tokens);
        assert!(opened <= 4 * NAMES * (granted + 1), "{tokens} tokens: {opened} names opened");
        assert!(looks <= 4 * (NAMES + granted) + 4 * NAMES * granted, "{tokens} tokens: {looks} looks");
    }
}

#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_release_of_many_names_looks_once_at_a_request_that_waits_at_all_of_them() {
    const NAMES: usize = 500;
    let (mut scene, mut names) = (in_one_turn(), words(NAMES));
    let all = names.join(" ");
    scene.takes(&all, "holder", WRITE);
    for name in &names[..NAMES / 2] {
        scene.waits(name, name, WRITE);
    }
    names.reverse();
    scene.waits(&names.join(" "), "all", WRITE);
    scene.releases_all(&all, "holder");
    let (opened, _, granted) = serves(&mut scene);
    assert_eq!(granted, NAMES / 2);
    assert!(opened < 10 * NAMES, "{opened} names opened");
}

/// `SWAPDB` as often as you like: each queue is looked at once, in the turn that follows.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn what_happens_to_whole_databases_often_is_looked_at_once() {
    const WAITERS: usize = 1_000;
    let (mut scene, names) = (in_one_turn(), words(WAITERS));
    for name in &names {
        scene.takes(name, "holder", WRITE);
        scene.waits(name, name, WRITE);
    }
    (0..5_000).for_each(|_| drop(scene.manager.databases_swapped()));
    let (opened, looks, _) = serves(&mut scene);
    assert_eq!(opened, WAITERS);
    assert!(looks <= 2 * WAITERS + 10, "{looks} looks");
    // It changes again while the look goes on: once more, from the start.
    scene.manager.databases_changed();
    let begun = self::opened(&mut scene, |scene| scene.serves_a_slice(WAITERS / 2));
    assert!(begun < WAITERS && scene.manager.has_work());
    names.iter().for_each(|name| scene.store.delete(&id(name)));
    (0..5_000).for_each(|_| scene.manager.databases_changed());
    let (rest, _, granted) = serves(&mut scene);
    assert_eq!(granted, WAITERS, "those that had been looked at too");
    assert!((WAITERS..=2 * WAITERS).contains(&(begun + rest)), "{begun} and {rest}");
    // And one key that changes often.
    scene.waits("0", "late", WRITE);
    (0..5_000).for_each(|_| scene.manager.key_changed(id("0").as_ref()));
    let (opened, looks, _) = serves(&mut scene);
    assert!(opened == 1 && looks <= 3, "{opened} opened, {looks} looks");
}

#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_connection_with_many_holds_ends_them_in_slices_and_the_oldest_connection_first() {
    const HOLDS: usize = 3_000;
    let mut scene = Scene::new();
    for connection in [1, 2] {
        scene.connection = Some(connection);
        for number in 0..HOLDS {
            scene.takes(&format!("{connection}:{number}"), "A", WRITE);
        }
    }
    scene.connection = None;
    scene.plays("B waits to write 2:0; X writes x; Y waits to write x");
    scene.in_one_turn(|scene| {
        scene.closes(2);
        scene.closes(1);
        scene.releases("x", "X");
        let mut slices = 0;
        while scene.manager.has_work() {
            let operations = scene.store.operations;
            scene.serves_a_slice(100);
            assert!(scene.store.operations - operations <= 300);
            slices += 1;
            if slices == 1 {
                assert_eq!(scene.news(), ["Y granted"], "who waits elsewhere does not wait for this");
                assert_eq!(scene.tries("2:2999", "C", WRITE), None, "what is to end is held until then");
            }
        }
        assert!(slices > HOLDS / 100);
    });
    assert_eq!(scene.news(), ["B granted"]);
    assert_eq!(scene.manager.counters.releases, 1 + 2 * HOLDS as u64);
}

/// Names of two slots, of which one moves away: all requests there fail, and no others.
#[test]
fn a_probe_finds_every_request_whose_names_are_not_served() {
    let mut scene = Scene::new();
    for name in ["a", "b", "e", "f", "g"] {
        scene.takes(name, "H", READ);
        scene.takes(name, "I", READ);
    }
    scene.plays("A waits to write a b; B waits to write e; C waits to write g f; D E wait to write f e");
    scene.plays("F waits to write a; G waits to write g");
    scene.waits("e", "H", UPGRADE);
    ["e", "f", "g"].iter().for_each(|name| scene.store.set_served(&id(name), false));
    scene.looks_at_names();
    let mut news = scene.news();
    news.sort();
    assert_eq!(news, ["B", "C", "D", "E", "G", "H"].map(|token| format!("{token} NotServed")));
    assert_eq!(scene.queue("a"), ["A", "F"]);
}
