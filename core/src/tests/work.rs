//! What a turn costs, in names looked at; unlike time this is always the same.

use std::cell::Cell;

use super::memory_store::{MemoryStore, id};
use super::random::Random;
use super::scene::{READ, Scene, TestClients, UPGRADE, WRITE, ms, request, several};
use crate::ids::{HoldRef, RequestId};
use crate::manager::LockManager;
use crate::mode::Want;
use crate::request::WaitResult;

/// A manager and its locks, and what is opened.
#[derive(Default)]
struct Bench {
    manager: LockManager,
    store: MemoryStore,
}

impl Bench {
    /// How many names this opens.
    fn opened(&mut self, work: impl FnOnce(&mut Self)) -> usize {
        let before = self.store.opened;
        work(self);
        self.store.opened - before
    }

    /// Waits, or holds if nobody does. How many names that opened.
    fn asks(&mut self, token: &str, want: Want, names: &[&[u8]]) -> usize {
        self.opened(|bench| {
            let asked = request(token.as_bytes(), want);
            bench.manager.acquire(several(&mut bench.store, ms(1), 0, names), &asked).unwrap();
        })
    }

    fn releases(&mut self, token: &str, names: &[&[u8]]) {
        let released = self.manager.release(
            several(&mut self.store, ms(1), 0, names),
            HoldRef::of(token.as_bytes()),
            None,
        );
        assert_eq!(released, Ok(names.len()));
    }

    /// How many names a turn opens, how many looks at the clock it takes, and who is granted.
    fn serves(&mut self) -> (usize, usize, Vec<RequestId>) {
        let looks = Cell::new(0);
        let opened = self.opened(|bench| {
            bench.manager.serve_queues(&mut bench.store, &mut TestClients::default(), &mut || {
                looks.set(looks.get() + 1);
                Some(ms(1))
            });
        });
        let granted = self
            .manager
            .take_answers(usize::MAX)
            .into_iter()
            .map(|answer| (answer.request, answer.result))
            .map(|(request, result)| match result {
                WaitResult::Granted(_) => request,
                other => panic!("{other:?}"),
            });
        (opened, looks.get(), granted.collect())
    }
}

fn words(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

/// Of one name: so many writers wait; the most that one of them costs, from its coming to its grant.
fn most_opened(waiters: usize) -> usize {
    let (mut bench, names) = (Bench::default(), [&b"a"[..]]);
    let tokens = words(waiters + 1);
    let mut most = tokens.iter().map(|token| bench.asks(token, WRITE, &names)).max().unwrap();
    for token in &tokens[..waiters] {
        bench.releases(token, &names);
        let (opened, _, granted) = bench.serves();
        assert_eq!(granted.len(), 1);
        most = most.max(opened);
    }
    most
}

#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn the_cost_of_a_grant_does_not_depend_on_how_many_wait() {
    assert_eq!(most_opened(2_000), most_opened(2));
}

