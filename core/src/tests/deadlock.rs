//! A wait is refused exactly when it would close a cycle of owners that wait for each other.
//!
//! [`WaitsFor`] is built by brute force from the definition at the head of `deadlock.rs`, straight
//! from who holds and who stands where, and knows no shortcut.

use std::collections::BTreeSet;

use super::heap::peak_of;
use super::history::{Asked, Reply, token_number};
use super::naive_server::{NaiveServer, Waiting, is_other};
use super::scene::{READ, Scene, UPGRADE, WRITE, request, several};
use crate::error::{DeadlockStep, LockError};
use crate::ids::RequestId;
use crate::mode::{Mode, Want};
use crate::request::AcquireOutcome;

/// The tokens of a refused request's cycle, and where each waits.
#[track_caller]
fn cycle(scene: &mut Scene, names: &str, token: &str, want: Want) -> Vec<String> {
    let LockError::Deadlock(cycle) = scene.is_refused(names, token, want) else { panic!("no deadlock") };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    cycle.steps.iter().map(|step| format!("{} at {}", text(&step.token), text(&step.lock.name))).collect()
}

#[test]
fn two_writers_that_want_each_others_lock() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.takes("b", "B", WRITE);
    scene.waits("b", "A", WRITE);
    assert_eq!(cycle(&mut scene, "a", "B", WRITE), ["B at a", "A at b"]);
    assert_eq!(scene.held("b"), ["B writes"], "it keeps what it holds");
    assert_eq!(scene.tries("a", "B", WRITE), None, "not to wait is no deadlock");
    scene.releases("b", "B");
    assert_eq!(scene.news(), ["A granted"]);
}

#[test]
fn five_owners_with_readers_among_them() {
    let mut scene = Scene::new();
    for (name, token, want) in [
        ("a", "A", WRITE),
        ("b", "B", READ),
        ("b", "X", READ),
        ("c", "C", WRITE),
        ("d", "D", READ),
        ("e", "E", WRITE),
    ] {
        scene.takes(name, token, want);
    }
    for (name, token, want) in [("b", "A", WRITE), ("c", "B", READ), ("d", "C", WRITE), ("e", "D", READ)] {
        scene.waits(name, token, want);
    }
    let steps = cycle(&mut scene, "a", "E", READ);
    assert_eq!(steps, ["E at a", "A at b", "B at c", "C at d", "D at e"]);
    assert_eq!(scene.manager.counters.deadlocks, 1);
    scene.takes("f", "E", WRITE);
    scene.releases("e", "E");
    assert_eq!(scene.news(), ["D granted"]);
}

#[test]
fn readers_are_let_in_together_only_if_no_writer_stands_between_them() {
    let mut scene = Scene::new();
    scene.takes("a", "H", WRITE);
    scene.takes("c", "S", WRITE);
    scene.waits("a", "T", READ);
    scene.waits("c", "T", WRITE);
    let request = scene.waits("a", "S", READ);
    scene.abandons(request);
    scene.serves();
    scene.waits("a", "Y", WRITE);
    assert_eq!(cycle(&mut scene, "a", "S", READ).first().map(String::as_str), Some("S at a"));
}

/// S stands ahead of R, and W, who leads nowhere else, between them or not.
#[test]
fn a_reader_waits_for_one_ahead_if_a_writer_stands_between_them() {
    for is_between in [false, true] {
        let mut scene = Scene::new();
        scene.takes("a", "H", WRITE);
        scene.takes("b", "R", WRITE);
        scene.waits("a", "S", READ);
        if is_between {
            scene.waits("a", "W", WRITE);
        }
        scene.waits("a", "R", READ);
        if is_between {
            assert_eq!(cycle(&mut scene, "b", "S", WRITE), ["S at b", "R at a"]);
        } else {
            scene.waits("b", "S", WRITE);
        }
    }
}

