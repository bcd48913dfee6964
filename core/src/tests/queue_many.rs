//! Requests for several names at once: all or none, in one order of arrival.

use super::scene::{READ, Scene, TTL_MS, UPGRADE, WRITE};
use super::space::{Counted, Primary, ms, place};
use crate::desk::{Ask, Desk, Patience, Refusal};
use crate::lock::Want;

#[test]
fn all_names_are_granted_with_one_fence() {
    let mut scene = Scene::new();
    let fence = scene.takes("a b c", "A", WRITE);
    for name in ["a", "b", "c"] {
        assert_eq!(scene.held(name), ["A writes"]);
        assert_eq!(scene.hold(name, "A").unwrap().fence, fence);
    }
    assert_eq!(scene.desk.counters.grants, 1);
    assert_eq!(scene.tries("a b c", "A", WRITE), Some(fence), "the same again is a refresh");
}

#[test]
fn none_is_granted_while_one_is_taken() {
    let mut scene = Scene::new();
    scene.takes("b", "A", WRITE);
    let records = scene.space.records.len();
    assert_eq!(scene.tries("a b c", "B", WRITE), None);
    scene.waits("a b c", "B", WRITE);
    assert_eq!(scene.space.records.len(), records);
    assert!(scene.held("a").is_empty() && scene.held("c").is_empty());
    scene.releases("b", "A");
    assert_eq!(scene.news(), ["B granted"]);
    for name in ["a", "b", "c"] {
        assert_eq!(scene.held(name), ["B writes"]);
    }
}

#[test]
fn a_waiting_request_stands_in_every_queue() {
    let mut scene = Scene::new();
    scene.takes("b", "A", WRITE);
    scene.waits("a b", "B", WRITE);
    assert_eq!((scene.queue("a"), scene.queue("b")), (vec!["B".to_owned()], vec!["B".to_owned()]));
    assert_eq!(scene.desk.waitlist().len(), 1);
    assert_eq!(scene.tries("a", "C", READ), None, "a is free, but B was first");
    scene.waits("a", "C", WRITE);
    scene.releases("b", "A");
    assert_eq!(scene.news(), ["B granted"]);
    scene.releases("a", "B");
    assert_eq!(scene.news(), ["C granted"]);
}

#[test]
fn overlapping_requests_are_served_in_order_of_arrival() {
    let mut scene = Scene::new();
    scene.takes("a b c", "A", WRITE);
    scene.waits("a b", "B", WRITE);
    scene.waits("b c", "C", WRITE);
    scene.waits("c a", "D", WRITE);
    let releases_all = |scene: &mut Scene, token: &str| {
        let names: [&[u8]; 3] = [b"a", b"b", b"c"];
        let released =
            scene.desk.release_all(&mut scene.space, ms(scene.now_ms), 0, &names, token.as_bytes()).unwrap();
        assert!(released > 0);
        scene.news()
    };
    assert_eq!(releases_all(&mut scene, "A"), ["B granted"]);
    assert_eq!(releases_all(&mut scene, "B"), ["C granted"]);
    assert_eq!(releases_all(&mut scene, "C"), ["D granted"]);
}

#[test]
fn requests_that_share_no_name_do_not_wait_for_each_other() {
    let mut scene = Scene::new();
    scene.takes("a b c d", "A", WRITE);
    scene.waits("a b", "B", WRITE);
    scene.waits("c d", "C", WRITE);
    for name in ["c", "d"] {
        scene.releases(name, "A");
    }
    assert_eq!(scene.news(), ["C granted"]);
    for name in ["a", "b"] {
        scene.releases(name, "A");
    }
    assert_eq!(scene.news(), ["B granted"]);
}

#[test]
fn a_request_to_read_several_lets_in_readers_before_and_after_it() {
    let mut scene = Scene::new();
    scene.takes("a b", "A", WRITE);
    scene.waits("a", "B", READ);
    scene.waits("a b", "C", READ);
    scene.waits("b", "D", READ);
    scene.releases("a", "A");
    assert_eq!(scene.news(), ["B granted"]);
    assert!(scene.queue("a") == ["C"] && scene.queue("b") == ["C", "D"]);
    scene.releases("b", "A");
    assert_eq!(scene.news(), ["C granted", "D granted"]);
}

