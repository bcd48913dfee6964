//! `LIMIT`: readers beside at most so many others, as a semaphore.

use super::parts::READ;
use super::scene::Scene;

#[test]
fn a_limit_lets_in_so_many_in_strict_order() {
    let mut scene = Scene::new();
    scene.limit = Some(2);
    scene.plays("A B read a");
    assert_eq!(scene.tries("a", "C", READ), None);
    scene.plays("A reads a; C waits to read a");
    scene.limit = None;
    scene.plays("D waits to read a");
    scene.limit = Some(3);
    scene.plays("E waits to read a");
    assert_eq!(
        scene.plays("A releases a"),
        ["C granted", "D granted"],
        "D has no limit, E finds three others"
    );
    scene.limit = None;
    assert_eq!(scene.plays("F waits to write a; B releases a"), ["E granted"]);
    assert_eq!(scene.held("a"), ["C reads", "D reads", "E reads"]);
    assert_eq!(scene.plays("C D E release a"), ["F granted"]);
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

/// A limit closes no cycle. When A becomes the writer, B waits for A.
#[test]
fn an_upgrade_beside_a_limited_reader_is_looked_at() {
    let mut scene = Scene::after("A reads a; B writes b; A waits to write b");
    scene.limit = Some(1);
    assert_eq!(scene.plays("B waits to read a"), [""; 0]);
    scene.limit = None;
    assert!(scene.plays("A upgrades a").concat().starts_with("B Deadlock"));
}
