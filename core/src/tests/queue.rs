//! What the queue of one name promises, a scenario for each promise.
//!
//! Tokens are `A`, `B`, …; `A` usually holds the lock `a` when a story begins. See [`super::scene`]
//! for the words.

use super::scene::{READ, Scene, TTL_MS, UPGRADE, WRITE};
use super::space::{Primary, ms, place};
use crate::desk::{Ask, Desk, Outcome, Patience, Refusal};
use crate::effect::{Effect, Event};
use crate::lock::{Holder, Lock, Mode};
use crate::queue::PlaceRef;
use crate::space::{Seen, Space};

#[test]
fn writers_are_served_in_order_of_arrival_one_at_a_time() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    for token in ["B", "C", "D"] {
        scene.waits("a", token, WRITE);
    }
    assert_eq!(scene.queue("a"), ["B", "C", "D"]);
    assert!(scene.news().is_empty());
    for (leaving, next) in [("A", "B"), ("B", "C"), ("C", "D")] {
        scene.releases("a", leaving);
        assert_eq!(scene.news(), [format!("{next} granted")]);
        assert_eq!(scene.held("a"), [format!("{next} writes")]);
    }
    scene.releases("a", "D");
    assert!(scene.held("a").is_empty());
}

#[test]
fn neighbouring_readers_at_the_head_are_let_in_together() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    for (token, want) in [("B", READ), ("C", READ), ("D", WRITE), ("E", READ), ("F", READ), ("G", WRITE)] {
        scene.waits("a", token, want);
    }
    scene.releases("a", "A");
    assert_eq!(scene.news(), ["B granted", "C granted"]);
    scene.releases("a", "C");
    assert!(scene.news().is_empty(), "the last reader has not left");
    scene.releases("a", "B");
    assert_eq!(scene.news(), ["D granted"]);
    scene.releases("a", "D");
    assert_eq!(scene.news(), ["E granted", "F granted"]);
    assert_eq!(scene.held("a"), ["E reads", "F reads"]);
    assert_eq!(scene.queue("a"), ["G"]);
}

#[test]
fn fences_rise_in_the_order_of_the_grants() {
    let mut scene = Scene::new();
    let mut last = scene.takes("a", "A", WRITE);
    for (token, want) in [("B", READ), ("C", READ), ("D", READ), ("E", WRITE)] {
        scene.waits("a", token, want);
    }
    scene.releases("a", "A");
    for token in ["B", "C", "D"] {
        scene.releases("a", token);
    }
    let fences = scene.fences();
    assert_eq!(fences.len(), 4);
    for fence in fences {
        assert!(fence > last);
        last = fence;
    }
}

#[test]
fn a_newcomer_never_overtakes_whether_it_waits_or_not() {
    let mut scene = Scene::new();
    scene.takes("a", "A", READ);
    scene.waits("a", "B", WRITE);
    assert_eq!(scene.tries("a", "C", READ), None, "it could read, but B was first");
    assert_eq!(scene.tries("a", "C", WRITE), None);
    scene.waits("a", "D", READ);
    assert_eq!(scene.queue("a"), ["B", "D"]);
    scene.releases("a", "A");
    assert_eq!(scene.news(), ["B granted"]);
    assert_eq!(scene.tries("a", "E", READ), None);
}

#[test]
fn a_newcomer_does_not_slip_in_after_a_deadline_before_the_queue_is_driven() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.waits("a", "B", WRITE);
    scene.now_ms += TTL_MS;
    assert_eq!(scene.tries("a", "C", WRITE), None, "the lock is free, but it is B's turn");
    scene.waits("a", "C", WRITE);
    scene.drives();
    assert_eq!(scene.news(), ["B granted"]);
    assert_eq!(scene.queue("a"), ["C"]);
}

