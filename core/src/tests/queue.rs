//! What the queue of one name promises its requests, a scenario for each promise: the order, who may
//! be served beside whom, what is counted.
//!
//! Tokens are `A`, `B`, …; `A` usually holds the lock `a` when a story begins. See [`super::scene`]
//! for the words.

use super::heap::growth_of;
use super::memory_store::id;
use super::scene::{READ, Scene, TTL_MS, WRITE, channel, ms, request, several, whole_turn};
use crate::distribution::Distribution;
use crate::error::LockError;
use crate::request::{ReplyTo, Request, WaitPolicy};

#[test]
fn writers_are_served_in_order_of_arrival_one_at_a_time() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    for token in ["B", "C", "D"] {
        scene.waits("a", token, WRITE);
    }
    assert_eq!(scene.queue("a"), ["B", "C", "D"]);
    assert!(scene.news().is_empty());
    for (leaving, next) in [("A", "B"), ("B", "C"), ("C", "D")] {
        scene.releases("a", leaving);
        assert_eq!(scene.news(), [format!("{next} granted")]);
        assert_eq!(scene.held("a"), [format!("{next} writes")]);
    }
    scene.releases("a", "D");
    assert!(scene.held("a").is_empty());
}

#[test]
fn neighbouring_readers_at_the_head_are_let_in_together() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    for (token, want) in [("B", READ), ("C", READ), ("D", WRITE), ("E", READ), ("F", READ), ("G", WRITE)] {
        scene.waits("a", token, want);
    }
    scene.releases("a", "A");
    assert_eq!(scene.news(), ["B granted", "C granted"]);
    scene.releases("a", "C");
    assert!(scene.news().is_empty(), "the last reader has not left");
    scene.releases("a", "B");
    assert_eq!(scene.news(), ["D granted"]);
    scene.releases("a", "D");
    assert_eq!(scene.news(), ["E granted", "F granted"]);
    assert_eq!(scene.held("a"), ["E reads", "F reads"]);
    assert_eq!(scene.queue("a"), ["G"]);
}

#[test]
fn a_newcomer_never_overtakes_whether_it_waits_or_not() {
    let mut scene = Scene::new();
    scene.takes("a", "A", READ);
    scene.waits("a", "B", WRITE);
    assert_eq!(scene.tries("a", "C", READ), None, "it could read, but B was first");
    assert_eq!(scene.tries("a", "C", WRITE), None);
    scene.waits("a", "D", READ);
    assert_eq!(scene.queue("a"), ["B", "D"]);
    scene.releases("a", "A");
    assert_eq!(scene.news(), ["B granted"]);
    assert_eq!(scene.tries("a", "E", READ), None);
}

#[test]
fn a_newcomer_does_not_slip_in_after_a_deadline_before_the_queue_is_served() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.waits("a", "B", WRITE);
    scene.now_ms += TTL_MS;
    scene.in_one_turn(|scene| {
        assert_eq!(scene.tries("a", "C", WRITE), None, "the lock is free, but it is B's turn");
        scene.waits("a", "C", WRITE);
    });
    assert_eq!(scene.news(), ["B granted"]);
    assert_eq!(scene.queue("a"), ["C"]);
}

#[test]
fn holders_refresh_and_extend_without_queueing() {
    let mut scene = Scene::new();
    let fence = scene.takes("a", "A", READ);
    scene.waits("a", "B", WRITE);
    assert_eq!(scene.tries("a", "A", READ), Some(fence));
    scene.extends("a", "A", 900);
    assert_eq!(scene.hold("a", "A").unwrap().deadline_ms, scene.now_ms + 900);
    assert!(scene.news().is_empty());
    scene.releases("a", "A");
    assert_eq!(scene.news(), ["B granted"]);
    let fence = scene.hold("a", "B").unwrap().fence;
    scene.waits("a", "C", READ);
    assert_eq!(scene.tries("a", "B", WRITE), Some(fence));
    assert_eq!(scene.queue("a"), ["C"]);
}

