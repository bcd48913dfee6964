//! Clients that go: while they wait, after their grant, and in the moment between.
//!
//! A grant and the death of its client can fall into one turn of the server's loop. Then either the
//! client was told and the token has the lock, or it was not and the next in the queue has it.

use super::scene::{READ, Scene, TTL_MS, UPGRADE, WRITE};
use super::space::{Primary, place};
use crate::desk::{Parting, Patience};
use crate::queue::Ticket;

#[test]
fn a_client_that_leaves_the_queue_lets_on_those_behind_it() {
    // A reads; in front, in the middle and at the end of the queue stands one that leaves.
    let wants = [("B", WRITE), ("C", READ), ("D", WRITE), ("E", READ)];
    let stories = [
        (0, vec!["C granted"], vec!["D", "E"]),
        (2, vec![], vec!["B", "C", "E"]),
        (3, vec![], vec!["B", "C", "D"]),
    ];
    for (leaving, news, queue) in stories {
        let mut scene = Scene::new();
        scene.takes("a", "A", READ);
        let tickets = wants.map(|(token, want)| scene.waits("a", token, want));
        assert_eq!(scene.leaves(tickets[leaving]), Parting::Left);
        assert!(scene.desk.has_work());
        assert!(scene.news().is_empty(), "leaving touches no lock");
        scene.drives();
        assert_eq!(scene.news(), news);
        assert_eq!(scene.queue("a"), queue);
    }
}

#[test]
fn nobody_overtakes_between_a_leave_and_the_next_drive() {
    let mut scene = Scene::new();
    scene.takes("a", "A", READ);
    let writer = scene.waits("a", "B", WRITE);
    scene.waits("a", "C", READ);
    scene.leaves(writer);
    assert_eq!(scene.tries("a", "D", READ), None, "C was first");
    scene.waits("a", "D", READ);
    scene.drives();
    assert_eq!(scene.news(), ["C granted", "D granted"]);
}

#[test]
fn a_client_can_give_up_before_its_time() {
    let mut scene = Scene::new();
    scene.takes("a", "A", READ);
    let writer = scene.waits_with("a", "B", WRITE, TTL_MS, Patience::Ms(400));
    scene.waits("a", "C", READ);
    assert!(scene.desk.give_up(writer));
    assert_eq!(scene.desk.counters.wait_timeouts, 1);
    scene.drives();
    assert_eq!(scene.news(), ["C granted"]);
    assert!(!scene.desk.give_up(writer), "it does not wait any more");
    assert_eq!(scene.desk.counters.wait_timeouts, 1);
}

#[test]
fn who_was_never_here_or_was_answered_is_unknown() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    let waiter = scene.waits_with("a", "B", WRITE, TTL_MS, Patience::Ms(5));
    scene.drives_at(scene.now_ms + 5);
    assert_eq!(scene.news(), ["B timed out"]);
    assert_eq!(scene.leaves(waiter), Parting::Unknown);
    assert_eq!(scene.leaves(Ticket(12_345)), Parting::Unknown);
    assert!(!scene.desk.has_work());
}

/// A story up to the moment in which B has been granted the lock `a` and not been told. C waits.
fn granted_and_untold() -> (Scene, Ticket) {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    let ticket = scene.waits("a", "B", WRITE);
    scene.waits("a", "C", WRITE);
    scene.releases("a", "A");
    assert_eq!(scene.news(), ["B granted"]);
    (scene, ticket)
}

#[test]
fn a_grant_whose_client_left_untold_goes_to_the_next() {
    let (mut scene, ticket) = granted_and_untold();
    assert_eq!(scene.leaves(ticket), Parting::Mourned);
    assert_eq!(scene.held("a"), ["B writes"], "leaving touches no lock");
    assert_eq!(scene.leaves(ticket), Parting::Mourned, "twice is once");
    assert!(scene.desk.has_work());
    scene.drives();
    assert_eq!(scene.news(), ["C granted"]);
    assert_eq!(scene.held("a"), ["C writes"]);
    assert_eq!(scene.leaves(ticket), Parting::Unknown);
}

