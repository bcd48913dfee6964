//! What befalls a key outside of the manager, and what that means for those who wait for it.

use super::memory_store::{MemoryStore, id};
use super::scene::{READ, Scene, WRITE};
use crate::error::LockError;

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
