//! Requests for several names at once: all or none, in one order of arrival.

use super::memory_store::{MemoryStore, id};
use super::scene::{READ, Scene, TTL_MS, WRITE, several};
use crate::error::LockError;
use crate::ids::HoldRef;
use crate::request::Extension;

#[test]
fn all_names_are_granted_with_one_fence() {
    let mut scene = Scene::new();
    let fence = scene.takes("a b c", "A", WRITE);
    for name in ["a", "b", "c"] {
        assert_eq!(scene.held(name), ["A writes"]);
        assert_eq!(scene.hold(name, "A").unwrap().fence, fence);
    }
    assert_eq!(scene.manager.counters.grants, 1);
    assert_eq!(scene.tries("a b c", "A", WRITE), Some(fence), "the same again is a refresh");
}

#[test]
fn none_is_granted_while_one_is_taken() {
    let mut scene = Scene::new();
    scene.takes("b", "A", WRITE);
    let records = scene.store.records.len();
    assert_eq!(scene.tries("a b c", "B", WRITE), None);
    scene.waits("a b c", "B", WRITE);
    assert_eq!(scene.store.records.len(), records);
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
    assert_eq!(scene.manager.waitlist().len(), 1);
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
    for (token, next) in [("A", "B granted"), ("B", "C granted"), ("C", "D granted")] {
        assert!(scene.releases_all("a b c", token) > 0);
        assert_eq!(scene.news(), [next]);
    }
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
fn a_name_of_another_type_is_an_error_for_all() {
    let mut scene = Scene::new();
    scene.store.replace_by_other_type(&id("c"));
    scene.takes("a", "A", WRITE);
    assert_eq!(scene.is_refused("a b c", "B", WRITE), LockError::WrongType);
    let names: [&[u8]; 2] = [b"a", b"c"];
    let now = scene.now();
    assert_eq!(
        scene.manager.release(several(&mut scene.store, now, 0, &names), HoldRef::of(b"A"), None),
        Err(LockError::WrongType)
    );
    assert_eq!(
        scene.manager.extend(several(&mut scene.store, now, 0, &names), HoldRef::of(b"A"), Extension::To(9)),
        Err(LockError::WrongType)
    );
    assert_eq!(scene.held("a"), ["A writes"]);
    assert_eq!(scene.hold("a", "A").unwrap().deadline_ms, scene.now_ms + TTL_MS);
}

#[test]
fn a_name_that_becomes_another_type_frees_the_others() {
    let mut scene = Scene::new();
    scene.takes("b c", "A", WRITE);
    scene.waits("a b c", "B", WRITE);
    scene.waits("a", "C", WRITE);
    scene.happens("b", MemoryStore::replace_by_other_type);
    assert_eq!(scene.news(), ["B WrongType", "C granted"]);
    assert!(scene.queue("c").is_empty());
}

#[test]
fn extending_several_is_all_or_none() {
    let mut scene = Scene::new();
    scene.takes_for("a b", "A", WRITE, 100);
    scene.takes_for("c", "A", READ, 50);
    let names: [&[u8]; 3] = [b"a", b"b", b"c"];
    scene.now_ms += 49;
    let now = scene.now();
    assert_eq!(
        scene.manager.extend(several(&mut scene.store, now, 0, &names), HoldRef::of(b"A"), Extension::To(80)),
        Ok(true)
    );
    for name in ["a", "b", "c"] {
        assert_eq!(scene.hold(name, "A").unwrap().deadline_ms, scene.now_ms + 80);
    }
    scene.releases("b", "A");
    let records = scene.store.records.len();
    assert_eq!(
        scene.manager.extend(
            several(&mut scene.store, now, 0, &names),
            HoldRef::of(b"A"),
            Extension::To(900)
        ),
        Ok(false)
    );
    assert_eq!(scene.store.records.len(), records);
}

#[test]
fn a_hold_that_the_clock_revives_is_waited_for_again() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", WRITE, 100);
    scene.takes_for("b", "B", WRITE, 200);
    scene.waits("a b", "C", WRITE);
    scene.serves_at(scene.now_ms + 150);
    assert_eq!(scene.due_in(), Some(50), "a has been found to be free");
    scene.now_ms -= 100;
    scene.releases("b", "B");
    assert!(scene.news().is_empty(), "the clock stepped back, and A holds a for another 50 ms");
    assert_eq!(scene.due_in(), Some(50));
    scene.serves_at(scene.now_ms + 50);
    assert_eq!(scene.news(), ["C granted"]);
}
