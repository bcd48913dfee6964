//! The whole core over random histories, side by side with [`NaiveServer`].
//!
//! Owners ask, release, wait, cancel; connections close; keys go, change, move away and change databases;
//! the wall clock steps forth and back. Any number of steps fall into one turn, and a turn may be interrupted
//! after any number of looks at the clock. What has to hold after every step, `side_by_side.rs` says.
//!
//! [`NaiveServer`]: super::naive_server::NaiveServer

use super::heap::growth_of;
use super::history::{BASE_MS, Habits, KnownHold, Op, Telling, World, id_of, with_seeds};
use super::memory_store::MemoryStore;
use super::naive_server::Hold;
use super::random::{Random, rounds};
use super::scene::{TestClients, bound, changed, ms, one, request, several, whole_turn};
use super::side_by_side::{SideBySide, Tally};
use crate::error::LockError;
use crate::ids::{HoldRef, RequestId};
use crate::manager::{Bounds, LockManager};
use crate::mode::{Mode, Want};
use crate::request::{AcquireOutcome, Request, WaitPolicy};

fn pass_some_time(world: &mut World, random: &mut Random) {
    match random.below(10) {
        0..=4 => {}
        5 | 6 => world.pass(random.within(1, 4_000)),
        7 | 8 => {
            // To the next moment at which something is due, or beside it.
            if let Some(due_ms) = world.manager.next_due_ms(world.now()) {
                world.pass_to(due_ms - 1 + random.within(0, 2), random.within(0, 999));
            }
        }
        _ => world.pass(random.within(1, 60_000)),
    }
}

/// Whether the step can be compared: that a hold comes back whose time was up and whose connection is
/// being ended is not promised, nor is what becomes of it.
fn can_step(both: &SideBySide, op: &Op) -> bool {
    let now_ms = both.world.now().unix_ms();
    let is_past = |hold: &Hold| hold.connection.is_some() && hold.deadline_ms <= now_ms;
    match op {
        Op::StepWallClock(us) if *us < 0 => {
            both.world.now().unix_us() as i64 + us > BASE_MS as i64 * 1000
                && !both.model.names.iter().flat_map(|name| &name.holds).any(is_past)
        }
        _ => true,
    }
}

fn play(seed: u64, telling: Telling, tally: &mut Tally, all_wait: bool) {
    let mut random = Random::new(seed);
    let mut habits = Habits::draw(&mut random);
    if all_wait {
        let percent_strange = 0;
        let names = 2 + random.below(5);
        habits = Habits { names, databases: 1, percent_waiting: 100, percent_strange, ..habits };
    }
    let mut both = SideBySide::new();
    both.tally = std::mem::take(tally);
    both.model.bounds = Bounds {
        places: random.pick(&[8, usize::MAX, usize::MAX]),
        places_of_user: random.pick(&[6, usize::MAX, usize::MAX]),
        places_of_token: random.pick(&[2, 4, usize::MAX]),
    };
    both.world.manager.bounds = both.model.bounds;
    // Whether turns are short, long, or interrupted.
    let percent_serving = if all_wait { 100 } else { random.pick(&[15, 40, 100]) };
    let percent_interrupted = if all_wait { 0 } else { random.pick(&[0, 30, 70]) };
    for _ in 0..60 {
        pass_some_time(&mut both.world, &mut random);
        let waiting: Vec<_> = both
            .model
            .waiting
            .iter()
            .map(|request| {
                // What is answered on a channel has no client that goes.
                let connection = request.asked.connection.filter(|_| request.asked.channel.is_none());
                (request.id, connection)
            })
            .collect();
        let names = both.model.names.iter().enumerate();
        let holds: Vec<KnownHold> = names
            .flat_map(|(name, own)| own.holds.iter().map(move |hold| (name, hold.token, hold.fence)))
            .collect();
        let op = habits.op(&mut random, &waiting, &both.connections, &both.channels, &holds);
        if can_step(&both, &op) {
            let (wall, now) = (both.world.now().unix_us(), both.world.now().monotonic_ms());
            telling.tell(|| format!("{now} ms, wall {}: {op:?}", wall / 1000 - BASE_MS));
            both.step(&op);
        }
        if random.chance(percent_serving) {
            let looks = if random.chance(percent_interrupted) { random.below(6) } else { usize::MAX };
            telling.tell(|| format!("    serve {looks}"));
            both.serve(looks);
        }
    }
    both.serve(usize::MAX);
    end(&mut both, &mut random);
    *tally = both.tally;
}

/// Everybody who still waits leaves, or is waited for.
fn end(both: &mut SideBySide, random: &mut Random) {
    both.world.store.assert_rebuilt_by_records();
    for id in both.model.waiting.iter().map(|request| request.id).collect::<Vec<_>>() {
        if random.chance(50) {
            both.step(&Op::Abandon(id));
        }
    }
    both.run_out();
}

