//! A wait is refused exactly when it would close a cycle of owners that wait for each other. What closes one without a new
//! request, by what happens to locks outside or to requests ahead, is found afterwards; nothing else is.
//! (The random histories and the exploration have these in every order, beside [`super::waits_for`].)

use super::heap::peak_of;
use super::memory_store::{MemoryStore, id};
use super::parts::{READ, UPGRADE, WRITE, channel, request};
use super::scene::Scene;
use crate::error::LockError;
use crate::manager::Operation;
use crate::mode::Want;
use crate::request::AcquireOutcome;

/// The tokens of a refused request's cycle, and where each waits.
#[track_caller]
fn cycle(scene: &mut Scene, names: &str, token: &str, want: Want) -> Vec<String> {
    let LockError::Deadlock(cycle) = scene.is_refused(names, token, want) else { panic!("no deadlock") };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    cycle.steps.iter().map(|step| format!("{} at {}", text(&step.token), text(&step.lock.name))).collect()
}

/// Asserts that the news are that this owner's wait closes a cycle.
#[track_caller]
fn assert_found(news: &[String], token: &str) {
    assert!(news.len() == 1 && news[0].starts_with(&format!("{token} Deadlock")), "{news:?}");
}

/// The lock of one name comes under another.
fn renames(scene: &mut Scene, from: &str, to: &str) {
    let lock = scene.store.lock(&id(from)).unwrap().clone();
    scene.in_one_turn(|scene| {
        scene.happens(from, MemoryStore::delete);
        scene.happens(to, |store, id| store.replace(id, lock));
    });
}

#[test]
fn two_writers_that_want_each_others_lock() {
    let mut scene = Scene::after("A writes a; B writes b; A waits to write b");
    assert_eq!(cycle(&mut scene, "a", "B", WRITE), ["B at a", "A at b"]);
    assert_eq!(scene.held("b"), ["B writes"], "it keeps what it holds");
    assert_eq!(scene.queue("a"), [""; 0], "it does not wait");
    assert_eq!(scene.tries("a", "B", WRITE), None, "not to wait is no deadlock");
    assert_eq!(scene.plays("B releases b"), ["A granted"]);
}

/// S stands ahead of R, and W, who leads nowhere else, between them or not.
#[test]
fn a_reader_waits_for_one_ahead_if_a_writer_stands_between_them() {
    let mut scene =
        Scene::after("H writes a; R writes b; S waits to read a; W waits to write a; R waits to read a");
    assert_eq!(cycle(&mut scene, "b", "S", WRITE), ["S at b", "R at a"]);
    Scene::after("H writes a; R writes b; S waits to read a; R waits to read a; S waits to write b");
}

#[test]
fn an_upgrade_that_jumps_the_queue_can_close_a_cycle_behind_it() {
    // C waits for D, in a request for two names; a it could read, if no upgrade came before it.
    let mut scene =
        Scene::after("A B read a; C writes b; A waits to write b; D writes c; C waits to read a c");
    assert_eq!(cycle(&mut scene, "a", "A", UPGRADE), ["A at b", "C at a"]);
}

#[test]
fn a_request_for_several_names_closes_a_cycle_through_any_of_them() {
    let mut scene = Scene::after("A writes a; C writes c; C waits to write a b");
    assert_eq!(cycle(&mut scene, "d c", "A", WRITE), ["A at c", "C at a"]);
    assert_eq!(scene.queue("d"), [""; 0]);
    assert_eq!(cycle(&mut scene, "b", "A", READ), ["A at b", "C at a"]);
    // They stand in one order, so that they close none by themselves.
    Scene::after(
        "H writes a b c; A waits to write a b; B waits to write b a; C waits to write c b; \
         D waits to write a c",
    );
}

#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_long_chain_is_no_cycle_until_it_is_closed() {
    let mut scene = Scene::new();
    (0..40).for_each(|number| _ = scene.takes(&format!("n{number}"), &format!("t{number}"), WRITE));
    for number in 1..40 {
        scene.waits(&format!("n{}", number - 1), &format!("t{number}"), WRITE);
    }
    scene.waits("n20", "outsider", WRITE);
    let LockError::Deadlock(cycle) = scene.is_refused("n39", "t0", READ) else { panic!("no deadlock") };
    assert_eq!((cycle.steps.len(), cycle.more), (8, 32), "only the first of them are told");
    let waits: Vec<_> = cycle.steps.iter().map(|step| (&*step.token, &*step.waits_for)).collect();
    assert_eq!(waits[..2], [(&b"t0"[..], &b"t39"[..]), (b"t39", b"t38")]);
}

