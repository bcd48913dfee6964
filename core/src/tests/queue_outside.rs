//! What befalls a key outside of the desk, and what that means for those who wait for it.

use super::scene::{READ, Scene, WRITE};
use super::space::{Primary, place};
use crate::desk::Refusal;
use crate::lock::{Holder, Lock, Mode};

#[test]
fn whatever_takes_the_key_away_lets_in_the_next() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    for token in ["B", "C"] {
        scene.waits("a", token, READ);
    }
    scene.happens("a", Primary::delete);
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
        scene.space.delete(&place(name));
    }
    scene.desk.mark_database(Some(1));
    assert!(!scene.desk.has_work(), "nobody waits in that database");
    scene.desk.mark_database(Some(0));
    scene.drives();
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
    scene.happens("a", Primary::replace_by_other_type);
    assert_eq!(scene.news(), ["B WRONGTYPE", "C WRONGTYPE"]);
    assert_eq!(scene.is_refused("a", "D", WRITE), Refusal::WrongType);
    assert!(scene.desk.waitlist().is_empty());
}

#[test]
fn a_key_that_moves_to_another_node_sends_everybody_away() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    for token in ["B", "C"] {
        scene.waits("a", token, WRITE);
    }
    scene.happens("a", |space, place| space.set_elsewhere(place, true));
    assert_eq!(scene.news(), ["B TRYAGAIN", "C TRYAGAIN"]);
    assert_eq!(scene.is_refused("a", "D", WRITE), Refusal::Elsewhere);
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
    scene.happens("a", |space, place| space.replace(place, stranger(Mode::Write)));
    assert!(scene.news().is_empty());
    assert_eq!(scene.due_in(), Some(60));
    scene.happens("a", |space, place| space.replace(place, stranger(Mode::Read)));
    assert_eq!(scene.news(), ["B granted"]);
    assert_eq!(scene.held("a"), ["X reads", "B reads"]);
}
