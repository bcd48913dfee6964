//! That what one user, one token, one request or one search for a deadlock takes has a bound.

use super::memory_store::id;
use super::parts::{READ, UPGRADE, WRITE};
use super::scene::Scene;
use crate::error::LockError;
use crate::limits::PLACES_OF_TOKEN_MAX;
use crate::manager::TimeSlice;
use crate::timestamp::Timestamp;

fn token(number: usize) -> String {
    format!("t{number}")
}

fn name(number: usize) -> String {
    format!("n{number}")
}

#[test]
fn a_user_may_have_so_many_places_with_a_token() {
    assert_eq!(Scene::new().manager.bounds.places_of_token, PLACES_OF_TOKEN_MAX);
    let mut scene = Scene::new();
    scene.manager.bounds.places_of_token = 3;
    scene.takes("a b", "H", WRITE);
    let first = scene.waits("a", "A", WRITE);
    scene.waits("b c", "A", WRITE);
    assert_eq!(scene.is_refused("a", "A", WRITE), LockError::TokenQueueFull(3));
    assert!(scene.tries("d", "A", WRITE).is_some(), "who need not wait is not counted");
    scene.waits("a", "B", WRITE);
    scene.user = "eve";
    scene.waits("a", "A", READ);
    assert_eq!(scene.is_refused("a b c", "A", READ), LockError::TokenQueueFull(3));
    scene.user = "default";
    assert_eq!(scene.is_refused("a", "A", WRITE), LockError::TokenQueueFull(3), "as before");
    scene.abandons(first);
    scene.waits("a", "A", WRITE);
    scene.in_one_turn(|scene| {
        assert_eq!(scene.cancels("b", "A"), 1);
        scene.waits("a b", "A", WRITE);
        assert_eq!(scene.is_refused("b", "A", WRITE), LockError::TokenQueueFull(3));
    });
    assert_eq!(scene.manager.waitlist().users_len(), 2);
}

#[test]
fn one_user_cannot_take_all_places() {
    let mut scene = Scene::new();
    (scene.manager.bounds.places, scene.manager.bounds.places_of_user) = (5, 4);
    scene.plays("H writes a b; A waits to write a b c");
    assert_eq!(scene.is_refused("a b", "B", WRITE), LockError::UserQueueFull(4), "for all tokens together");
    scene.waits("a", "B", WRITE);
    assert_eq!(scene.is_refused("a", "C", WRITE), LockError::UserQueueFull(4));
    scene.user = "eve";
    assert_eq!(scene.is_refused("a b", "E", WRITE), LockError::QueueFull(5));
    scene.waits("a", "E", WRITE);
    assert_eq!(scene.is_refused("b", "F", WRITE), LockError::QueueFull(5));
    assert_eq!(scene.manager.waitlist().places(), 5);
}

#[test]
fn a_request_on_a_channel_that_is_asked_again_is_not_counted_twice_and_goes_over_to_who_asks() {
    let mut scene = Scene::new();
    (scene.manager.bounds.places_of_token, scene.channel) = (1, Some(1));
    scene.takes("a b", "H", WRITE);
    let waiting = scene.waits("a", "A", WRITE);
    assert_eq!(scene.waits("a", "A", WRITE), waiting);
    scene.user = "eve";
    assert_eq!(scene.waits("a", "A", WRITE), waiting);
    assert_eq!(scene.is_refused("b", "A", WRITE), LockError::TokenQueueFull(1));
    scene.user = "default";
    scene.waits("b", "A", WRITE);
    assert_eq!(scene.is_refused("a", "A", WRITE), LockError::TokenQueueFull(1), "it is eve's by now");
}

/// They stand behind somebody else, so that none of them comes to the front. While the first are looked at, in slices, the
/// token is granted another lock that it waits for.
#[test]
fn all_requests_of_a_token_for_a_lock_are_answered_when_one_is_granted() {
    let mut scene = Scene::after("H writes a c; A B A A A A wait to write a; A D A A A A wait to write c");
    let mut news = Vec::new();
    scene.in_one_turn(|scene| {
        scene.releases("a", "H");
        while news.len() < 3 {
            scene.serves_a_slice(1);
            news.extend(scene.news());
        }
        assert_eq!(news, ["A granted"; 3], "the look goes on");
        scene.releases("c", "H");
    });
    news.extend(scene.news());
    assert_eq!(news, ["A granted"; 10]);
    assert_eq!((scene.queue("a"), scene.queue("c")), (vec!["B".into()], vec!["D".into()]));
}