#[test]
fn a_grant_whose_client_was_told_stays() {
    let (mut scene, ticket) = granted_and_untold();
    scene.desk.told(ticket);
    assert_eq!(scene.leaves(ticket), Parting::Unknown);
    scene.drives();
    assert!(scene.news().is_empty());
    assert_eq!(scene.held("a"), ["B writes"]);
}

#[test]
fn a_grant_whose_token_has_used_the_hold_stays() {
    let uses: [fn(&mut Scene); 3] = [
        |scene| scene.extends("a", "B", 700),
        |scene| assert!(scene.tries("a", "B", WRITE).is_some()),
        |scene| assert!(scene.downgrades("a", "B") > 0),
    ];
    for (number, uses) in uses.into_iter().enumerate() {
        let (mut scene, ticket) = granted_and_untold();
        uses(&mut scene);
        assert_eq!(scene.leaves(ticket), Parting::Unknown, "case {number}");
        scene.drives();
        assert!(scene.news().is_empty(), "case {number}");
        assert!(scene.hold("a", "B").is_some(), "case {number}");
    }
}

#[test]
fn a_grant_whose_token_has_used_the_hold_since_its_client_left_stays() {
    let (mut scene, ticket) = granted_and_untold();
    assert_eq!(scene.leaves(ticket), Parting::Mourned);
    scene.extends("a", "B", 700);
    scene.drives();
    assert!(scene.news().is_empty());
    assert_eq!(scene.held("a"), ["B writes"]);
}

#[test]
fn a_grant_that_was_released_and_taken_again_stays() {
    let (mut scene, ticket) = granted_and_untold();
    scene.releases("a", "B");
    assert_eq!(scene.news(), ["C granted"]);
    scene.releases("a", "C");
    scene.takes("a", "B", WRITE);
    assert_eq!(scene.leaves(ticket), Parting::Unknown);
    scene.drives();
    assert_eq!(scene.held("a"), ["B writes"]);
}

#[test]
fn a_grant_that_ended_by_itself_is_not_taken_back_from_its_successor() {
    let (mut scene, ticket) = granted_and_untold();
    scene.drives_at(scene.now_ms + TTL_MS);
    assert_eq!(scene.news(), ["C granted"]);
    scene.leaves(ticket);
    scene.drives();
    assert_eq!(scene.held("a"), ["C writes"]);
}

#[test]
fn a_grant_whose_key_is_gone_is_not_taken_back() {
    let (mut scene, ticket) = granted_and_untold();
    scene.leaves(ticket);
    scene.happens("a", Primary::replace_by_other_type);
    assert_eq!(scene.news(), ["C WRONGTYPE"]);
    let (mut scene, ticket) = granted_and_untold();
    scene.leaves(ticket);
    scene.happens("a", Primary::delete);
    assert_eq!(scene.news(), ["C granted"]);
}

#[test]
fn a_batch_of_readers_loses_only_the_one_that_left() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    let tickets = ["B", "C", "D"].map(|token| scene.waits("a", token, READ));
    scene.waits("a", "E", WRITE);
    scene.releases("a", "A");
    assert_eq!(scene.news().len(), 3);
    scene.leaves(tickets[1]);
    scene.drives();
    assert_eq!(scene.held("a"), ["B reads", "D reads"]);
    for ticket in tickets {
        scene.leaves(ticket);
    }
    scene.drives();
    assert_eq!(scene.news(), ["E granted"]);
}

#[test]
fn taking_back_an_upgrade_restores_the_read_hold() {
    let mut scene = Scene::new();
    let fence = scene.takes_for("a", "A", READ, 900);
    scene.takes("a", "B", READ);
    let before = scene.hold("a", "A").cloned();
    let ticket = scene.waits_with("a", "A", UPGRADE, 100, Patience::Endless);
    scene.waits("a", "C", READ);
    scene.now_ms += 7;
    scene.releases("a", "B");
    assert_eq!(scene.news(), ["A granted"]);
    assert!(scene.hold("a", "A").unwrap().fence > fence);
    scene.leaves(ticket);
    scene.drives();
    assert_eq!(scene.hold("a", "A").cloned(), before, "as it was, to the millisecond");
    assert_eq!(scene.news(), ["C granted"]);
    assert_eq!(scene.held("a"), ["A reads", "C reads"]);
    scene.space.assert_rebuilt_by_records();
}