/// A holds `c` and, for a while, `a`, which it waits for again, with `b`. B waits for `c`, and gets `a` when A
/// has lost it. The youngest request of the cycle is refused.
#[test]
fn an_owner_that_loses_a_name_it_waits_for_among_others() {
    type Lose = fn(&mut Scene);
    let lost: [(&str, Lose); 4] = [
        ("by its deadline", |scene| scene.serves_at(scene.now_ms + 50)),
        ("by a release", |scene| scene.releases("a", "A")),
        ("with its key", |scene| scene.happens("a", MemoryStore::delete)),
        ("with its connection", |scene| scene.closes(7)),
    ];
    for (how, lose) in lost {
        for (youngest, waits) in [
            ("A", "B waits to write a; B waits to write c; A waits to write a b"),
            ("B", "B waits to write a; A waits to write a b; B waits to write c"),
        ] {
            let mut scene = Scene::new();
            scene.connection = Some(7);
            scene.plays("A writes a for 50");
            scene.connection = None;
            scene.plays(&format!("A writes c for 900; X writes b for 900; {waits}"));
            lose(&mut scene);
            let news = scene.news();
            assert_eq!(news[0], "B granted", "{how}");
            assert_found(&news[1..], youngest);
            assert_eq!(scene.manager.counters.deadlocks, 1, "{how}");
        }
    }
}

/// Nobody is granted anything by what happens, but somebody stands behind another owner now.
#[test]
fn who_only_loses_what_he_waits_for_stands_behind_others() {
    const ENDS: &str = "A reads a for 50; D reads a for 900; A writes c for 900; X writes b for 900; \
                        W waits to write a; A waits to read a b; W waits to write c";
    let mut scene = Scene::after(ENDS);
    scene.serves_at(scene.now_ms + 50);
    assert_found(&scene.news(), "W");
    const HOLDS: &str =
        "A writes a c; X writes b d; P waits to write a d; A waits to write a b; P waits to write c";
    let mut scene = Scene::after(HOLDS);
    scene.happens("a", MemoryStore::delete);
    assert_found(&scene.news(), "P");
    assert_found(&Scene::after(HOLDS).plays("A releases a"), "P");
    // The same hold ends while its owner is looked at because another name comes free in the same turn.
    let mut scene = Scene::after(
        "S reads a for 50; H reads a; X writes b; W waits to write a; S waits to read a b; \
         W waits to write b",
    );
    scene.now_ms += 50;
    assert_found(&scene.plays("X releases b"), "W");
}

/// Behind an older request of its own, an owner waits for nobody; when that one goes, it waits for those ahead.
#[test]
fn an_older_request_of_the_same_owner_goes() {
    let mut scene = Scene::after("H writes a; A writes c");
    let older = scene.waits("a", "A", WRITE);
    scene.plays("B A wait to write a");
    scene.abandons(older);
    assert!(scene.news().is_empty());
    assert_eq!(cycle(&mut scene, "c", "B", WRITE), ["B at c", "A at a"]);
    let mut scene = Scene::after("H writes a; A writes c");
    let older = scene.waits("a", "A", READ);
    scene.plays("B waits to read a; W waits to write a; A waits to read a; W waits to write c");
    scene.abandons(older);
    assert_found(&scene.news(), "W");
    // Two go in one turn, of which the second stood for its owner in the search that the first asks for.
    let mut scene = Scene::after("H writes p q r s; S waits to write r s");
    let gone = ["p q", "p"].map(|names| scene.waits(names, "S", WRITE));
    assert_eq!(scene.plays("F waits to write q r; S waits to write q"), [""; 0]);
    scene.in_one_turn(|scene| assert!(gone.into_iter().all(|request| scene.abandons(request))));
    assert_found(&scene.news(), "S");
    // The oldest leaves, which has nothing to do with the cycle.
    let mut scene = Scene::after("S writes x w; H writes u y z");
    let oldest = scene.waits("z", "S", WRITE);
    scene.plays("G waits to write x w; S waits to write x y; S waits to write u");
    scene.in_one_turn(|scene| {
        scene.releases("x", "S");
        assert!(scene.abandons(oldest));
    });
    assert_found(&scene.news(), "S");
}