#[test]
fn a_newcomer_is_served_at_once_when_nobody_waits() {
    let mut scene = Scene::new();
    scene.takes("a", "A", READ);
    let ask = scene.ask("a", "B", READ, TTL_MS, Patience::Endless);
    assert!(matches!(ask, Ok(Outcome::Granted(_))), "it is willing to wait and need not");
    assert!(scene.desk.waitlist().is_empty());
}

#[test]
fn queues_of_other_names_and_databases_are_no_concern() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.waits("a", "B", WRITE);
    scene.takes("b", "C", WRITE);
    let other_database = PlaceRef { db: 1, name: b"a" };
    assert_eq!(scene.desk.waitlist().len_at(other_database), 0);
    scene.releases("b", "C");
    assert!(scene.news().is_empty());
}

#[test]
fn holders_refresh_and_extend_without_queueing() {
    let mut scene = Scene::new();
    let fence = scene.takes("a", "A", READ);
    scene.waits("a", "B", WRITE);
    assert_eq!(scene.tries("a", "A", READ), Some(fence));
    scene.extends("a", "A", 900);
    assert_eq!(scene.hold("a", "A").unwrap().deadline_ms, scene.now_ms + 900);
    assert!(scene.news().is_empty());
    scene.releases("a", "A");
    assert_eq!(scene.news(), ["B granted"]);
    let fence = scene.hold("a", "B").unwrap().fence;
    scene.waits("a", "C", READ);
    assert_eq!(scene.tries("a", "B", WRITE), Some(fence));
    assert_eq!(scene.queue("a"), ["C"]);
}

#[test]
fn the_time_of_a_hold_starts_at_the_grant() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.waits_with("a", "B", WRITE, 70, Patience::Endless);
    scene.now_ms += 400;
    scene.releases("a", "A");
    let hold = scene.hold("a", "B").unwrap();
    assert_eq!((hold.since_ms, hold.deadline_ms), (scene.now_ms, scene.now_ms + 70));
}

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
fn a_waiting_upgrade_alone_closes_the_lock_to_new_readers() {
    let mut scene = Scene::new();
    for token in ["A", "B"] {
        scene.takes("a", token, READ);
    }
    scene.waits("a", "A", UPGRADE);
    assert_eq!(scene.tries("a", "C", READ), None);
    scene.waits("a", "C", READ);
    assert_eq!(scene.queue("a"), ["A", "C"]);
    scene.tries("a", "B", READ).expect("a present reader may refresh");
    scene.releases("a", "B");
    assert_eq!(scene.news(), ["A granted"]);
    scene.downgrades("a", "A");
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
fn an_upgrade_that_does_not_wait_is_refused_while_others_read() {
    let mut scene = Scene::new();
    for token in ["A", "B"] {
        scene.takes("a", token, READ);
    }
    assert_eq!(scene.tries("a", "A", UPGRADE), None);
    scene.waits("a", "A", UPGRADE);
    assert_eq!(scene.tries("a", "B", UPGRADE), None);
    assert_eq!(scene.held("a"), ["A reads", "B reads"]);
}

#[test]
fn a_second_upgrader_is_a_deadlock() {
    let mut scene = Scene::new();
    for token in ["A", "B", "C"] {
        scene.takes("a", token, READ);
    }
    scene.waits("a", "A", UPGRADE);
    let Refusal::Deadlock(cycle) = scene.is_refused("a", "B", UPGRADE) else { panic!("no deadlock") };
    assert_eq!(cycle.len(), 2);
    assert_eq!(scene.desk.counters.deadlocks, 1);
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
    scene.drives_at(scene.now_ms + 100);
    assert_eq!(scene.news(), ["A NOTHELD", "C granted"]);
}

#[test]
fn an_upgrade_whose_hold_is_released_while_it_waits_is_answered_at_once() {
    let mut scene = Scene::new();
    for token in ["A", "B"] {
        scene.takes("a", token, READ);
    }
    scene.waits("a", "A", UPGRADE);
    scene.waits("a", "A", UPGRADE);
    scene.waits("a", "C", READ);
    scene.releases("a", "A");
    assert_eq!(scene.news(), ["A NOTHELD", "A NOTHELD", "C granted"]);
}

#[test]
fn an_upgrade_sees_the_deadline_of_the_last_other_reader() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", READ, 900);
    scene.takes_for("a", "B", READ, 200);
    scene.takes_for("a", "C", READ, 300);
    scene.waits("a", "A", UPGRADE);
    assert_eq!(scene.due_in(), Some(300));
    scene.drives_at(scene.now_ms + 299);
    assert!(scene.news().is_empty());
    scene.drives_at(scene.now_ms + 1);
    assert_eq!(scene.news(), ["A granted"]);
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
fn a_downgrade_lets_in_nobody_past_a_writer() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.waits("a", "B", WRITE);
    scene.waits("a", "C", READ);
    scene.downgrades("a", "A");
    assert!(scene.news().is_empty());
    assert_eq!(scene.queue("a"), ["B", "C"]);
}

