//! Requests that are answered on a channel, beside those whose clients are answered.

use super::memory_store::id;
use super::parts::{READ, TTL_MS, UPGRADE, WRITE, channel};
use super::scene::Scene;
use crate::request::WaitPolicy;

/// A holds `a`; B waits on channel 1, C's client waits, D waits on channel 2.
fn mixed() -> Scene {
    let mut scene = Scene::after("A writes a");
    for (token, on) in [("B", Some(1)), ("C", None), ("D", Some(2))] {
        scene.channel = on;
        scene.waits("a", token, WRITE);
    }
    scene.channel = None;
    scene
}

#[test]
fn asked_again_a_request_keeps_its_place_and_takes_what_is_new() {
    let mut scene = mixed();
    scene.channel = Some(7);
    let again = WaitPolicy::Timeout(30);
    let first = scene.waits_with("a", "B", WRITE, 2 * TTL_MS, again);
    assert_eq!(scene.queue("a"), ["B", "C", "D"]);
    assert_eq!(scene.waits_with("a", "B", WRITE, 3 * TTL_MS, again), first);
    scene.releases("a", "A");
    let hold = scene.hold("a", "B").unwrap();
    assert_eq!(hold.deadline_ms - hold.since_ms(), 3 * TTL_MS);
    let answers = scene.manager.take_answers(usize::MAX);
    assert_eq!(answers[0].channel, Some((channel(7).into(), b"B"[..].into())));
    // Its limit is the new one too, and may let it in.
    let mut scene = Scene::after("A reads a");
    (scene.channel, scene.limit) = (Some(1), Some(1));
    let first = scene.waits("a", "B", READ);
    assert!(scene.news().is_empty());
    scene.limit = Some(2);
    assert_eq!(scene.waits("a", "B", READ), first);
    assert_eq!(scene.news(), ["B granted"]);
    // With other names, or by a client, it is another one.
    let mut scene = mixed();
    scene.channel = Some(1);
    scene.waits("a b", "B", WRITE);
    scene.channel = None;
    scene.waits("a", "B", WRITE);
    assert_eq!(scene.queue("a"), ["B", "C", "D", "B", "B"]);
}

#[test]
fn an_upgrade_asked_again_in_the_turn_of_its_grant_is_answered_once() {
    let mut scene = Scene::after("A B read a");
    scene.channel = Some(1);
    let first = scene.waits("a", "A", UPGRADE);
    scene.in_one_turn(|scene| {
        scene.releases("a", "B");
        assert_eq!(scene.waits("a", "A", UPGRADE), first);
    });
    assert_eq!(scene.news(), ["A granted"]);
}

#[test]
fn what_nobody_would_hear_leaves_without_an_answer_and_the_next_is_served() {
    // Noticed at the grant, or told before.
    for is_told in [false, true] {
        let mut scene = mixed();
        scene.channel = Some(1);
        scene.plays("A writes b; X waits to write b");
        scene.clients.deaf.insert(channel(1));
        if is_told {
            scene.manager.channel_closed(&channel(1));
            scene.serves();
            assert_eq!((scene.queue("a"), scene.queue("b")), (vec!["C".into(), "D".into()], vec![]));
        }
        assert_eq!(scene.plays("A releases a"), ["C granted"]);
        assert_eq!(scene.queue("b"), [""; 0], "all of the channel leave");
        assert_eq!(scene.manager.counters.no_subscriber, 2);
        assert!(scene.manager.waitlist().channels(None).next() == Some(&channel(2).into()));
    }
}

#[test]
fn an_ephemeral_request_ends_with_the_connection_that_asked_and_others_do_not() {
    let mut scene = mixed();
    (scene.channel, scene.connection) = (Some(1), Some(7));
    scene.waits("a", "E", WRITE);
    scene.closes(7);
    assert_eq!(scene.queue("a"), ["B", "C", "D"]);
    assert_eq!(scene.news(), ["E timed out"], "whoever listens is told");
    // In the turn in which the lock comes free, too.
    scene.waits("b a", "E", WRITE);
    scene.in_one_turn(|scene| {
        scene.happens("a", super::memory_store::MemoryStore::delete);
        scene.closes(7);
    });
    assert_eq!(scene.news(), ["E timed out", "B granted"]);
    assert!(scene.store.lock(&id("b")).is_none());
}

/// A channel with very many requests leaves in slices; none of them is granted meanwhile.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_channel_with_many_requests_leaves_in_slices() {
    let mut scene = Scene::after("A writes a");
    scene.channel = Some(1);
    for number in 0..1_000 {
        scene.waits("a", &format!("t{number}"), WRITE);
    }
    let mut slices = 0;
    scene.in_one_turn(|scene| {
        scene.manager.channel_closed(&channel(1));
        scene.releases("a", "A");
        while scene.manager.has_work() {
            scene.serves_a_slice(50);
            slices += 1;
        }
    });
    assert!(slices > 10 && scene.news().is_empty());
    assert_eq!(scene.manager.counters.no_subscriber, 1_000);
}

/// Somebody asks again on the channel while those before are still leaving it.
#[test]
fn a_channel_that_closes_twice_before_anybody_has_left_it() {
    let mut scene = Scene::after("A writes a");
    scene.channel = Some(1);
    scene.in_one_turn(|scene| {
        for token in ["B", "C"] {
            scene.waits("a", token, WRITE);
            scene.manager.channel_closed(&channel(1));
        }
    });
    assert_eq!(scene.queue("a"), [""; 0]);
    assert_eq!((scene.news().len(), scene.manager.counters.no_subscriber), (0, 2));
}
