//! Upgrades and downgrades, with and without a queue, a scenario for each promise.

use super::scene::{READ, Scene, UPGRADE, WRITE};
use crate::error::LockError;

#[test]
fn a_waiting_upgrade_stands_before_the_queue_and_closes_it_to_new_readers() {
    let mut scene = Scene::new();
    scene.takes("a", "A", READ);
    scene.takes("a", "B", READ);
    scene.waits("a", "C", WRITE);
    scene.waits("a", "A", UPGRADE);
    assert_eq!(scene.queue("a"), ["A", "C"]);
    assert_eq!(scene.tries("a", "D", READ), None);
    scene.releases("a", "B");
    assert_eq!(scene.news(), ["A granted"]);
    assert_eq!(scene.held("a"), ["A writes"]);
    scene.releases("a", "A");
    assert_eq!(scene.news(), ["C granted"]);
}

#[test]
fn the_only_reader_upgrades_at_once_past_the_queue() {
    let mut scene = Scene::new();
    let read = scene.takes("a", "A", READ);
    scene.waits("a", "B", WRITE);
    let written = scene.takes("a", "A", UPGRADE);
    assert!(written > read);
    assert_eq!(scene.held("a"), ["A writes"]);
    assert_eq!(scene.queue("a"), ["B"]);
}

#[test]
fn a_second_upgrader_is_a_deadlock() {
    let mut scene = Scene::new();
    for token in ["A", "B", "C"] {
        scene.takes("a", token, READ);
    }
    scene.waits("a", "A", UPGRADE);
    let LockError::Deadlock(cycle) = scene.is_refused("a", "B", UPGRADE) else { panic!("no deadlock") };
    assert_eq!(cycle.steps.len(), 2);
    assert_eq!(scene.manager.counters.deadlocks, 1);
    assert_eq!(scene.held("a"), ["A reads", "B reads", "C reads"], "B keeps what it holds");
    for token in ["B", "C"] {
        scene.releases("a", token);
    }
    assert_eq!(scene.news(), ["A granted"]);
}

#[test]
fn an_upgrade_whose_hold_ends_while_it_waits_is_answered_at_once() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", READ, 100);
    scene.takes_for("a", "B", READ, 900);
    scene.waits("a", "A", UPGRADE);
    scene.waits("a", "C", READ);
    assert_eq!(scene.due_in(), Some(100));
    scene.serves_at(scene.now_ms + 100);
    assert_eq!(scene.news(), ["A NotHeld", "C granted"]);
}

#[test]
fn a_downgrade_lets_in_the_readers_at_the_head_and_no_writer() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    for (token, want) in [("B", READ), ("C", READ), ("D", WRITE), ("E", READ)] {
        scene.waits("a", token, want);
    }
    scene.downgrades("a", "A");
    assert_eq!(scene.news(), ["B granted", "C granted"]);
    assert_eq!(scene.held("a"), ["A reads", "B reads", "C reads"]);
    assert_eq!(scene.queue("a"), ["D", "E"]);
}

#[test]
fn an_upgrade_whose_hold_ends_during_the_grace_period_is_answered_at_once() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", READ, 100);
    scene.starts_grace(300);
    scene.waits("a", "A", UPGRADE);
    assert_eq!(scene.due_in(), Some(100));
    scene.serves_at(scene.now_ms + 100);
    assert_eq!(scene.news(), ["A NotHeld"]);
}

#[test]
fn an_upgrade_whose_hold_is_shortened_is_answered_when_it_ends() {
    let mut scene = Scene::new();
    for token in ["A", "B"] {
        scene.takes("a", token, READ);
    }
    scene.waits("a", "A", UPGRADE);
    scene.waits("a", "D", READ);
    assert!(scene.extends("a", "A", 20));
    assert!(scene.news().is_empty());
    assert_eq!(scene.due_in(), Some(20));
    scene.serves_at(scene.now_ms + 20);
    assert_eq!(scene.news(), ["A NotHeld", "D granted"]);
}