/// A request that nobody hears any more, or whose hold has ended, leaves in a moment.
#[test]
fn a_request_that_is_about_to_leave_closes_no_cycle() {
    let mut scene = Scene::after("B writes k; A writes x");
    scene.channel = Some(1);
    scene.waits("k", "A", WRITE);
    scene.channel = None;
    scene.in_one_turn(|scene| {
        scene.manager.channel_closed(&channel(1));
        scene.waits("x", "B", WRITE);
    });
    assert_eq!(scene.queue("x"), ["B"]);
    let mut scene =
        Scene::after("A reads a for 50; B C read a; Z writes z; A waits to write z; A waits to upgrade a");
    scene.now_ms += 50;
    assert_eq!(scene.plays("B waits to upgrade a"), ["A NotHeld"]);
}

/// A lock comes under a name from elsewhere, held by an owner who waits.
#[test]
fn a_lock_comes_from_elsewhere() {
    let mut scene =
        Scene::after("X writes a; A writes b; B writes z; A waits to write a; B waits to write b");
    renames(&mut scene, "z", "a");
    assert_found(&scene.news(), "B");
    // S waits for three: at `a` for A, who waits at `k` for S; and at `b` for B, who waits at `k` for S.
    let mut scene = Scene::after(
        "A writes a; B writes b; C writes c; X writes k; S writes s; A B wait to write k; \
         S waits to write a; S waits to write b; S waits to write c",
    );
    renames(&mut scene, "s", "k");
    let news = scene.news();
    assert_eq!(news.iter().filter(|news| news.contains("Deadlock")).count(), 2, "both have to end: {news:?}");
    // The server does not tell of it: as Valkey, for a free name. It is found when the owners are looked at.
    let mut scene = Scene::after("T writes x; H writes a; W waits to write a b; T waits to write a");
    let lock = scene.store.lock(&id("x")).unwrap().clone();
    scene.store.delete(&id("x"));
    scene.store.replace(&id("b"), lock);
    scene.serves();
    assert_found(&scene.news(), "T");
}

/// It gives S the lock that it waits for behind A. A waits for S, so S has to learn of it.
#[test]
fn who_is_given_what_he_waits_for_behind_another_is_answered() {
    let mut scene = Scene::after("X writes k; S writes s; A S wait to write k");
    renames(&mut scene, "s", "k");
    assert_eq!(scene.news(), ["S granted"]);
}

#[test]
fn another_type_that_came_under_a_free_name_is_found_when_the_name_is_checked() {
    let mut scene =
        Scene::after("H writes a; W waits to write a b; V waits to write b a; X waits to write a");
    scene.store.replace_by_other_type(&id("b"));
    scene.serves();
    assert_eq!(scene.news(), [""; 0]);
    scene.looks_at_names();
    assert_eq!(scene.news(), ["W WrongType", "V WrongType"]);
    assert_eq!(scene.queue("a"), ["X"]);
}

/// S gets a lock that it waits for among others, by its second request. When that hold ends by time, S waits there behind
/// A, who waits for S elsewhere.
#[test]
fn a_hold_from_elsewhere_that_ends_by_time_is_noted_for_each_request_of_its_owner() {
    for has_another in [false, true] {
        let mut scene = Scene::after(
            "X writes k; W writes w for 900; Y writes y for 900; Z writes z for 900; \
             S writes q for 900; S writes s for 50",
        );
        if has_another {
            scene.waits("z", "S", WRITE);
        }
        scene.plays("A waits to write k w; S waits to write k y");
        renames(&mut scene, "s", "k");
        assert_eq!(scene.plays("A waits to write q"), [""; 0]);
        scene.serves_at(scene.now_ms + 60);
        let news = scene.news();
        assert!(news.iter().any(|news| news.contains("Deadlock")), "has another: {has_another}, {news:?}");
    }
}

/// A search that took all of the queue into account would take seconds here.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn the_ten_thousandth_request_waits_at_the_cost_of_the_first() {
    let mut scene = Scene::after("H writes a");
    let waits = |scene: &mut Scene, number: usize| {
        let token = format!("t{number}").into_bytes();
        let want = if number.is_multiple_of(2) { READ } else { WRITE };
        let (now, asked) = (scene.now(), request(&token, want));
        let outcome = scene.manager.acquire(Operation::new(&mut scene.store, now, 0, &[b"a"]), &asked);
        assert!(matches!(outcome, Ok(AcquireOutcome::Waiting(_))));
    };
    let ((), first) = peak_of(|| waits(&mut scene, 0));
    (1..10_000).for_each(|number| waits(&mut scene, number));
    let ((), last) = peak_of(|| waits(&mut scene, 10_000));
    // Measured in bytes, which unlike time are always the same: the tables may double, no more.
    assert!(last < first + 64 * 1024, "{first} bytes for the first, {last} for the last");
}
