//! What befalls a key outside of the manager, and what that means for those who wait for it.

use super::memory_store::{MemoryStore, id};
use super::scene::{READ, Scene, WRITE};
use crate::error::LockError;
use crate::lock::{Holder, Lock};
use crate::mode::Mode;

#[test]
fn whatever_takes_the_key_away_lets_in_the_next() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    for token in ["B", "C"] {
        scene.waits("a", token, READ);
    }
    scene.happens("a", MemoryStore::delete);
    assert_eq!(scene.news(), ["B granted", "C granted"]);
}

#[test]
fn keys_of_a_whole_database_can_go_at_once() {
    let mut scene = Scene::new();
    for name in ["a", "b", "c"] {
        scene.takes(name, "A", WRITE);
        scene.waits(name, "B", WRITE);
    }
    for name in ["a", "b", "c"] {
        scene.store.delete(&id(name));
    }
    scene.manager.database_changed(Some(1));
    assert!(!scene.manager.has_work(), "nobody waits in that database");
    scene.manager.database_changed(Some(0));
    scene.serves();
    assert_eq!(scene.news().len(), 3);
    for name in ["a", "b", "c"] {
        assert_eq!(scene.held(name), ["B writes"]);
    }
}

#[test]
fn a_key_that_becomes_another_type_sends_everybody_away() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    for token in ["B", "C"] {
        scene.waits("a", token, READ);
    }
    scene.happens("a", MemoryStore::replace_by_other_type);
    assert_eq!(scene.news(), ["B WrongType", "C WrongType"]);
    assert_eq!(scene.is_refused("a", "D", WRITE), LockError::WrongType);
    assert!(scene.manager.waitlist().is_empty());
}

#[test]
fn a_key_that_moves_to_another_node_sends_everybody_away() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    for token in ["B", "C"] {
        scene.waits("a", token, WRITE);
    }
    scene.happens("a", |store, id| store.set_served(id, false));
    assert_eq!(scene.news(), ["B NotServed", "C NotServed"]);
    assert_eq!(scene.is_refused("a", "D", WRITE), LockError::NotServed);
}

#[test]
fn a_key_that_is_replaced_by_another_lock_is_what_counts() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.waits("a", "B", READ);
    scene.waits("a", "C", WRITE);
    let deadline_ms = scene.now_ms + 60;
    let stranger = |mode| {
        let (token, meta) = (b"X"[..].into(), b""[..].into());
        Lock::from_parts(mode, vec![Holder { token, fence: 7, since_ms: 1, deadline_ms, meta }]).unwrap()
    };
    scene.happens("a", |store, id| store.replace(id, stranger(Mode::Write)));
    assert!(scene.news().is_empty());
    assert_eq!(scene.due_in(), Some(60));
    scene.happens("a", |store, id| store.replace(id, stranger(Mode::Read)));
    assert_eq!(scene.news(), ["B granted"]);
    assert_eq!(scene.held("a"), ["X reads", "B reads"]);
}