#[test]
fn each_of_the_deadlines_in_the_way_is_waited_for() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", WRITE, 100);
    scene.takes_for("b", "B", WRITE, 250);
    scene.takes_for("c", "C", WRITE, 50);
    scene.waits("a b c", "D", WRITE);
    let start_ms = scene.now_ms;
    while scene.news().is_empty() {
        let due_ms = scene.desk.next_due_ms().expect("somebody has to look again");
        assert!(due_ms > scene.now_ms);
        scene.drives_at(due_ms);
    }
    assert_eq!(scene.now_ms - start_ms, 250);
}

#[test]
fn what_is_held_already_does_not_stand_in_the_way() {
    let mut scene = Scene::new();
    let first = scene.takes("a", "A", WRITE);
    let second = scene.takes("a b", "A", WRITE);
    assert!(second > first, "one new fence for all");
    for name in ["a", "b"] {
        assert_eq!(scene.hold(name, "A").unwrap().fence, second);
    }
    scene.waits("a", "B", READ);
    let third = scene.takes("a c", "A", WRITE);
    assert!(third > second);
    assert_eq!(scene.queue("a"), ["B"]);
}

#[test]
fn a_name_held_in_the_other_mode_is_an_error_for_all() {
    let mut scene = Scene::new();
    scene.takes("b", "A", READ);
    let records = scene.space.records.len();
    assert!(matches!(scene.is_refused("a b", "A", WRITE), Refusal::OtherMode(_)));
    assert_eq!(scene.space.records.len(), records);
}

#[test]
fn a_name_of_another_type_is_an_error_for_all() {
    let mut scene = Scene::new();
    scene.space.replace_by_other_type(&place("c"));
    scene.takes("a", "A", WRITE);
    assert_eq!(scene.is_refused("a b c", "B", WRITE), Refusal::WrongType);
    let names: [&[u8]; 2] = [b"a", b"c"];
    let now = ms(scene.now_ms);
    assert_eq!(scene.desk.release_all(&mut scene.space, now, 0, &names, b"A"), Err(Refusal::WrongType));
    assert_eq!(scene.desk.extend(&mut scene.space, now, 0, &names, b"A", 9), Err(Refusal::WrongType));
    assert_eq!(scene.held("a"), ["A writes"]);
    assert_eq!(scene.hold("a", "A").unwrap().deadline_ms, scene.now_ms + TTL_MS);
}

#[test]
fn a_name_that_becomes_another_type_frees_the_others() {
    let mut scene = Scene::new();
    scene.takes("b c", "A", WRITE);
    scene.waits("a b c", "B", WRITE);
    scene.waits("a", "C", WRITE);
    scene.happens("b", Primary::replace_by_other_type);
    assert_eq!(scene.news(), ["B WRONGTYPE", "C granted"]);
    assert!(scene.queue("c").is_empty());
}

#[test]
fn extending_several_is_all_or_none() {
    let mut scene = Scene::new();
    scene.takes_for("a b", "A", WRITE, 100);
    scene.takes_for("c", "A", READ, 50);
    let names: [&[u8]; 3] = [b"a", b"b", b"c"];
    scene.now_ms += 49;
    let now = ms(scene.now_ms);
    assert_eq!(scene.desk.extend(&mut scene.space, now, 0, &names, b"A", 80), Ok(true));
    for name in ["a", "b", "c"] {
        assert_eq!(scene.hold(name, "A").unwrap().deadline_ms, scene.now_ms + 80);
    }
    scene.releases("b", "A");
    let records = scene.space.records.len();
    assert_eq!(scene.desk.extend(&mut scene.space, now, 0, &names, b"A", 900), Ok(false));
    assert_eq!(scene.space.records.len(), records);
}

#[test]
fn a_request_that_gives_up_lets_on_those_behind_it_on_every_name() {
    let mut scene = Scene::new();
    scene.takes("c", "A", WRITE);
    scene.waits_with("a b c", "B", WRITE, TTL_MS, Patience::Ms(10));
    scene.waits("a", "C", WRITE);
    scene.waits("b", "D", READ);
    scene.waits("b", "E", READ);
    scene.drives_at(scene.now_ms + 10);
    let mut news = scene.news();
    news.sort();
    assert_eq!(news, ["B timed out", "C granted", "D granted", "E granted"]);
}

