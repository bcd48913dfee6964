//! Requests for several names at once: all or none, in one order of arrival.

use super::memory_store::{MemoryStore, id};
use super::parts::{READ, TTL_MS, WRITE};
use super::scene::Scene;
use crate::error::LockError;
use crate::ids::HoldRef;
use crate::manager::Operation;
use crate::request::Extension;

#[test]
fn all_names_are_granted_with_one_fence_or_none() {
    let mut scene = Scene::after("A writes b");
    let records = scene.store.records.len();
    assert_eq!(scene.tries("a b c", "B", WRITE), None);
    scene.waits("a b c", "B", WRITE);
    assert_eq!(scene.store.records.len(), records);
    assert_eq!((scene.queue("a"), scene.queue("b")), (vec!["B".to_owned()], vec!["B".to_owned()]));
    assert_eq!(scene.tries("a", "C", READ), None, "a is free, but B was first");
    scene.waits("a", "C", WRITE);
    scene.releases("b", "A");
    let fence = scene.fences()[0];
    for name in ["a", "b", "c"] {
        assert_eq!(scene.held(name), ["B writes"]);
        assert_eq!(scene.hold(name, "B").unwrap().fence, fence);
    }
    assert_eq!(scene.tries("a b c", "B", WRITE), Some(fence), "the same again is a refresh");
    assert_eq!(scene.plays("B releases a"), ["C granted"]);
    assert_eq!(scene.manager.counters.grants, 3);
}

#[test]
fn overlapping_requests_are_served_in_order_of_arrival() {
    let mut scene =
        Scene::after("A writes a b c; B waits to write a b; C waits to write b c; D waits to write c a");
    for (token, next) in [("A", "B granted"), ("B", "C granted"), ("C", "D granted")] {
        assert_eq!(scene.plays(&format!("{token} releases a b c")), [next]);
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
    assert!(scene.takes("a c", "A", WRITE) > second);
    assert_eq!(scene.queue("a"), ["B"]);
}

#[test]
fn a_name_of_another_type_is_an_error_for_all() {
    let mut scene = Scene::after("A writes a");
    scene.store.replace_by_other_type(&id("c"));
    assert_eq!(scene.is_refused("a b c", "B", WRITE), LockError::WrongType);
    let (now, names): (_, [&[u8]; 2]) = (scene.now(), [b"a", b"c"]);
    let released =
        scene.manager.release(Operation::new(&mut scene.store, now, 0, &names), HoldRef::of(b"A"), None);
    let to = Extension::To(9);
    let extended =
        scene.manager.extend(Operation::new(&mut scene.store, now, 0, &names), HoldRef::of(b"A"), to);
    assert_eq!((released, extended), (Err(LockError::WrongType), Err(LockError::WrongType)));
    assert_eq!(scene.hold("a", "A").unwrap().deadline_ms, scene.now_ms + TTL_MS);
    let mut scene = Scene::after("A writes b c; B waits to write a b c; C waits to write a");
    scene.happens("b", MemoryStore::replace_by_other_type);
    assert_eq!(scene.news(), ["B WrongType", "C granted"], "it frees the others");
    assert!(scene.queue("c").is_empty());
}

#[test]
fn extending_several_is_all_or_none() {
    let mut scene = Scene::after("A writes a b for 100; A reads c for 50");
    let names: [&[u8]; 3] = [b"a", b"b", b"c"];
    scene.now_ms += 49;
    for (ttl_ms, extended) in [(80, true), (900, false)] {
        let (now, records, to) = (scene.now(), scene.store.records.len(), Extension::To(ttl_ms));
        let result =
            scene.manager.extend(Operation::new(&mut scene.store, now, 0, &names), HoldRef::of(b"A"), to);
        assert_eq!((result, scene.store.records.len() > records), (Ok(extended), extended));
        for name in ["a", "c"] {
            assert_eq!(scene.hold(name, "A").unwrap().deadline_ms, scene.now_ms + 80);
        }
        if extended {
            scene.releases("b", "A");
        }
    }
}