#[test]
fn an_upgrade_that_jumps_the_queue_can_close_a_cycle_behind_it() {
    let mut scene = Scene::new();
    for (name, token) in [("a", "A"), ("a", "B")] {
        scene.takes(name, token, READ);
    }
    scene.takes("b", "C", WRITE);
    scene.waits("b", "A", WRITE);
    scene.takes("c", "D", WRITE);
    // C waits for D, in a request for two names; a it could read, if no upgrade came before it.
    scene.waits("a c", "C", READ);
    assert_eq!(cycle(&mut scene, "a", "A", UPGRADE), ["A at b", "C at a"]);
}

#[test]
fn requests_for_several_names_stand_in_one_order_and_cannot_close_a_cycle_by_themselves() {
    let mut scene = Scene::new();
    scene.takes("a b c", "H", WRITE);
    for (names, token) in [("a b", "A"), ("b a", "B"), ("c b", "C"), ("a c", "D"), ("c b a", "E")] {
        scene.waits(names, token, WRITE);
    }
}

#[test]
fn a_request_for_several_names_closes_a_cycle_through_any_of_them() {
    let mut scene = Scene::new();
    scene.takes("a", "A", WRITE);
    scene.takes("c", "C", WRITE);
    scene.waits("a b", "C", WRITE);
    assert_eq!(cycle(&mut scene, "d c", "A", WRITE), ["A at c", "C at a"]);
    assert_eq!(scene.queue("d"), Vec::<String>::new());
    assert_eq!(cycle(&mut scene, "b", "A", READ), ["A at b", "C at a"]);
}

#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_long_chain_is_no_cycle_until_it_is_closed() {
    let mut scene = Scene::new();
    let (name, token) = (|number: usize| format!("n{number}"), |number: usize| format!("t{number}"));
    for number in 0..40 {
        scene.takes(&name(number), &token(number), WRITE);
    }
    for number in 1..40 {
        scene.waits(&name(number - 1), &token(number), if number % 3 == 0 { READ } else { WRITE });
    }
    scene.waits(&name(20), "outsider", WRITE);
    let refused = scene.is_refused(&name(39), &token(0), READ);
    let LockError::Deadlock(cycle) = refused else { panic!("no deadlock") };
    assert_eq!((cycle.steps.len(), cycle.more), (8, 32), "only the first of them are told");
    let waits: Vec<_> = cycle.steps.iter().map(|step| (&*step.token, &*step.waits_for)).collect();
    assert_eq!(waits[..2], [(&b"t0"[..], &b"t39"[..]), (b"t39", b"t38")]);
}

#[test]
fn an_upgrade_whose_hold_has_ended_closes_no_cycle() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", READ, 50);
    for token in ["B", "C"] {
        scene.takes_for("a", token, READ, 900);
    }
    scene.takes("z", "Z", WRITE);
    scene.waits("z", "A", WRITE);
    scene.waits("a", "A", UPGRADE);
    scene.now_ms += 50;
    scene.waits("a", "B", UPGRADE);
    scene.serves();
    assert_eq!(scene.news(), ["A NotHeld"]);
}

/// A holds `c` and, for a while, `a`, which it waits for again, with `b`. B waits for `c`, and gets `a` when A
/// has lost it.
#[test]
fn an_owner_that_loses_a_name_it_waits_for_among_others() {
    type Lose = fn(&mut Scene);
    let lost: [(&str, Lose); 4] = [
        ("by its deadline", |scene| scene.serves_at(scene.now_ms + 50)),
        ("by a release", |scene| scene.releases("a", "A")),
        ("with its key", |scene| scene.happens("a", super::memory_store::MemoryStore::delete)),
        ("with its connection", |scene| scene.closes(7)),
    ];
    for (how, lose) in lost {
        for (is_last, youngest) in [("A", "A Deadlock"), ("B", "B Deadlock")] {
            let mut scene = Scene::new();
            scene.connection = Some(7);
            scene.takes_for("a", "A", WRITE, 50);
            scene.connection = None;
            for (name, token) in [("c", "A"), ("b", "X")] {
                scene.takes_for(name, token, WRITE, 900);
            }
            scene.waits("a", "B", WRITE);
            let mut asks = [("c", "B"), ("a b", "A")];
            asks.sort_by_key(|(_, token)| *token == is_last);
            for (names, token) in asks {
                scene.waits(names, token, WRITE);
            }
            lose(&mut scene);
            let news = scene.news();
            assert!(news[0] == "B granted" && news[1].starts_with(youngest), "{how}: {news:?}");
            assert_eq!((news.len(), scene.manager.counters.deadlocks), (2, 1), "{how}");
        }
    }
}

