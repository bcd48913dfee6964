//! Upgrades and downgrades, with and without a queue, a scenario for each promise.

use super::parts::{READ, UPGRADE};
use super::scene::Scene;

#[test]
fn a_waiting_upgrade_stands_before_the_queue_and_closes_it_to_new_readers() {
    let mut scene = Scene::after("A B read a; C waits to write a; A waits to upgrade a");
    assert_eq!(scene.queue("a"), ["A", "C"]);
    assert_eq!(scene.tries("a", "D", READ), None);
    assert_eq!(scene.plays("B releases a"), ["A granted"]);
    assert_eq!(scene.held("a"), ["A writes"]);
    assert_eq!(scene.plays("A releases a"), ["C granted"]);
}

#[test]
fn the_only_reader_upgrades_at_once_past_the_queue() {
    let mut scene = Scene::new();
    let read = scene.takes("a", "A", READ);
    assert_eq!(scene.plays("B waits to write a"), [""; 0]);
    assert!(scene.takes("a", "A", UPGRADE) > read);
    assert_eq!((scene.held("a").concat(), scene.queue("a").concat()), ("A writes".into(), "B".into()));
}

/// By its deadline, by an extension that is a shorter one, and in the grace period.
#[test]
fn an_upgrade_whose_hold_ends_while_it_waits_is_answered_at_once() {
    for (shortens, has_grace) in [(false, false), (true, false), (false, true)] {
        let mut scene = Scene::after("A reads a for 100; B reads a for 900");
        if has_grace {
            scene.starts_grace(300);
        }
        scene.plays("A waits to upgrade a; C waits to read a");
        if shortens {
            assert!(scene.extends("a", "A", 20));
        }
        let due_ms = if shortens { 20 } else { 100 };
        assert_eq!(scene.due_in(), Some(due_ms));
        scene.serves_at(scene.now_ms + due_ms);
        assert_eq!(scene.news().concat(), if has_grace { "A NotHeld" } else { "A NotHeldC granted" });
    }
}

#[test]
fn a_downgrade_lets_in_the_readers_at_the_head_and_no_writer() {
    let mut scene = Scene::after("A writes a; B C wait to read a; D waits to write a; E waits to read a");
    assert_eq!(scene.plays("A downgrades a"), ["B granted", "C granted"]);
    assert_eq!(scene.held("a"), ["A reads", "B reads", "C reads"]);
    assert_eq!(scene.queue("a"), ["D", "E"]);
}
