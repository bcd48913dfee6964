//! What the queue of one name promises its requests: the order, who may be served beside whom, what is counted.
//! See [`super::scene`] for the words.

use super::heap::growth_of;
use super::memory_store::id;
use super::parts::{READ, TTL_MS, WRITE, channel, ms, request, whole_turn};
use super::scene::Scene;
use crate::distribution::Distribution;
use crate::error::LockError;
use crate::manager::Operation;
use crate::request::{ReplyTo, Request};

#[test]
fn neighbouring_readers_at_the_head_are_let_in_together() {
    let mut scene = Scene::after(
        "A writes a; B C wait to read a; D waits to write a; E F wait to read a; G waits to write a",
    );
    assert_eq!(scene.plays("A releases a"), ["B granted", "C granted"]);
    assert_eq!(scene.plays("C releases a"), [""; 0], "the last reader has not left");
    assert_eq!(scene.plays("B releases a"), ["D granted"]);
    assert_eq!(scene.plays("D releases a"), ["E granted", "F granted"]);
    assert_eq!((scene.held("a").concat(), scene.queue("a").concat()), ("E readsF reads".into(), "G".into()));
}

#[test]
fn a_newcomer_never_overtakes_whether_it_waits_or_not() {
    let mut scene = Scene::after("A reads a; B waits to write a");
    assert_eq!(scene.tries("a", "C", READ), None, "it could read, but B was first");
    assert_eq!(scene.plays("D waits to read a"), [""; 0]);
    scene.now_ms += TTL_MS;
    scene.in_one_turn(|scene| {
        assert_eq!(scene.tries("a", "C", WRITE), None, "the lock is free, but it is B's turn");
        scene.waits("a", "C", WRITE);
    });
    assert_eq!(scene.news(), ["B granted"]);
    assert_eq!(scene.queue("a"), ["D", "C"]);
}

#[test]
fn one_token_that_waits_twice_is_answered_twice_with_one_fence() {
    let mut scene = Scene::after("A writes a; B C B wait to write a");
    scene.releases("a", "A");
    let fences = scene.fences();
    assert_eq!(fences.len(), 2, "both of B's, though C stands between them");
    assert_eq!(fences[0], fences[1]);
    let counters = &scene.manager.counters;
    assert_eq!((counters.grants, counters.handoffs), (2, 1), "A's, and one of B's; the other is a refresh");
    let mut scene = Scene::after("A writes a; B waits to read a; B C wait to write a");
    assert_eq!(scene.plays("A releases a"), ["B granted", "B WrongMode(Read)"]);
    assert_eq!(scene.queue("a"), ["C"]);
}

#[test]
fn everybody_is_sent_away_when_this_server_no_longer_decides() {
    let mut scene = Scene::after("A writes a; B waits to write a within 40; C waits to write a b");
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
    let mut scene = Scene::after("A A write a; B waits to write a; C waits to write a within 30");
    scene.tries("a", "D", WRITE);
    scene.serves_at(scene.now_ms + 30);
    scene.now_ms += 20;
    assert_eq!(scene.plays("A releases a; B downgrades a"), ["C timed out", "B granted"]);
    let counters = &scene.manager.counters;
    assert_eq!((counters.grants, counters.refusals, counters.handoffs), (3, 1, 1));
    assert_eq!((counters.releases, counters.wait_timeouts, counters.deadlocks), (1, 1, 0));
    assert_eq!((counters.wait_ms_total, counters.waits.max_ms(), counters.waiters_max), (50, 50, 2));
    assert_eq!(counters.holds.max_ms(), 50);
}

#[test]
fn the_queues_of_a_database_are_listed_by_the_longest_wait() {
    let mut scene = Scene::after("H writes a b c");
    let first = scene.waits("b", "A", READ);
    scene.now_ms += 5;
    scene.plays("B waits to write a; C waits to write b c");
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

/// If others leave, come, or are served meanwhile: who waits all the time is listed.
#[test]
fn a_list_of_queues_goes_on_from_any_of_them() {
    let names = "a b c d e f";
    let mut scene = Scene::after("H writes a b c d e f");
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
            scene.manager.acquire(Operation::new(&mut scene.store, ms(1_000), 0, &names), &asked).unwrap();
        }
    });
    assert!(growth < 400 * WAITERS.cast_signed(), "{} bytes each", growth / WAITERS.cast_signed());
}