#[test]
fn random_histories_equal_the_naive_server() {
    let mut tally = Tally::default();
    with_seeds(0..rounds(3_000) as u64, |seed, telling| play(seed, telling, &mut tally, false));
    if cfg!(miri) {
        return; // too few to have seen everything
    }
    let Tally { answers, grants, ended, interrupted, waits, deadlocks, late_deadlocks, .. } = tally;
    assert!(late_deadlocks > 5 && tally.denied > 50, "{late_deadlocks} late, {} denied", tally.denied);
    assert!(tally.unheard > 80, "{} unheard", tally.unheard);
    assert!(answers > 8_000 && grants > 5_000, "{answers} answers, {grants} grants");
    assert!(ended > 1_000 && interrupted > 5_000, "{ended} ended, {interrupted} interrupted");
    assert!(waits > 15_000 && deadlocks > 500, "{deadlocks} of {waits}");
}

#[test]
fn no_cycle_stands_where_all_wait() {
    let mut tally = Tally::default();
    with_seeds(0..rounds(2_500) as u64, |seed, telling| play(seed, telling, &mut tally, true));
    if cfg!(miri) {
        return; // too few to have seen everything
    }
    let Tally { waits, deadlocks, late_deadlocks, longest_cycle, .. } = tally;
    assert!(late_deadlocks > 15, "{late_deadlocks} late");
    assert!(waits > 5_000 && deadlocks > 300, "{deadlocks} of {waits}");
    assert!(longest_cycle >= 3, "the longest cycle had {longest_cycle} steps");
}

/// A crowd that has come and gone leaves the memory as it was, whichever way it went.
#[test]
#[cfg_attr(miri, ignore = "a crowd takes hours there")]
fn a_crowd_leaves_no_memory_behind() {
    type Way = fn(&mut LockManager, &mut MemoryStore, &[RequestId]);
    let ways: [(&str, Way); 5] = [
        ("left", |manager, _, all| all.iter().for_each(|request| assert!(manager.abandon(*request)))),
        ("timed out", |_, _, _| ()),
        ("sent away", |manager, _, _| {
            drop(manager.fail_waiters(LockError::NotPrimary));
            manager.end_waits(&mut whole_turn(ms(1_000)));
        }),
        ("granted, and ended by deadlines", |manager, store, _| {
            assert_eq!(manager.release(one(store, ms(1_000), &id_of(0)), HoldRef::of(b"first"), None), Ok(1));
            manager.serve_queues(store, &mut TestClients::default(), &mut whole_turn(ms(1_000)));
            let names: [&[u8]; 1] = [id_of(0).name];
            let last = changed(request(b"last", Want::Hold(Mode::Write)), |claim| claim.terms.ttl_ms = 1);
            manager.acquire(several(store, ms(2_000), 0, &names), &last).unwrap();
            for late in 0..1_100 {
                let own = late.to_string();
                let names: [&[u8]; 1] = [own.as_bytes()];
                let asked = request(b"other", Want::Hold(Mode::Write));
                let asked = bound(asked, 9);
                manager.acquire(several(store, ms(2_000), 0, &names), &asked).unwrap();
                assert_eq!(
                    manager.release(several(store, ms(2_000), 0, &names), HoldRef::of(b"other"), None),
                    Ok(1)
                );
            }
        }),
        ("granted, and ended with their connections", |manager, store, _| {
            assert_eq!(manager.release(one(store, ms(1_000), &id_of(0)), HoldRef::of(b"first"), None), Ok(1));
            manager.serve_queues(store, &mut TestClients::default(), &mut whole_turn(ms(1_000)));
            (0..2_000).for_each(|connection| manager.connection_closed(connection));
        }),
    ];
    for (how, way) in ways {
        let (mut manager, mut store) = (LockManager::default(), MemoryStore::default());
        let names: [&[u8]; 1] = [id_of(0).name];
        manager
            .acquire(several(&mut store, ms(1_000), 0, &names), &request(b"first", Want::Hold(Mode::Write)))
            .unwrap();
        let ((), growth) = growth_of(|| {
            let mut waiting = Vec::new();
            for number in 0..2_000 {
                let (token, wait) = (format!("token {number}"), WaitPolicy::Timeout(100));
                let asked = request(token.as_bytes(), Want::Hold(Mode::Read));
                let asked = bound(Request { wait, ..asked }, number);
                match manager.acquire(several(&mut store, ms(1_000), 0, &names), &asked) {
                    Ok(AcquireOutcome::Waiting(request)) => waiting.push(request),
                    other => panic!("{other:?}"),
                }
            }
            way(&mut manager, &mut store, &waiting);
            // By then each EPHEMERAL hold has been looked at: that of a large crowd that has ended is forgotten so.
            manager.serve_queues(&mut store, &mut TestClients::default(), &mut whole_turn(ms(90_000)));
            manager.take_answers(usize::MAX);
            store.delete(&id_of(0).into());
            store.records = Vec::new();
        });
        manager.waitlist().check();
        assert!(manager.waitlist().is_empty() && !manager.has_work());
        assert!(growth < 4_096, "{how}: {growth} bytes are left");
    }
}