#[test]
fn one_token_that_waits_twice_is_answered_twice_with_one_fence() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.waits("a", "B", WRITE);
    scene.waits("a", "C", WRITE);
    scene.waits("a", "B", WRITE);
    scene.releases("a", "A");
    let fences = scene.fences();
    assert_eq!(fences.len(), 2, "both of B's, though C stands between them");
    assert_eq!(fences[0], fences[1]);
    let counters = &scene.manager.counters;
    assert_eq!((counters.grants, counters.handoffs), (2, 1), "A's, and one of B's; the other is a refresh");
    assert_eq!(scene.queue("a"), ["C"]);
}

#[test]
fn one_token_that_waits_in_both_modes_gets_the_first_and_an_error() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.waits("a", "B", READ);
    scene.waits("a", "C", WRITE);
    scene.waits("a", "B", WRITE);
    scene.releases("a", "A");
    assert_eq!(scene.news(), ["B granted", "B WrongMode(Read)"]);
    assert_eq!(scene.queue("a"), ["C"]);
}

#[test]
fn a_full_queue_takes_nobody_and_recovers() {
    let mut scene = Scene::new();
    scene.manager.bounds.places = 2;
    scene.takes("a", "A", WRITE);
    scene.takes("b", "A", WRITE);
    scene.waits("a", "B", WRITE);
    scene.waits("b", "C", WRITE);
    assert_eq!(scene.is_refused("a", "D", WRITE), LockError::QueueFull(2), "over all names together");
    assert_eq!(scene.tries("a", "D", WRITE), None, "who does not wait needs no room");
    scene.takes("c", "D", WRITE);
    scene.releases("a", "A");
    assert_eq!(scene.news(), ["B granted"]);
    scene.waits("a", "D", WRITE);
    assert_eq!(scene.manager.counters.waiters_max, 2);
}

#[test]
fn everybody_is_sent_away_when_this_server_no_longer_decides() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.waits_with("a", "B", WRITE, TTL_MS, WaitPolicy::Timeout(40));
    scene.waits("a b", "C", WRITE);
    scene.manager.key_changed(id("a").as_ref());
    let records = scene.store.records.len();
    drop(scene.manager.fail_waiters(LockError::NotPrimary));
    assert!(scene.manager.has_work());
    let now = ms(scene.now_ms);
    scene.manager.end_waits(&mut whole_turn(now));
    assert_eq!(scene.news(), ["B NotPrimary", "C NotPrimary"]);
    assert_eq!(scene.store.records.len(), records);
    assert!(scene.manager.waitlist().is_empty());
    assert_eq!(scene.due_in(), None);
}

#[test]
fn the_counters_tell_the_story() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.tries("a", "A", WRITE);
    scene.tries("a", "B", WRITE);
    scene.waits("a", "B", WRITE);
    scene.waits_with("a", "C", WRITE, TTL_MS, WaitPolicy::Timeout(30));
    scene.serves_at(scene.now_ms + 30);
    scene.now_ms += 20;
    scene.releases("a", "A");
    scene.downgrades("a", "B");
    let counters = &scene.manager.counters;
    assert_eq!((counters.grants, counters.refusals, counters.handoffs), (3, 1, 1));
    assert_eq!((counters.releases, counters.wait_timeouts, counters.deadlocks), (1, 1, 0));
    assert_eq!((counters.wait_ms_total, counters.waits.max_ms(), counters.waiters_max), (50, 50, 2));
    assert_eq!(counters.holds.max_ms(), 50);
}

#[test]
fn the_queues_of_a_database_are_listed_by_the_longest_wait() {
    let mut scene = Scene::new();
    scene.takes("a b c", "H", WRITE);
    let first = scene.waits("b", "A", READ);
    scene.now_ms += 5;
    scene.waits("a", "B", WRITE);
    scene.waits("b c", "C", WRITE);
    let list = |scene: &Scene| -> Vec<String> {
        let queues = scene.manager.waitlist().queues_by_longest_wait(0, 0);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        queues
            .map(|queue| {
                let waited_ms = scene.now().monotonic_ms() - queue.longest_since_ms;
                let (name, next) = (text(queue.lock.name), text(queue.next));
                format!("{name} {} {} {waited_ms} {next}", queue.waiters, queue.writers)
            })
            .collect()
    };
    assert_eq!(list(&scene), ["b 2 1 5 A", "a 1 1 0 B", "c 1 1 0 C"]);
    assert_eq!(scene.manager.waitlist().queues_by_longest_wait(1, 0).count(), 0);
    scene.abandons(first);
    assert_eq!(list(&scene), ["a 1 1 0 B", "b 1 1 0 C", "c 1 1 0 C"]);
}