#[test]
fn one_token_that_waits_twice_is_answered_twice_with_one_fence() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.waits("a", "B", WRITE);
    scene.waits("a", "C", WRITE);
    scene.waits("a", "B", WRITE);
    scene.releases("a", "A");
    let fences = scene.fences();
    assert_eq!(fences.len(), 2, "both of B's, though C stands between them");
    assert_eq!(fences[0], fences[1]);
    let counters = scene.desk.counters;
    assert_eq!((counters.grants, counters.handoffs), (2, 1), "A's, and one of B's; the other is a refresh");
    assert_eq!(scene.queue("a"), ["C"]);
}

#[test]
fn one_token_that_waits_twice_to_read_is_answered_twice_with_one_fence() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    for token in ["B", "C", "B"] {
        scene.waits("a", token, READ);
    }
    scene.releases("a", "A");
    let mut fences = scene.fences();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 2);
    assert_eq!(scene.held("a"), ["B reads", "C reads"]);
}

#[test]
fn one_token_that_waits_in_both_modes_gets_the_first_and_an_error() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.waits("a", "B", READ);
    scene.waits("a", "C", WRITE);
    scene.waits("a", "B", WRITE);
    scene.releases("a", "A");
    assert_eq!(scene.news(), ["B granted", "B WRONGMODE"]);
    assert_eq!(scene.queue("a"), ["C"]);
}

#[test]
fn one_token_that_upgrades_twice_is_answered_twice_with_one_fence() {
    let mut scene = Scene::new();
    for token in ["A", "B"] {
        scene.takes("a", token, READ);
    }
    scene.waits("a", "A", UPGRADE);
    scene.waits("a", "A", UPGRADE);
    scene.releases("a", "B");
    let fences = scene.fences();
    assert_eq!(fences.len(), 2);
    assert_eq!(fences[0], fences[1]);
}

#[test]
fn the_deadline_of_a_writer_lets_in_the_next_at_that_very_millisecond() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", WRITE, 70);
    scene.waits("a", "B", WRITE);
    assert_eq!(scene.due_in(), Some(70));
    scene.drives_at(scene.now_ms + 69);
    assert!(scene.news().is_empty());
    assert_eq!(scene.due_in(), Some(1));
    scene.drives_at(scene.now_ms + 1);
    assert_eq!(scene.news(), ["B granted"]);
    assert_eq!(scene.due_in(), None, "nobody waits any more");
}

#[test]
fn the_deadline_of_the_last_reader_lets_in_the_writer() {
    let mut scene = Scene::new();
    for (token, ttl_ms) in [("A", 50), ("B", 80), ("C", 60)] {
        scene.takes_for("a", token, READ, ttl_ms);
    }
    scene.waits("a", "D", WRITE);
    assert_eq!(scene.due_in(), Some(80));
    scene.drives_at(scene.now_ms + 79);
    assert!(scene.news().is_empty());
    scene.drives_at(scene.now_ms + 1);
    assert_eq!(scene.news(), ["D granted"]);
}