/// A's hold beside D's ends, and nobody acts: A stands behind W now, which waits for what A holds.
#[test]
fn a_reader_whose_hold_only_ends() {
    let mut scene = Scene::new();
    scene.takes_for("a", "A", READ, 50);
    scene.takes_for("a", "D", READ, 900);
    scene.takes_for("c", "A", WRITE, 900);
    scene.takes_for("b", "X", WRITE, 900);
    scene.waits("a", "W", WRITE);
    scene.waits("a b", "A", READ);
    scene.waits("c", "W", WRITE);
    scene.serves_at(scene.now_ms + 50);
    assert!(scene.news().concat().starts_with("W Deadlock"));
}

/// Nobody is granted anything by it, but A stands behind P now.
#[test]
fn a_key_goes_and_nobody_gets_it() {
    let mut scene = Scene::new();
    for (names, token) in [("a c", "A"), ("b d", "X")] {
        scene.takes(names, token, WRITE);
    }
    for (names, token) in [("a d", "P"), ("a b", "A"), ("c", "P")] {
        scene.waits(names, token, WRITE);
    }
    scene.happens("a", super::memory_store::MemoryStore::delete);
    assert!(scene.news().concat().starts_with("P Deadlock"));
}

/// The same by a release: A stands behind P now where it has held.
#[test]
fn an_owner_releases_what_it_waits_for_and_nobody_gets_it() {
    let mut scene = Scene::new();
    for (names, token) in [("a", "A"), ("c", "A"), ("b d", "X")] {
        scene.takes(names, token, WRITE);
    }
    for (names, token) in [("a d", "P"), ("a b", "A"), ("c", "P")] {
        scene.waits(names, token, WRITE);
    }
    scene.releases("a", "A");
    assert!(scene.news().concat().starts_with("P Deadlock"));
}

/// The lock that comes under a name from elsewhere is held by an owner who waits.
#[test]
fn a_lock_comes_from_elsewhere() {
    let mut scene = Scene::new();
    for (name, token) in [("a", "X"), ("b", "A"), ("z", "B")] {
        scene.takes(name, token, WRITE);
    }
    scene.waits("a", "A", WRITE);
    scene.waits("b", "B", WRITE);
    scene.happens("a", |store, id| {
        let other = store.lock(&super::memory_store::id("z")).unwrap().clone();
        store.replace(id, other);
    });
    assert!(scene.news().concat().starts_with("B Deadlock"));
}

/// Behind an older request of its own, A waits for nobody; when that one goes, it waits for those ahead.
#[test]
fn an_older_request_of_the_same_owner_goes() {
    let mut scene = Scene::new();
    scene.takes("a", "H", WRITE);
    scene.takes("c", "A", WRITE);
    let older = scene.waits("a", "A", WRITE);
    scene.waits("a", "B", WRITE);
    scene.waits("a", "A", WRITE);
    scene.abandons(older);
    assert!(scene.news().is_empty());
    assert_eq!(cycle(&mut scene, "c", "B", WRITE), ["B at c", "A at a"]);
    let mut scene = Scene::new();
    scene.takes("a", "H", WRITE);
    scene.takes("c", "A", WRITE);
    let older = scene.waits("a", "A", READ);
    scene.waits("a", "B", READ);
    scene.waits("a", "W", WRITE);
    scene.waits("a", "A", READ);
    scene.waits("c", "W", WRITE);
    scene.abandons(older);
    assert!(scene.news().concat().starts_with("W Deadlock"), "A waits behind W now");
}