/// A thousand requests for 64 names each: to come costs as much as the first, and one grant looks at each of
/// its names a few times, whether the others are of the same token or not.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn requests_for_many_names_cost_what_they_name() {
    const REQUESTS: usize = 1_000;
    const NAMES: usize = 64;
    for tokens in [1, 2, REQUESTS] {
        let mut bench = Bench::default();
        bench.manager.bounds.places_of_token = usize::MAX;
        let texts = words(NAMES);
        let names: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        bench.asks("holder", WRITE, &names);
        for number in 0..REQUESTS {
            let rotated = [&names[number % NAMES..], &names[..number % NAMES]].concat();
            let opened = bench.asks(&format!("token {}", number % tokens), WRITE, &rotated);
            assert_eq!(opened, NAMES, "{tokens} tokens, request {number}");
        }
        bench.releases("holder", &names);
        let (opened, looks, granted) = bench.serves();
        // All of the token that holds now are answered.
        assert_eq!(granted.len(), REQUESTS / tokens);
        assert!(opened <= 4 * NAMES * (granted.len() + 1), "{tokens} tokens: {opened} names opened");
        assert!(
            looks <= 4 * (NAMES + granted.len()) + 4 * NAMES * granted.len(),
            "{tokens} tokens: {looks} looks"
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_release_of_many_names_looks_once_at_a_request_that_waits_at_all_of_them() {
    const NAMES: usize = 500;
    let (mut bench, texts) = (Bench::default(), words(NAMES));
    let names: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
    let reversed: Vec<&[u8]> = names.iter().rev().copied().collect();
    bench.asks("holder", WRITE, &names);
    for (text, name) in texts.iter().zip(&names).take(NAMES / 2) {
        bench.asks(text, WRITE, &[name]);
    }
    bench.asks("all", WRITE, &reversed);
    bench.releases("holder", &names);
    let (opened, _, granted) = bench.serves();
    assert_eq!(granted.len(), NAMES / 2);
    assert!(opened < 10 * NAMES, "{opened} names opened");
}

/// `SWAPDB` as often as you like: each queue is looked at once, in the turn that follows.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn what_happens_to_whole_databases_often_is_looked_at_once() {
    const WAITERS: usize = 1_000;
    let (mut bench, texts) = (Bench::default(), words(WAITERS));
    for text in &texts {
        bench.asks("holder", WRITE, &[text.as_bytes()]);
        bench.asks(text, WRITE, &[text.as_bytes()]);
    }
    for _ in 0..5_000 {
        bench.manager.databases_swapped(0, 1);
    }
    let (opened, looks, _) = bench.serves();
    assert_eq!(opened, WAITERS);
    assert!(looks <= 2 * WAITERS + 10, "{looks} looks");
    // It changes again while the look goes on: once more, from the start.
    bench.manager.database_changed(None);
    let mut left = WAITERS;
    let opened = bench.opened(|bench| {
        bench.manager.serve_queues(&mut bench.store, &mut TestClients::default(), &mut || {
            left -= 1;
            (left > 0).then_some(ms(1))
        });
    });
    assert!(opened < WAITERS && bench.manager.has_work());
    texts.iter().for_each(|text| bench.store.delete(&id(text)));
    (0..5_000).for_each(|_| bench.manager.database_changed(Some(0)));
    let (rest, _, granted) = bench.serves();
    assert_eq!(granted.len(), WAITERS, "those that had been looked at too");
    assert!((WAITERS..=2 * WAITERS).contains(&(opened + rest)), "{opened} and {rest}");
    // And one key that changes often.
    bench.asks("late", WRITE, &[b"0"]);
    (0..5_000).for_each(|_| bench.manager.key_changed(id("0").as_ref()));
    let (opened, looks, _) = bench.serves();
    assert!(opened == 1 && looks <= 3, "{opened} opened, {looks} looks");
}

#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_connection_with_many_holds_ends_them_in_slices_and_the_oldest_connection_first() {
    const HOLDS: usize = 3_000;
    let mut scene = Scene::new();
    for connection in [1, 2] {
        scene.connection = Some(connection);
        for number in 0..HOLDS {
            scene.takes(&format!("{connection}:{number}"), "A", WRITE);
        }
    }
    scene.connection = None;
    scene.waits("2:0", "B", WRITE);
    scene.takes("x", "X", WRITE);
    scene.waits("x", "Y", WRITE);
    scene.in_one_turn(|scene| {
        scene.closes(2);
        scene.closes(1);
        scene.releases("x", "X");
        let mut slices = 0;
        while scene.manager.has_work() {
            let (now, mut left) = (scene.now(), 100);
            let operations = scene.store.operations;
            scene.manager.serve_queues(&mut scene.store, &mut TestClients::default(), &mut || {
                left -= 1;
                (left > 0).then_some(now)
            });
            assert!(scene.store.operations - operations <= 300);
            slices += 1;
            if slices == 1 {
                assert_eq!(scene.news(), ["Y granted"], "who waits elsewhere does not wait for this");
                assert_eq!(scene.tries("2:2999", "C", WRITE), None, "what is to end is held until then");
            }
        }
        assert!(slices > HOLDS / 100);
    });
    assert_eq!(scene.news(), ["B granted"]);
    assert_eq!(scene.manager.counters.releases, 1 + 2 * HOLDS as u64);
}

/// Names of two slots, of which one moves away: all requests there are sent away, and no others.
#[test]
#[cfg_attr(miri, ignore = "so many histories take hours there")]
fn a_probe_finds_every_request_whose_names_are_not_served() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut scene = Scene::new();
        let slots = [["a", "b", "c", "d"], ["e", "f", "g", "h"]];
        for name in slots.as_flattened() {
            scene.takes(name, "holder", READ);
            scene.takes(name, "other", READ);
        }
        let mut away = Vec::new();
        for number in 0..random.below(20) {
            let slot = random.below(2);
            let names: Vec<&str> = random.some_of(4, 4).into_iter().map(|at| slots[slot][at]).collect();
            let token = format!("token {number}");
            scene.waits(&names.join(" "), &token, WRITE);
            if slot == 1 {
                away.push(format!("{token} NotServed"));
            }
        }
        if random.chance(50) {
            scene.waits("e", "holder", UPGRADE);
            away.push("holder NotServed".to_owned());
        }
        slots[1].iter().for_each(|name| scene.store.set_served(&id(name), false));
        scene.looks_at_names();
        let mut news = scene.news();
        news.sort();
        away.sort();
        assert_eq!(news, away, "seed {seed}");
    }
}