#[test]
fn a_hold_that_is_extended_or_shortened_moves_the_wake() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", WRITE, 70);
    scene.waits("a", "B", WRITE);
    scene.extends("a", "A", 300);
    assert_eq!(scene.due_in(), Some(300));
    scene.extends("a", "A", 40);
    assert_eq!(scene.due_in(), Some(40));
    scene.takes_for("a", "A", WRITE, 90);
    assert_eq!(scene.due_in(), Some(90), "a refresh moves it too");
    scene.drives_at(scene.now_ms + 89);
    assert!(scene.news().is_empty());
    scene.drives_at(scene.now_ms + 1);
    assert_eq!(scene.news(), ["B granted"]);
}

#[test]
fn a_reader_that_leaves_early_moves_the_wake() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", READ, 50);
    scene.takes_for("a", "B", READ, 200);
    scene.waits("a", "C", WRITE);
    assert_eq!(scene.due_in(), Some(200));
    scene.releases("a", "B");
    assert_eq!(scene.due_in(), Some(50));
}

#[test]
fn a_key_that_is_known_to_go_sooner_lets_in_the_next_when_it_goes() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", WRITE, 200);
    scene.space.set_expiry(&place("a"), scene.now_ms + 30);
    scene.waits("a", "B", WRITE);
    assert_eq!(scene.due_in(), Some(30));
    scene.now_ms += 30;
    scene.space.delete(&place("a"));
    scene.drives();
    assert_eq!(scene.news(), ["B granted"]);
}

#[test]
fn a_wait_that_runs_out_is_answered_at_that_very_millisecond() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.waits_with("a", "B", WRITE, TTL_MS, Patience::Ms(40));
    assert_eq!(scene.due_in(), Some(40));
    scene.drives_at(scene.now_ms + 39);
    assert!(scene.news().is_empty());
    scene.drives_at(scene.now_ms + 1);
    assert_eq!(scene.news(), ["B timed out"]);
    assert_eq!(scene.desk.counters.wait_timeouts, 1);
    assert_eq!(scene.held("a"), ["A writes"]);
}

#[test]
fn a_wait_that_runs_out_lets_on_those_behind_it() {
    // A reads; in front, in the middle and at the end of the queue stands one whose time runs out.
    let wants = [("B", WRITE), ("C", READ), ("D", WRITE), ("E", READ)];
    let stories = [
        ("B", vec!["B timed out", "C granted"], vec!["D", "E"]),
        ("D", vec!["D timed out"], vec!["B", "C", "E"]),
        ("E", vec!["E timed out"], vec!["B", "C", "D"]),
    ];
    for (impatient, news, queue) in stories {
        let mut scene = Scene::new();
        scene.takes("a", "A", READ);
        for (token, want) in wants {
            let patience = if token == impatient { Patience::Ms(10) } else { Patience::Endless };
            scene.waits_with("a", token, want, TTL_MS, patience);
        }
        scene.drives_at(scene.now_ms + 10);
        assert_eq!(scene.news(), news);
        assert_eq!(scene.queue("a"), queue);
    }
}

#[test]
fn at_the_same_millisecond_a_grant_comes_before_a_time_out() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", WRITE, 40);
    scene.waits_with("a", "B", WRITE, TTL_MS, Patience::Ms(40));
    scene.drives_at(scene.now_ms + 40);
    assert_eq!(scene.news(), ["B granted"]);
}

#[test]
fn nobody_is_let_in_by_the_time_out_of_another_when_its_own_time_has_run_out_too() {
    let mut scene = Scene::new();
    scene.takes("a", "A", READ);
    scene.waits_with("a", "B", WRITE, TTL_MS, Patience::Ms(10));
    scene.waits_with("a", "C", READ, TTL_MS, Patience::Ms(20));
    scene.waits_with("a", "D", READ, TTL_MS, Patience::Endless);
    scene.drives_at(scene.now_ms + 25);
    assert_eq!(scene.news(), ["B timed out", "C timed out", "D granted"]);
}

