//! Clients that go: before their grant, after it, and in the turn in which the lock comes free.

use super::parts::{READ, TTL_MS, WRITE};
use super::scene::Scene;

#[test]
fn a_client_that_leaves_the_queue_lets_on_those_behind_it() {
    let mut scene = Scene::after("A reads a");
    let writer = scene.waits("a", "B", WRITE);
    scene.waits("a", "C", READ);
    scene.in_one_turn(|scene| {
        assert!(scene.abandons(writer));
        assert!(scene.manager.has_work());
        assert_eq!(scene.tries("a", "D", READ), None, "C was first");
        scene.waits("a", "D", READ);
        assert!(scene.news().is_empty(), "nobody is granted before the end of the turn");
    });
    assert_eq!(scene.news(), ["C granted", "D granted"]);
}

#[test]
fn a_grant_is_final() {
    for (names, want) in [("a", WRITE), ("a", READ), ("a b", WRITE)] {
        let mut scene = Scene::after("A writes a");
        let waiting = scene.waits(names, "B", want);
        assert_eq!(scene.plays("C waits to write a; A releases a"), ["B granted"]);
        let hold = scene.hold("a", "B").cloned().unwrap();
        assert!(!scene.abandons(waiting) && !scene.manager.time_out(waiting), "it does not wait any more");
        assert_eq!(scene.hold("a", "B"), Some(&hold));
        scene.serves_at(scene.now_ms + TTL_MS - 1);
        assert!(scene.news().is_empty());
        scene.serves_at(scene.now_ms + 1);
        assert_eq!(scene.news(), ["C granted"], "at the deadline, no sooner");
    }
}

#[test]
fn a_token_cancels_all_that_it_waits_for_at_a_name_and_nothing_else() {
    let mut scene = Scene::after(
        "H writes a b c; A waits to write a; A waits to write a b; A waits to write b; \
         B waits to write a; B waits to write c b",
    );
    assert_eq!(scene.cancels("a", "A"), 2);
    assert_eq!(scene.news(), ["A timed out", "A timed out"]);
    assert_eq!((scene.cancels("a", "A"), scene.cancels("b", "X")), (0, 0));
    assert_eq!((scene.queue("a"), scene.queue("b")), (vec!["B".into()], vec!["A".into(), "B".into()]));
    scene.in_one_turn(|scene| {
        scene.releases("a", "H");
        assert_eq!(scene.cancels("a", "B"), 1, "nobody is granted before the end of the turn");
    });
    assert_eq!(scene.news(), ["B timed out"]);
    assert!(scene.held("a").is_empty());
    let counters = &scene.manager.counters;
    assert_eq!((counters.cancels, counters.wait_timeouts), (3, 0));
}

#[test]
fn a_request_whose_user_lost_its_permission_is_refused_at_the_grant_and_the_next_is_served() {
    let mut scene = Scene::after("H writes a; A waits to write a; B waits to read a");
    scene.clients.denied.insert("A".into());
    scene.serves();
    assert!(scene.news().is_empty(), "not before");
    assert_eq!(scene.plays("H releases a"), ["A NoPermission", "B granted"]);
    assert_eq!(scene.manager.counters.grants, 2);
}