/// M stands for its owner in the search that O's going asks for, and goes before it.
#[test]
fn the_request_that_stands_for_its_owner_goes_before_the_search() {
    let mut scene = Scene::new();
    scene.takes("p q r s", "H", WRITE);
    scene.waits("r s", "S", WRITE);
    let (o, m) = (scene.waits("p q", "S", WRITE), scene.waits("p", "S", WRITE));
    scene.waits("q r", "F", WRITE);
    scene.waits("q", "S", WRITE);
    assert!(scene.news().is_empty());
    scene.in_one_turn(|scene| assert!(scene.abandons(o) && scene.abandons(m)));
    assert!(scene.news().concat().starts_with("S Deadlock"));
}

/// It has nothing to do with the cycle, and another one stands for the owner when it has left.
#[test]
fn another_stands_for_its_owner_when_the_oldest_request_leaves() {
    let mut scene = Scene::new();
    scene.takes("x w", "S", WRITE);
    scene.takes("u y z", "H", WRITE);
    let oldest = scene.waits("z", "S", WRITE);
    scene.waits("x w", "G", WRITE);
    scene.waits("x y", "S", WRITE);
    scene.waits("u", "S", WRITE);
    assert!(scene.news().is_empty());
    scene.in_one_turn(|scene| {
        scene.releases("x", "S");
        assert!(scene.abandons(oldest));
    });
    assert!(scene.news().concat().starts_with("S Deadlock"));
}

/// Who waits for whom, all of it.
pub(super) struct WaitsFor {
    /// By whose request, and for whom.
    edges: BTreeSet<(RequestId, usize, usize)>,
}

impl WaitsFor {
    pub(super) fn new(server: &NaiveServer, now_ms: u64) -> Self {
        let mut edges = BTreeSet::new();
        for request in &server.waiting {
            let own = &request.asked;
            for &name in &own.names {
                for other in Self::of_request_at(server, request, name, now_ms) {
                    edges.insert((request.id, own.token, other));
                }
            }
        }
        Self { edges }
    }

    fn of_request_at(server: &NaiveServer, request: &Waiting, name: usize, now_ms: u64) -> Vec<usize> {
        let own = &request.asked;
        let reads = own.want == Want::Hold(Mode::Read);
        // What it has or can never have it does not wait for.
        match (server.own_hold(name, own.token, now_ms), own.want) {
            (Some(_), Want::Hold(_)) | (None, Want::Upgrade) => return Vec::new(),
            (Some(hold), Want::Upgrade) if hold.mode == Mode::Write || is_other(hold, own.fence) => {
                return Vec::new();
            }
            _ => {}
        }
        let queue = server.queue_at(name);
        let at = queue.iter().position(|other| other.id == request.id).expect("it stands there");
        if queue[..at].iter().any(|older| older.asked.token == own.token) {
            // It is answered when the older one is.
            return Vec::new();
        }
        let writes = |other: &&Waiting| other.asked.want != Want::Hold(Mode::Read);
        let writer_ahead = queue[..at].iter().any(writes);
        let live = server.names[name].holds.iter().filter(|hold| hold.deadline_ms > now_ms);
        let live = live.filter(|hold| !server.has_ended(hold));
        let holders = live.filter(|hold| !reads || hold.mode == Mode::Write || writer_ahead);
        let mut others: Vec<usize> = holders.map(|hold| hold.token).collect();
        for (position, other) in queue[..at].iter().enumerate() {
            let is_lone_reader = !writes(other) && other.asked.names.len() == 1;
            let together = reads && is_lone_reader && !queue[position..at].iter().any(writes);
            if !together {
                others.push(other.asked.token);
            }
        }
        others.retain(|other| *other != own.token);
        others
    }

