//! `LIMIT`: readers beside at most so many others, as a semaphore.

use super::scene::{READ, Scene, UPGRADE, WRITE};
use crate::request::WaitPolicy;

#[test]
fn a_limit_lets_in_so_many_in_strict_order() {
    let mut scene = Scene::new();
    scene.limit = Some(2);
    scene.takes("a", "A", READ);
    scene.takes("a", "B", READ);
    assert_eq!(scene.tries("a", "C", READ), None);
    scene.takes("a", "A", READ);
    scene.waits("a", "C", READ);
    scene.limit = None;
    scene.waits("a", "D", READ);
    scene.limit = Some(3);
    scene.waits("a", "E", READ);
    scene.releases("a", "A");
    assert_eq!(scene.news(), ["C granted", "D granted"], "D has no limit, and E finds three others");
    scene.limit = None;
    scene.waits("a", "F", WRITE);
    scene.releases("a", "B");
    assert_eq!(scene.news(), ["E granted"]);
    assert_eq!(scene.held("a"), ["C reads", "D reads", "E reads"]);
    ["C", "D", "E"].iter().for_each(|token| scene.releases("a", token));
    assert_eq!(scene.news(), ["F granted"]);
}

/// The deadline that makes room is not the first: with four that read, a limit of 2 needs three to go.
#[test]
fn time_alone_makes_room_at_the_right_deadline() {
    for readers in [4, 40] {
        let mut scene = Scene::new();
        for number in (0..readers).rev() {
            scene.takes_for("a", &format!("r{number}"), READ, 100 + number);
        }
        scene.limit = Some(2);
        scene.waits("a", "X", READ);
        assert_eq!(scene.due_in(), Some(100 + readers - 2));
        scene.serves_at(scene.now_ms + 100 + readers - 3);
        assert!(scene.news().is_empty());
        scene.serves_at(scene.now_ms + 1);
        assert_eq!(scene.news(), ["X granted"]);
    }
}

#[test]
fn a_limit_closes_no_cycle() {
    let mut scene = Scene::new();
    scene.limit = Some(1);
    scene.takes("a", "A", READ);
    scene.takes("b", "B", READ);
    scene.waits("b", "A", READ);
    scene.waits_with("a", "B", READ, 100, WaitPolicy::Timeout(50));
    scene.serves_at(scene.now_ms + 50);
    assert_eq!(scene.news(), ["B timed out"]);
}

/// B stands behind nobody but the limit; when A becomes the writer, B waits for A.
#[test]
fn an_upgrade_beside_a_limited_reader_is_looked_at() {
    let mut scene = Scene::new();
    scene.takes("a", "A", READ);
    scene.takes("b", "B", WRITE);
    scene.waits("b", "A", WRITE);
    scene.limit = Some(1);
    scene.waits("a", "B", READ);
    scene.limit = None;
    scene.takes("a", "A", UPGRADE);
    let news = scene.news();
    assert!(news.len() == 1 && news[0].starts_with("B Deadlock"), "{news:?}");
}