/// Whatever leaves, comes, or is served meanwhile: who waits all the time is listed.
#[test]
fn a_list_of_queues_goes_on_from_any_of_them() {
    let mut scene = Scene::new();
    let names = "a b c d e f";
    scene.takes(names, "H", WRITE);
    let large = scene.waits("b c d e", "M", WRITE);
    for name in names.split(' ') {
        scene.waits(name, &format!("w{name}"), WRITE);
    }
    let list = |scene: &Scene, cursor: u64, most: usize| -> Vec<(String, u64)> {
        let queues = scene.manager.waitlist().queues_by_longest_wait(0, cursor).take(most);
        queues.map(|queue| (String::from_utf8_lossy(queue.lock.name).into(), queue.cursor)).collect()
    };
    let names_of = |listed: &[(String, u64)]| -> String { listed.iter().map(|(name, _)| &**name).collect() };
    assert_eq!(names_of(&list(&scene, 0, 9)), "bcdeaf");
    let first = list(&scene, 0, 2);
    assert_eq!((names_of(&first), names_of(&list(&scene, first[1].1, 9))), ("bc".into(), "deaf".into()));
    let by_one: Vec<_> = first.iter().chain(&list(&scene, first[1].1, 1)).cloned().collect();
    assert_eq!(names_of(&list(&scene, by_one[2].1, 9)), "eaf");
    // Each is known by its next request then, the first ones too.
    scene.abandons(large);
    assert_eq!(names_of(&list(&scene, first[1].1, 9)), "abcdef");
    assert_eq!(list(&scene, u64::MAX, 9), []);
}

#[test]
fn distributions_are_exact_when_short_and_within_a_hundredth_when_long() {
    let mut distribution = Distribution::default();
    assert_eq!((distribution.quantile_ms(0.5), distribution.max_ms()), (0, 0));
    (0..=100).for_each(|ms| distribution.record(ms));
    assert_eq!([0.5, 0.99, 0.999].map(|part| distribution.quantile_ms(part)), [50, 99, 100]);
    distribution.record(1_234_567);
    assert_eq!((distribution.quantile_ms(1.0), distribution.max_ms()), (1_234_567, 1_234_567));
    (0..300).for_each(|_| distribution.record(1_000_000));
    assert!((1_000_000..=1_010_000).contains(&distribution.quantile_ms(0.5)));
    distribution.record(u64::MAX);
    assert_eq!(distribution.max_ms(), u64::MAX);
}

/// Many that wait on one connection cost no connection each.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_request_that_is_answered_on_a_channel_costs_at_most_400_bytes() {
    const WAITERS: usize = 100_000;
    let mut scene = Scene::new();
    let name = |number: usize| format!("lock:{:04}", number % 100);
    for number in 0..100 {
        scene.takes(&name(number), "holder", WRITE);
    }
    let ((), growth) = growth_of(|| {
        for number in 0..WAITERS {
            let (own, token) = (name(number), format!("0123456789abcdef0123456789ab{number:08}"));
            let (names, on, tag) = ([own.as_bytes()], channel(1), format!("{number:08}"));
            let reply_to = ReplyTo::Channel { channel: &on, tag: tag.as_bytes() };
            let asked = Request { reply_to, ..request(token.as_bytes(), WRITE) };
            scene.manager.acquire(several(&mut scene.store, ms(1_000), 0, &names), &asked).unwrap();
        }
    });
    assert!(growth < 400 * WAITERS.cast_signed(), "{} bytes each", growth / WAITERS.cast_signed());
}
