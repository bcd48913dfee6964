//! Clients that go: before their grant, after it, and in the turn in which the lock comes free.

use super::memory_store::id;
use super::scene::{READ, Scene, TTL_MS, UPGRADE, WRITE};
use crate::ids::RequestId;
use crate::request::WaitPolicy;

#[test]
fn a_client_that_leaves_the_queue_lets_on_those_behind_it() {
    // A reads; in front, in the middle and at the end of the queue stands one that leaves.
    let wants = [("B", WRITE), ("C", READ), ("D", WRITE), ("E", READ)];
    let stories = [
        (0, vec!["C granted"], vec!["D", "E"]),
        (2, vec![], vec!["B", "C", "E"]),
        (3, vec![], vec!["B", "C", "D"]),
    ];
    for (leaving, news, queue) in stories {
        let mut scene = Scene::new();
        scene.takes("a", "A", READ);
        let requests = wants.map(|(token, want)| scene.waits("a", token, want));
        scene.in_one_turn(|scene| {
            assert!(scene.abandons(requests[leaving]));
            assert_eq!(
                scene.manager.has_work(),
                leaving == 0,
                "only the first keeps others waiting by itself"
            );
            assert!(scene.news().is_empty(), "nobody is granted before the end of the turn");
        });
        assert_eq!(scene.news(), news);
        assert_eq!(scene.queue("a"), queue);
    }
}

#[test]
fn nobody_overtakes_between_a_cancellation_and_the_end_of_the_turn() {
    let mut scene = Scene::new();
    scene.takes("a", "A", READ);
    let writer = scene.waits("a", "B", WRITE);
    scene.waits("a", "C", READ);
    scene.in_one_turn(|scene| {
        scene.abandons(writer);
        assert_eq!(scene.tries("a", "D", READ), None, "C was first");
        scene.waits("a", "D", READ);
    });
    assert_eq!(scene.news(), ["C granted", "D granted"]);
}

/// Whoever goes in the turn in which the lock comes free was never granted, in whichever order.
#[test]
fn a_request_that_is_cancelled_before_the_end_of_the_turn_is_passed_over() {
    for cancelled_first in [false, true] {
        let mut scene = Scene::new();
        scene.takes("a", "A", WRITE);
        let waiting = scene.waits("a", "B", WRITE);
        scene.waits("a", "C", WRITE);
        scene.in_one_turn(|scene| {
            if cancelled_first {
                scene.abandons(waiting);
            }
            scene.releases("a", "A");
            assert!(scene.held("a").is_empty() && scene.news().is_empty());
            assert!(cancelled_first || scene.abandons(waiting));
        });
        assert_eq!(scene.news(), ["C granted"]);
        assert_eq!(scene.held("a"), ["C writes"]);
        assert_eq!(scene.manager.counters.handoffs, 1);
    }
}

#[test]
fn a_grant_is_final() {
    for (names, want) in [("a", WRITE), ("a", READ), ("a b", WRITE), ("a", UPGRADE)] {
        let mut scene = Scene::new();
        if want == UPGRADE {
            scene.takes("a", "B", READ);
        }
        scene.takes("a", "A", READ);
        let front = scene.waits("a", "W", WRITE);
        let waiting = scene.waits(names, "B", want);
        scene.waits("a", "C", WRITE);
        scene.abandons(front);
        scene.releases_all("a", "A");
        assert_eq!(scene.news(), ["B granted"]);
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
fn a_wait_can_be_ended_before_its_time() {
    let mut scene = Scene::new();
    scene.takes("a", "A", READ);
    let writer = scene.waits_with("a", "B", WRITE, TTL_MS, WaitPolicy::Timeout(400));
    scene.waits("a", "C", READ);
    assert!(scene.manager.time_out(writer));
    scene.serves();
    assert_eq!(scene.news(), ["C granted"]);
    assert!(!scene.manager.time_out(writer) && !scene.abandons(writer) && !scene.abandons(RequestId(12_345)));
    assert_eq!(scene.manager.counters.wait_timeouts, 1);
}

#[test]
fn one_token_that_waited_twice_is_served_while_one_of_its_clients_lives() {
    for leaving in [0, 1] {
        let mut scene = Scene::new();
        scene.takes("a", "A", WRITE);
        let requests = [scene.waits("a", "B", WRITE), scene.waits("a", "B", WRITE)];
        scene.waits("a", "C", WRITE);
        scene.in_one_turn(|scene| {
            scene.releases("a", "A");
            scene.abandons(requests[leaving]);
        });
        assert_eq!(scene.news(), ["B granted"]);
        assert_eq!(scene.held("a"), ["B writes"]);
    }
}

#[test]
fn nothing_is_remembered_of_those_who_have_gone() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    let requests = ["B", "C", "D"].map(|token| scene.waits("a b", token, WRITE));
    requests.into_iter().for_each(|request| assert!(scene.abandons(request)));
    assert!(scene.manager.waitlist().is_empty() && !scene.manager.has_work() && !scene.manager.has_answers());
    assert_eq!(scene.manager.waitlist().len_at(id("a").as_ref()), 0);
    assert_eq!(scene.manager.waitlist().users_len(), 0);
    assert_eq!(scene.due_in(), None);
}

#[test]
fn a_token_cancels_all_that_it_waits_for_at_a_name_and_nothing_else() {
    let mut scene = Scene::new();
    scene.takes("a b c", "H", WRITE);
    for (names, token) in [("a", "A"), ("a b", "A"), ("b", "A"), ("a", "B"), ("c b", "B")] {
        scene.waits(names, token, WRITE);
    }
    assert_eq!(scene.cancels("a", "A"), 2);
    assert_eq!(scene.news(), ["A timed out", "A timed out"]);
    assert_eq!(scene.cancels("a", "A"), 0);
    assert_eq!(scene.cancels("b", "X"), 0);
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
    let mut scene = Scene::new();
    scene.takes("a", "H", WRITE);
    scene.waits("a", "A", WRITE);
    scene.waits("a", "B", READ);
    scene.clients.denied.insert("A".into());
    scene.serves();
    assert!(scene.news().is_empty(), "not before");
    scene.releases("a", "H");
    assert_eq!(scene.news(), ["A NoPermission", "B granted"]);
    assert_eq!(scene.manager.counters.grants, 2);
}