    /// Whether a way leads from one owner to another.
    fn leads(&self, from: usize, to: usize) -> bool {
        let (mut reached, mut next) = (BTreeSet::from([from]), vec![from]);
        while let Some(one) = next.pop() {
            let others = self.edges.iter().filter(|(_, from, _)| *from == one).map(|(_, _, other)| *other);
            next.extend(others.filter(|other| reached.insert(*other)));
        }
        reached.contains(&to)
    }

    pub(super) fn has_cycle_through_token(&self, token: usize) -> bool {
        self.edges.iter().any(|(_, from, to)| *from == token && self.leads(*to, token))
    }

    /// Asserts that this waiting request is in a cycle, and that these are the steps of one.
    pub(super) fn assert_cycle_of(&self, id: RequestId, token: usize, steps: &[DeadlockStep]) {
        assert!(
            self.edges.iter().any(|(own, from, to)| *own == id && self.leads(*to, *from)),
            "{:?}",
            self.edges
        );
        self.assert_steps(token, steps);
    }

    fn assert_steps(&self, token: usize, steps: &[DeadlockStep]) {
        let tokens: Vec<usize> = steps.iter().map(|step| token_number(&step.token)).collect();
        assert!(tokens.first().is_none_or(|first| *first == token));
        for (at, token) in tokens.iter().enumerate() {
            let next = tokens[(at + 1) % tokens.len()];
            assert!(self.leads(*token, next), "not a cycle: {steps:?}");
            assert_eq!(token_number(&steps[at].waits_for), next);
        }
    }

    /// Asserts that the request, which stands in the queues already, was refused if and only if it closes
    /// a cycle, and that the cycle is one. How many steps it has; 0 if there is none.
    pub(super) fn assert_cycle(&self, id: RequestId, asked: &Asked, reply: &Reply) -> usize {
        // An upgrade makes others wait for its owner, so that what its owner waits for counts too.
        let has_cycle = match asked.want {
            Want::Upgrade => self.has_cycle_through_token(asked.token),
            _ => self.edges.iter().any(|(own, from, to)| *own == id && self.leads(*to, *from)),
        };
        let steps = match reply {
            Reply::Waiting(_) => &[][..],
            Reply::Error(LockError::Deadlock(cycle)) => &cycle.steps[..],
            _ => panic!("it should wait, and got {reply:?}"),
        };
        assert_eq!(!steps.is_empty(), has_cycle, "{reply:?}, {:?}", self.edges);
        self.assert_steps(asked.token, steps);
        steps.len()
    }
}

/// A search that took all of the queue into account would take seconds here.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn the_ten_thousandth_request_waits_at_the_cost_of_as_the_first() {
    let mut scene = Scene::new();
    scene.takes("a", "H", WRITE);
    let waits = |scene: &mut Scene, number: usize| {
        let names: [&[u8]; 1] = [b"a"];
        let token = format!("t{number}").into_bytes();
        let want = if number.is_multiple_of(2) { READ } else { WRITE };
        let (now, asked) = (scene.now(), request(&token, want));
        let outcome = scene.manager.acquire(several(&mut scene.store, now, 0, &names), &asked);
        assert!(matches!(outcome, Ok(AcquireOutcome::Waiting(_))));
    };
    let ((), first) = peak_of(|| waits(&mut scene, 0));
    (1..10_000).for_each(|number| waits(&mut scene, number));
    let ((), last) = peak_of(|| waits(&mut scene, 10_000));
    // Measured in bytes, which unlike time are always the same: the tables may double, no more.
    assert!(last < first + 64 * 1024, "{first} bytes for the first, {last} for the last");
}