#[test]
fn a_hold_that_ends_while_its_token_waits_for_more_has_to_be_waited_for_again() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", WRITE, 30);
    scene.takes_for("b", "B", WRITE, 90);
    scene.waits("a b", "A", WRITE);
    scene.drives_at(scene.now_ms + 30);
    assert!(scene.news().is_empty() && scene.held("a").is_empty());
    assert_eq!(scene.tries("a", "C", WRITE), None, "A stands in the queue there");
    scene.drives_at(scene.now_ms + 60);
    assert_eq!(scene.news(), ["A granted"]);
    for name in ["a", "b"] {
        assert_eq!(scene.held(name), ["A writes"]);
    }
}

#[test]
fn a_single_upgrade_goes_before_requests_for_several() {
    let mut scene = Scene::new();
    for token in ["A", "B"] {
        scene.takes("a", token, READ);
    }
    scene.waits("a b", "C", WRITE);
    scene.waits("a", "A", UPGRADE);
    scene.releases("a", "B");
    assert_eq!(scene.news(), ["A granted"]);
    scene.releases("a", "A");
    assert_eq!(scene.news(), ["C granted"]);
}

#[test]
fn one_token_that_waits_for_a_part_of_what_it_waits_for_is_answered_for_both() {
    let mut scene = Scene::new();
    scene.takes("a b", "A", WRITE);
    scene.waits("a b", "B", WRITE);
    scene.waits("b", "C", WRITE);
    scene.waits("b", "B", WRITE);
    scene.releases("a", "A");
    scene.releases("b", "A");
    let fences = scene.fences();
    assert_eq!(fences.len(), 2);
    assert_eq!(fences[0], fences[1]);
    assert_eq!(scene.queue("b"), ["C"]);
}

#[test]
fn a_hold_that_the_clock_revives_is_waited_for_again() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", WRITE, 100);
    scene.takes_for("b", "B", WRITE, 200);
    scene.waits("a b", "C", WRITE);
    scene.drives_at(scene.now_ms + 150);
    assert_eq!(scene.due_in(), Some(50), "a has been found to be free");
    scene.now_ms -= 100;
    scene.releases("b", "B");
    assert!(scene.news().is_empty(), "the clock stepped back, and A holds a for another 50 ms");
    assert_eq!(scene.due_in(), Some(50));
    scene.drives_at(scene.now_ms + 50);
    assert_eq!(scene.news(), ["C granted"]);
}

/// Asks to wait, endlessly, for all these names. The looks at locks that it took.
fn looks_to_ask(desk: &mut Desk, space: &mut Counted, token: &str, want: Want, names: &[&[u8]]) -> usize {
    let ask = Ask {
        db: 0,
        names,
        token: token.as_bytes(),
        want,
        ttl_ms: 1_000,
        meta: None,
        patience: Patience::Endless,
        connection: None,
    };
    space.looks = 0;
    desk.acquire(space, ms(1), &ask).unwrap();
    space.looks
}

#[test]
fn the_thousandth_request_for_the_same_names_costs_what_the_first_did() {
    for want in [WRITE, READ] {
        let (mut desk, mut space) = (Desk::default(), Counted::default());
        let names: [&[u8]; 3] = [b"a", b"b", b"c"];
        looks_to_ask(&mut desk, &mut space, "holder", WRITE, &names);
        let most = looks_to_ask(&mut desk, &mut space, "first", want, &names);
        for number in 1..1_000 {
            assert!(looks_to_ask(&mut desk, &mut space, &number.to_string(), want, &names) <= most);
        }
        assert!(looks_to_ask(&mut desk, &mut space, "last", WRITE, &[names[0], b"own"]) <= most);
    }
}

#[test]
fn a_release_of_many_names_looks_once_at_a_request_that_waits_at_all_of_them() {
    const NAMES: usize = 500;
    let (mut desk, mut space) = (Desk::default(), Counted::default());
    let texts: Vec<String> = (0..NAMES).map(|number| number.to_string()).collect();
    let names: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
    let reversed: Vec<&[u8]> = names.iter().rev().copied().collect();
    looks_to_ask(&mut desk, &mut space, "holder", WRITE, &names);
    for (number, name) in names.iter().enumerate().take(NAMES / 2) {
        looks_to_ask(&mut desk, &mut space, &format!("single {number}"), WRITE, &[*name]);
    }
    looks_to_ask(&mut desk, &mut space, "all", WRITE, &reversed);
    space.looks = 0;
    assert_eq!(desk.release_all(&mut space, ms(2), 0, &names, b"holder"), Ok(NAMES));
    assert_eq!(desk.take_answers().len(), NAMES / 2);
    assert!(space.looks < 10 * NAMES, "{} looks", space.looks);
}