/// As many as a token may have: the command ends them, and those behind them are granted.
#[test]
fn all_cancelled_requests_leave_at_once() {
    const REQUESTS: usize = PLACES_OF_TOKEN_MAX / 2;
    let mut scene = Scene::after("H writes k");
    for number in 0..REQUESTS {
        scene.waits(&format!("k {}", name(number)), "A", WRITE);
    }
    scene.waits("k", "B", WRITE);
    scene.in_one_turn(|scene| {
        assert_eq!(scene.cancels("k", "A"), REQUESTS);
        assert_eq!(scene.queue("k"), ["B"]);
        assert_eq!(scene.news(), vec!["A timed out"; REQUESTS]);
        scene.releases("k", "H");
    });
    assert_eq!(scene.news(), ["B granted"]);
}

/// `t1` waits at `n0` for `t0`, `t2` at `n1` for `t1`, and so on; `t0` closes the ring. The search at the request ends after
/// some steps. A look around the owners finds the cycle, if it is not too long.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_long_cycle_is_found_late() {
    for (length, is_found) in [(480, true), (520, false)] {
        let mut scene = Scene::new();
        (0..length).for_each(|number| _ = scene.takes(&name(number), &token(number), WRITE));
        (1..length).for_each(|number| _ = scene.waits(&name(number - 1), &token(number), WRITE));
        scene.waits(&name(length - 1), "t0", WRITE);
        let now = scene.now();
        scene.manager.look_at_owner(&mut scene.store, now, None);
        let news = scene.news();
        assert_eq!(news.len(), usize::from(is_found), "{length}: {news:?}");
        if let Some(news) = news.first() {
            assert!(
                news.starts_with("t0 Deadlock") && news.contains("more: 472,"),
                "the first steps are told: {news}"
            );
        }
        assert_eq!(scene.queue(&name(length - 1)).len(), usize::from(!is_found));
    }
}

/// A look at a crowd in which each waits for a thousand others, and at a lock with a crowd of readers.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_look_around_an_owner_has_a_bound() {
    let mut scene = Scene::new();
    (0..2_000).for_each(|number| _ = scene.takes("read", &token(number), READ));
    scene.takes("k", "H", WRITE);
    for number in 0..2_000 {
        scene.waits(&format!("k {}", name(number)), &token(number), WRITE);
    }
    scene.waits("read", "W", WRITE);
    let (now, mut position) = (scene.now(), None);
    loop {
        let peeked = scene.store.peeked;
        position = scene.manager.look_at_owner(&mut scene.store, now, position);
        assert!(scene.store.peeked - peeked <= 1_000, "{} locks looked at", scene.store.peeked - peeked);
        if position.is_none() {
            break;
        }
    }
    // Nobody waits for an owner that holds nothing of what is waited for: it costs no search.
    scene.takes("other", "N", WRITE);
    let peeked = scene.store.peeked;
    scene.waits("k", "N", WRITE);
    assert!(scene.store.peeked - peeked <= 2, "{} locks looked at", scene.store.peeked - peeked);
    // One who is waited for is searched for, and found.
    assert!(matches!(scene.is_refused("other", "H", WRITE), LockError::Deadlock(_)));
}