#[test]
fn taking_back_an_upgrade_whose_read_hold_would_have_ended_releases() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", READ, 50);
    scene.takes_for("a", "B", READ, 20);
    let ticket = scene.waits("a", "A", UPGRADE);
    scene.drives_at(scene.now_ms + 20);
    assert_eq!(scene.news(), ["A granted"]);
    scene.waits("a", "C", WRITE);
    scene.now_ms += 30;
    scene.leaves(ticket);
    scene.drives();
    assert_eq!(scene.news(), ["C granted"]);
}

#[test]
fn taking_back_a_grant_of_several_names_restores_each_as_it_was() {
    let mut scene = Scene::new();
    let first = scene.takes("a", "A", WRITE);
    scene.takes("b", "B", WRITE);
    let ticket = scene.waits("a b c", "A", WRITE);
    scene.waits("c", "D", WRITE);
    scene.releases("b", "B");
    assert_eq!(scene.news(), ["A granted"]);
    for name in ["a", "b", "c"] {
        assert!(scene.hold(name, "A").unwrap().fence > first);
    }
    scene.leaves(ticket);
    scene.drives();
    assert_eq!(scene.hold("a", "A").unwrap().fence, first);
    assert!(scene.held("b").is_empty());
    assert_eq!(scene.news(), ["D granted"]);
}

#[test]
fn one_token_that_waited_twice_keeps_the_hold_while_one_of_its_clients_lives() {
    for leaving in [0, 1] {
        for told_first in [false, true] {
            let mut scene = Scene::new();
            scene.takes("a", "A", WRITE);
            let tickets = [scene.waits("a", "B", WRITE), scene.waits("a", "B", WRITE)];
            scene.waits("a", "C", WRITE);
            scene.releases("a", "A");
            assert_eq!(scene.news(), ["B granted", "B granted"]);
            let staying = tickets[1 - leaving];
            if told_first {
                scene.desk.told(staying);
            }
            scene.leaves(tickets[leaving]);
            scene.drives();
            scene.desk.told(staying);
            scene.drives();
            assert_eq!(scene.held("a"), ["B writes"], "client {leaving} left, told first: {told_first}");
        }
    }
}

#[test]
fn one_token_that_waited_twice_loses_the_hold_when_both_clients_leave_untold() {
    for order in [[0, 1], [1, 0]] {
        for together in [false, true] {
            let mut scene = Scene::new();
            scene.takes("a", "A", WRITE);
            let tickets = [scene.waits("a", "B", WRITE), scene.waits("a", "B", WRITE)];
            scene.waits("a", "C", WRITE);
            scene.releases("a", "A");
            assert_eq!(scene.news(), ["B granted", "B granted"]);
            for leaving in order {
                scene.leaves(tickets[leaving]);
                if !together {
                    scene.drives();
                }
            }
            scene.drives();
            assert_eq!(scene.news(), ["C granted"], "order {order:?}, together: {together}");
        }
    }
}

#[test]
fn one_token_that_was_told_of_a_part_keeps_that_part() {
    let mut scene = Scene::new();
    scene.takes("a b", "A", WRITE);
    let both = scene.waits("a b", "B", WRITE);
    let one = scene.waits("a", "B", WRITE);
    scene.waits("a", "C", WRITE);
    scene.waits("b", "D", WRITE);
    for name in ["a", "b"] {
        scene.releases(name, "A");
    }
    assert_eq!(scene.news(), ["B granted", "B granted"]);
    scene.desk.told(one);
    scene.leaves(both);
    scene.drives();
    assert_eq!(scene.news(), ["D granted"]);
    assert_eq!(scene.held("a"), ["B writes"]);
}

#[test]
fn nothing_is_remembered_of_those_who_have_gone() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    let tickets = ["B", "C", "D"].map(|token| scene.waits("a b", token, WRITE));
    for ticket in tickets {
        scene.leaves(ticket);
    }
    scene.drives();
    assert!(scene.desk.waitlist().is_empty() && !scene.desk.has_work() && !scene.desk.has_answers());
    assert_eq!(scene.desk.waitlist().len_at(place("a").as_ref()), 0);
    assert_eq!(scene.desk.waitlist().places().count(), 0);
    assert_eq!(scene.desk.next_due_ms(), None);
}
