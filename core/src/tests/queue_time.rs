//! What the passing of time does to a queue: deadlines, waits that run out, the grace after a start.

use super::memory_store::id;
use super::parts::{READ, TTL_MS, UPGRADE, WRITE, whole_turn};
use super::scene::Scene;
use crate::error::LockError;
use crate::request::WaitPolicy;

#[test]
fn the_deadline_of_a_writer_lets_in_the_next_at_that_very_millisecond() {
    let mut scene = Scene::after("A writes a for 70; B waits to write a");
    assert_eq!(scene.due_in(), Some(70));
    scene.serves_at(scene.now_ms + 69);
    assert!(scene.news().is_empty());
    assert_eq!(scene.due_in(), Some(1));
    scene.serves_at(scene.now_ms + 1);
    assert_eq!(scene.news(), ["B granted"]);
    assert_eq!(scene.due_in(), None, "nobody waits any more");
}

#[test]
fn a_hold_that_is_shortened_moves_the_wake_and_one_that_is_extended_is_seen_at_the_old_one() {
    let mut scene = Scene::after("A writes a for 70; B waits to write a");
    scene.extends("a", "A", 40);
    assert_eq!(scene.due_in(), Some(40));
    scene.plays("A writes a for 90");
    scene.serves_at(scene.now_ms + 40);
    assert!(scene.news().is_empty(), "it was refreshed meanwhile");
    assert_eq!(scene.due_in(), Some(50));
    scene.serves_at(scene.now_ms + 50);
    assert_eq!(scene.news(), ["B granted"]);
}

#[test]
fn a_key_that_is_known_to_go_sooner_lets_in_the_next_when_it_goes() {
    let mut scene = Scene::after("A writes a for 200");
    scene.store.set_expiry(&id("a"), scene.now_ms + 30);
    scene.waits("a", "B", WRITE);
    assert_eq!(scene.due_in(), Some(31), "it is gone when that moment has passed");
    scene.now_ms += 31;
    scene.store.delete(&id("a"));
    scene.serves();
    assert_eq!(scene.news(), ["B granted"]);
}

#[test]
fn a_wait_that_runs_out_lets_on_those_behind_it() {
    let mut scene = Scene::after(
        "A reads a; B waits to write a within 10; C waits to read a; D waits to write a within 10",
    );
    scene.serves_at(scene.now_ms + 10);
    assert_eq!(scene.news(), ["B timed out", "C granted", "D timed out"]);
    let mut scene = Scene::after("A writes a for 40; B waits to write a within 40");
    scene.serves_at(scene.now_ms + 40);
    assert_eq!(scene.news(), ["B timed out"], "at the same millisecond a wait ends before a grant");
}

#[test]
fn waits_can_be_ended_while_no_lock_may_be_changed() {
    let mut scene = Scene::after(
        "A reads a; B waits to write a within 10; C waits to read a; H writes b; \
         D waits to write b within 10",
    );
    scene.now_ms += 10;
    let records = scene.store.records.len();
    scene.manager.end_waits(&mut whole_turn(scene.now()));
    assert_eq!(scene.news(), ["B timed out", "D timed out"]);
    assert_eq!(scene.store.records.len(), records);
    assert!(scene.manager.has_work());
    scene.serves();
    assert_eq!(scene.news(), ["C granted"]);
}

#[test]
fn no_new_hold_is_given_during_the_grace_period() {
    let mut scene = Scene::new();
    let fence = scene.takes("a", "A", WRITE);
    scene.starts_grace(300);
    assert_eq!(scene.asks("b", "B", WRITE, TTL_MS, WaitPolicy::NoWait), Err(LockError::Grace(300)));
    assert_eq!(scene.tries("a", "A", WRITE), Some(fence), "a refresh gives nothing new");
    assert!(scene.extends("a", "A", 800));
    scene.plays("A releases a; B C wait to write a");
    assert_eq!(scene.due_in(), Some(300));
    scene.serves_at(scene.now_ms + 299);
    assert!(scene.news().is_empty());
    scene.serves_at(scene.now_ms + 1);
    assert_eq!(scene.news(), ["B granted"]);
    scene.takes("b", "D", WRITE);
}

/// By an hour, while B waits for A's deadline or its own time to run out, or the grace goes on.
#[test]
fn durations_do_not_go_by_the_wall_clock_and_deadlines_do() {
    const HOUR_MS: i64 = 3_600_000;
    for step_ms in [-HOUR_MS, HOUR_MS] {
        let mut scene = Scene::new();
        scene.wall_step_ms = HOUR_MS;
        scene.plays("A writes a for 36000000; B waits to write a within 40");
        scene.starts_grace(60);
        scene.wall_step_ms += step_ms;
        assert_eq!(scene.due_in(), Some(40));
        scene.serves_at(scene.now_ms + 39);
        assert!(scene.news().is_empty());
        scene.serves_at(scene.now_ms + 1);
        assert_eq!(scene.news(), ["B timed out"]);
        assert_eq!(scene.asks("b", "C", WRITE, TTL_MS, WaitPolicy::NoWait), Err(LockError::Grace(20)));
        scene.now_ms += 20;
        scene.takes("b", "C", WRITE);
        assert_eq!(scene.manager.counters.waits.max_ms(), 0, "nobody has waited and was granted");
    }
    let mut scene = Scene::new();
    scene.wall_step_ms = HOUR_MS;
    scene.plays("A writes a for 100; B waits to write a");
    scene.wall_step_ms -= 50;
    assert_eq!(scene.due_in(), Some(150), "the deadline is an instant");
    scene.now_ms += 30;
    scene.wall_step_ms += 120;
    assert_eq!(scene.due_in(), Some(0));
    scene.serves();
    assert_eq!(scene.news(), ["B granted"]);
    assert_eq!(scene.manager.counters.wait_ms_total, 30, "whatever the wall clock says");
}

#[test]
fn the_oldest_wait_is_that_of_the_first_request_that_is_still_there() {
    let mut scene = Scene::new();
    let oldest_ms = |scene: &Scene| {
        let since_ms = scene.manager.waitlist().oldest_since_ms()?;
        Some(scene.now().monotonic_ms() - since_ms)
    };
    assert_eq!(oldest_ms(&scene), None, "nobody waits");
    scene.plays("H reads a b; U reads a");
    scene.channel = Some(1);
    scene.waits("b", "A", WRITE);
    scene.channel = None;
    scene.serves_at(scene.now_ms + 10);
    scene.plays("B waits to write a b within 20");
    scene.serves_at(scene.now_ms + 10);
    scene.waits("a", "U", UPGRADE);
    assert_eq!(oldest_ms(&scene), Some(20), "the upgrade stands in front, and came last");
    scene.channel = Some(2);
    scene.waits("b", "A", WRITE);
    scene.channel = None;
    assert_eq!(oldest_ms(&scene), Some(20), "asked again it is the same request");
    assert_eq!(scene.cancels("b", "A"), 1);
    assert_eq!(oldest_ms(&scene), Some(10), "cancelled");
    scene.serves_at(scene.now_ms + 10);
    assert_eq!(oldest_ms(&scene), Some(10), "its wait has run out");
    scene.releases("a", "H");
    assert_eq!(oldest_ms(&scene), None, "granted");
    assert!(scene.tries("a", "C", READ).is_none());
}
