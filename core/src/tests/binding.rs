//! Which connection a hold ends with: the one that acquired it, and no later one.

use super::scene::{READ, Scene, TTL_MS, UPGRADE, WRITE};
use super::space::place;
use crate::desk::Patience;

/// What the space was told since the last call: name, token, connection.
fn bindings(scene: &mut Scene) -> Vec<(String, String, Option<u64>)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let all = std::mem::take(&mut scene.space.bindings).into_iter();
    all.map(|(place, token, connection)| (text(&place.name), text(&token), connection)).collect()
}

fn bound(name: &str, token: &str, connection: Option<u64>) -> (String, String, Option<u64>) {
    (name.to_owned(), token.to_owned(), connection)
}

#[test]
fn a_new_hold_is_bound_to_the_connection_that_asked_for_it() {
    let mut scene = Scene::new();
    scene.connection = Some(7);
    scene.takes("a b", "A", WRITE);
    assert_eq!(bindings(&mut scene), [bound("a", "A", Some(7)), bound("b", "A", Some(7))]);
    scene.connection = None;
    scene.takes("c", "A", WRITE);
    assert_eq!(bindings(&mut scene), [bound("c", "A", None)]);
}

#[test]
fn the_same_hold_stays_bound_as_it_was() {
    let mut scene = Scene::new();
    scene.connection = Some(7);
    scene.takes("a", "A", READ);
    bindings(&mut scene);
    scene.connection = Some(8);
    scene.takes("a", "A", READ);
    scene.meta = Some("other metadata");
    scene.takes("a", "A", READ);
    scene.meta = None;
    scene.extends("a", "A", 900);
    scene.takes("a", "A", UPGRADE);
    scene.takes("a", "A", WRITE);
    scene.downgrades("a", "A");
    assert!(bindings(&mut scene).is_empty());
    assert!(scene.hold("a", "A").is_some());
}

#[test]
fn a_waiting_request_is_bound_to_its_own_connection_at_the_grant() {
    let mut scene = Scene::new();
    scene.connection = Some(7);
    scene.takes("a", "A", WRITE);
    scene.connection = Some(8);
    scene.waits("a", "B", READ);
    scene.connection = None;
    scene.waits("a", "C", READ);
    scene.connection = Some(9);
    scene.waits_with("a", "D", WRITE, TTL_MS, Patience::Ms(5));
    bindings(&mut scene);
    scene.releases("a", "A");
    assert_eq!(bindings(&mut scene), [bound("a", "B", Some(8)), bound("a", "C", None)]);
    scene.drives_at(scene.now_ms + 5);
    assert!(bindings(&mut scene).is_empty());
    assert_eq!(scene.desk.waitlist().len_at(place("a").as_ref()), 0);
}

/// `A` holds `a` for connection 7 and is granted `a` and `b` together for connection 8, which goes
/// before it is told.
fn one_of_two_is_taken_back() -> Scene {
    let mut scene = Scene::new();
    scene.connection = Some(7);
    scene.takes("a", "A", WRITE);
    scene.takes("b", "B", WRITE);
    scene.connection = Some(8);
    let both = scene.waits("a b", "A", WRITE);
    scene.releases("b", "B");
    assert_eq!(scene.held("b"), ["A writes"]);
    bindings(&mut scene);
    scene.leaves(both);
    scene
}

#[test]
fn a_hold_that_is_given_back_is_bound_as_it_was() {
    let mut scene = one_of_two_is_taken_back();
    scene.drives();
    assert_eq!(bindings(&mut scene), [bound("a", "A", Some(7))]);
    assert_eq!((scene.held("a"), scene.held("b")), (vec!["A writes".to_owned()], vec![]));
}

#[test]
fn a_hold_whose_connection_has_gone_is_not_given_back() {
    let mut scene = one_of_two_is_taken_back();
    scene.space.closed.insert(7);
    scene.drives();
    assert!(scene.held("a").is_empty() && scene.held("b").is_empty());
}

#[test]
fn a_refresh_inherits_a_hold_whose_acquirer_was_never_told() {
    let mut scene = Scene::new();
    scene.takes("a", "X", WRITE);
    scene.connection = Some(7);
    let first = scene.waits("a", "A", WRITE);
    scene.connection = None;
    scene.waits("a", "A", WRITE);
    scene.releases("a", "X");
    assert_eq!(bindings(&mut scene).last(), Some(&bound("a", "A", Some(7))));
    scene.leaves(first);
    scene.drives();
    assert_eq!(bindings(&mut scene), [bound("a", "A", None)], "the second acquired it");
    assert_eq!(scene.held("a"), ["A writes"]);
}