#[test]
fn waits_can_be_ended_while_no_lock_may_be_changed() {
    let mut scene = Scene::new();
    scene.takes("a", "A", READ);
    scene.waits_with("a", "B", WRITE, TTL_MS, Patience::Ms(10));
    scene.waits("a", "C", READ);
    scene.now_ms += 10;
    let records = scene.space.records.len();
    scene.desk.end_waits(ms(scene.now_ms));
    assert_eq!(scene.news(), ["B timed out"]);
    assert_eq!(scene.space.records.len(), records);
    assert!(scene.desk.has_work());
    scene.drives();
    assert_eq!(scene.news(), ["C granted"]);
}

#[test]
fn a_queue_that_is_looked_at_early_changes_nothing() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.waits("a", "B", WRITE);
    scene.waits_with("a", "C", WRITE, TTL_MS, Patience::Ms(400));
    let (due, records) = (scene.desk.next_due_ms(), scene.space.records.len());
    for _ in 0..3 {
        scene.happens("a", |_, _| ());
    }
    assert_eq!((scene.desk.next_due_ms(), scene.space.records.len()), (due, records));
    assert!(scene.news().is_empty());
}

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

#[test]
fn no_new_hold_is_given_during_the_grace_period() {
    let mut scene = Scene::new();
    let fence = scene.takes("a", "A", WRITE);
    scene.desk.closed_until_ms = scene.now_ms + 300;
    assert_eq!(scene.ask("b", "B", WRITE, TTL_MS, Patience::None), Err(Refusal::Grace(300)));
    assert_eq!(scene.tries("a", "A", WRITE), Some(fence), "a refresh gives nothing new");
    scene.extends("a", "A", 800);
    scene.releases("a", "A");
    scene.waits("a", "B", WRITE);
    scene.waits("a", "C", WRITE);
    assert_eq!(scene.due_in(), Some(300));
    scene.drives_at(scene.now_ms + 299);
    assert!(scene.news().is_empty());
    scene.drives_at(scene.now_ms + 1);
    assert_eq!(scene.news(), ["B granted"]);
    scene.takes("b", "D", WRITE);
}

#[test]
fn a_hold_that_ends_during_the_grace_period_is_given_to_the_next_after_it() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", WRITE, 100);
    scene.desk.closed_until_ms = scene.now_ms + 300;
    scene.waits("a", "B", WRITE);
    scene.drives_at(scene.now_ms + 100);
    assert!(scene.news().is_empty());
    assert_eq!(scene.due_in(), Some(200));
    scene.drives_at(scene.now_ms + 200);
    assert_eq!(scene.news(), ["B granted"]);
}

#[test]
fn an_upgrade_whose_hold_ends_during_the_grace_period_is_answered_at_once() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", READ, 100);
    scene.desk.closed_until_ms = scene.now_ms + 300;
    scene.waits("a", "A", UPGRADE);
    assert_eq!(scene.due_in(), Some(100));
    scene.drives_at(scene.now_ms + 100);
    assert_eq!(scene.news(), ["A NOTHELD"]);
}

#[test]
fn a_full_queue_takes_nobody_and_recovers() {
    let mut scene = Scene::new();
    scene.desk.max_waiters = 2;
    scene.takes("a", "A", WRITE);
    scene.takes("b", "A", WRITE);
    scene.waits("a", "B", WRITE);
    scene.waits("b", "C", WRITE);
    assert_eq!(scene.is_refused("a", "D", WRITE), Refusal::QueueFull(2), "over all names together");
    assert_eq!(scene.tries("a", "D", WRITE), None, "who does not wait needs no room");
    scene.takes("c", "D", WRITE);
    scene.releases("a", "A");
    assert_eq!(scene.news(), ["B granted"]);
    scene.waits("a", "D", WRITE);
    assert_eq!(scene.desk.counters.waiters_max, 2);
}