/// The holders of a lock with many readers are not noted one by one. They are found all the same, also where the lock came
/// from elsewhere, or where more such locks are waited for than are looked at.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn one_reader_of_a_crowd_that_closes_a_cycle() {
    for from_elsewhere in [false, true] {
        let mut scene = Scene::new();
        (0..50).for_each(|number| _ = scene.takes("k", &token(number), READ));
        scene.plays("W writes x; W waits to write k");
        if from_elsewhere {
            scene.in_one_turn(|scene| {
                scene.happens("k", |_, _| {});
                assert!(matches!(scene.is_refused("x", "t49", WRITE), LockError::Deadlock(_)));
            });
        }
        assert!(matches!(scene.is_refused("x", "t49", WRITE), LockError::Deadlock(_)), "{from_elsewhere}");
    }
    let mut scene = Scene::after("W writes x");
    for number in 0..20 {
        (0..17).for_each(|reader| _ = scene.takes(&name(number), &token(reader), READ));
    }
    scene.takes("n19", "R", READ);
    (0..19).for_each(|number| _ = scene.waits(&name(number), &format!("w{number}"), WRITE));
    scene.waits("n19", "W", WRITE);
    assert!(matches!(scene.is_refused("x", "R", WRITE), LockError::Deadlock(_)));
}

/// A lock comes from elsewhere with a crowd of readers, the last of whom waits. Either the readers are gone through or
/// those who wait, whichever are fewer.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_crowd_that_comes_with_a_lock_is_looked_at_to_its_end() {
    for (readers, waiters) in [(100, 200), (200, 100)] {
        let mut scene = Scene::after("X writes k; X writes q; W writes x");
        (0..readers).for_each(|number| _ = scene.takes("z", &token(number), READ));
        scene.takes("z", "u", READ);
        (0..waiters).for_each(|number| _ = scene.waits("q", &format!("q{number}"), WRITE));
        scene.plays("W waits to write k; u waits to write x");
        scene.happens("k", |store, lock| {
            let other = store.lock(&id("z")).unwrap().clone();
            store.replace(lock, other);
        });
        scene.looks_at_owners();
        let news = scene.news();
        assert!(news.len() == 1 && news[0].starts_with("u Deadlock"), "{readers}: {news:?}");
    }
}

/// A turn with room for so many answers.
struct Room(Timestamp, usize);

impl TimeSlice for Room {
    fn now(&mut self) -> Option<Timestamp> {
        Some(self.0)
    }

    fn has_room(&self, answers: usize) -> bool {
        answers < self.1
    }
}

#[test]
fn so_many_are_answered_in_a_turn_as_it_has_room_for() {
    let mut scene = Scene::after("H writes a; A B C D E wait to read a");
    let now = scene.now();
    scene.in_one_turn(|scene| {
        scene.releases("a", "H");
        for (left, answered) in [(3, 2), (1, 2), (0, 1)] {
            assert!(scene.manager.has_work());
            scene.manager.serve_queues(&mut scene.store, &mut scene.clients, &mut Room(now, 2));
            assert_eq!(
                (scene.manager.waitlist().len(), scene.manager.take_answers(usize::MAX).len()),
                (left, answered)
            );
        }
    });
}

/// The first in a queue may stand in a thousand. All are opened when it may be let in, not whenever somebody else comes or
/// goes or a hold is renewed.
#[test]
fn the_first_in_a_queue_is_not_looked_at_for_nothing() {
    let mut scene = Scene::after("H R read k");
    let names: Vec<String> = (0..200).map(name).collect();
    scene.waits(&format!("k {}", names.join(" ")), "M", WRITE);
    let opened = scene.store.opened;
    let behind = scene.waits("k", "W", WRITE);
    scene.in_one_turn(|scene| {
        assert!(scene.takes("k", "H", READ) > 0);
        assert!(scene.abandons(behind));
        assert!(!scene.manager.has_work(), "none of this lets anybody in");
    });
    assert!(scene.extends("k", "H", 90_000));
    assert_eq!(scene.plays("R releases k"), [""; 0]);
    assert!(scene.store.opened - opened < 20, "{} names opened", scene.store.opened - opened);
    assert_eq!(scene.plays("H releases k"), ["M granted"]);
}

#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_second_upgrader_is_refused_at_once_whatever_else_its_token_waits_for() {
    let mut scene = Scene::after("A B read k; A waits to upgrade k");
    for number in 0..PLACES_OF_TOKEN_MAX - 1 {
        scene.takes(&name(number), &token(number), WRITE);
        scene.waits(&name(number), "B", WRITE);
    }
    assert!(matches!(scene.is_refused("k", "B", UPGRADE), LockError::Deadlock(_)));
}