#[test]
fn everybody_is_sent_away_when_this_server_no_longer_decides() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.waits_with("a", "B", WRITE, TTL_MS, Patience::Ms(40));
    scene.waits("a b", "C", WRITE);
    scene.desk.mark(place("a").as_ref());
    let records = scene.space.records.len();
    scene.desk.dismiss_all(&Refusal::NotPrimary);
    assert_eq!(scene.news(), ["B UNBLOCKED", "C UNBLOCKED"]);
    assert_eq!(scene.space.records.len(), records);
    assert!(scene.desk.waitlist().is_empty() && !scene.desk.has_work());
    assert_eq!(scene.desk.next_due_ms(), None);
}

#[test]
fn the_counters_tell_the_story() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.tries("a", "A", WRITE);
    scene.tries("a", "B", WRITE);
    scene.waits("a", "B", WRITE);
    scene.waits_with("a", "C", WRITE, TTL_MS, Patience::Ms(30));
    scene.drives_at(scene.now_ms + 30);
    scene.now_ms += 20;
    scene.releases("a", "A");
    scene.downgrades("a", "B");
    let counters = scene.desk.counters;
    assert_eq!((counters.grants, counters.refusals, counters.handoffs), (3, 1, 1));
    assert_eq!((counters.releases, counters.wait_timeouts, counters.deadlocks), (1, 1, 0));
    assert_eq!((counters.wait_ms_total, counters.wait_ms_max, counters.waiters_max), (50, 50, 2));
}

/// Counts looks at the locks, of which every decision takes one for each name.
#[derive(Default)]
struct Counted {
    space: Primary,
    looks: usize,
}

impl Space for Counted {
    fn look(&mut self, place: PlaceRef<'_>) -> Seen<'_> {
        self.looks += 1;
        self.space.look(place)
    }

    fn apply(&mut self, place: PlaceRef<'_>, effect: &Effect<'_>, event: Event) {
        self.space.apply(place, effect, event);
    }
}

/// So many requests, of which each has the token that its number is given, wait one after another for
/// the same lock to write. The most looks that parking one, or a release, took.
fn looks_with(waiters: usize, token: impl Fn(usize) -> String) -> usize {
    let (mut desk, mut space) = (Desk::default(), Counted::default());
    let key = place("a");
    let mut most = 0;
    for number in 0..=waiters {
        let (token, names) = (if number == 0 { "first".to_owned() } else { token(number) }, [&*key.name]);
        let ask = Ask {
            db: 0,
            names: &names,
            token: token.as_bytes(),
            want: WRITE,
            ttl_ms: 1_000,
            meta: None,
            patience: Patience::Endless,
            connection: None,
        };
        space.looks = 0;
        desk.acquire(&mut space, ms(1), &ask).unwrap();
        most = most.max(space.looks);
    }
    while let Some(lock) = space.space.lock(&key) {
        let holder = lock.holders().next().unwrap().token.clone();
        space.looks = 0;
        desk.release(&mut space, ms(1), key.as_ref(), &holder, None).unwrap();
        most = most.max(space.looks);
    }
    assert_eq!(desk.take_answers().len(), waiters);
    most
}

#[test]
fn the_cost_of_a_grant_does_not_depend_on_how_many_wait() {
    assert_eq!(looks_with(2_000, |number| number.to_string()), looks_with(2, |number| number.to_string()));
}

#[test]
fn a_token_that_waits_many_times_costs_as_much_as_so_many_tokens() {
    let looks = looks_with(2_000, |_| "same".to_owned());
    assert!(looks < 10 * 2_000, "{looks} looks for 2,000 grants at once");
}
