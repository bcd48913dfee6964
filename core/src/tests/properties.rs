//! The whole core over random histories, side by side with [`NaiveServer`].
//!
//! Owners ask, release, wait, cancel; connections close; keys go, change, move away and change databases;
//! the wall clock steps forth and back. Any number of steps fall into one turn, and a turn may be interrupted
//! after any number of looks at the clock. After every step:
//!
//! * **Commands answer as the model does**, and nobody else is granted anything by them.
//! * **Safety.** No writer beside another holder; asserted with each effect by [`MemoryStore`].
//! * **No overtaking.** A new hold is given to a newcomer only where nobody waits, and to a waiting request
//!   only at the front of all its queues; upgrades go first. The model judges each grant at its moment.
//! * **A grant is final.** The core holds what the model holds, which loses a hold only by its deadline, a
//!   release, the end of its connection, or what befell the key.
//! * **No lost wake-up.** Whoever has to be answered now is so at the end of the turn; before that, or when
//!   only time has passed, the manager has work or is due, and due no later than somebody has to be answered.
//! * **Deadlocks** are found exactly where [`WaitsFor`] finds them by brute force.
//! * **Nobody is forgotten**, and nothing is remembered of those who have gone.
//! * **Effects are the truth.** Copies made from them alone are equal to the byte.
//!
//! [`MemoryStore`]: super::memory_store::MemoryStore

use super::deadlock::WaitsFor;
use super::heap::growth_of;
use super::history::{
    BASE_MS, Habits, KnownHold, NAMES, Op, Reply, TOKENS, Telling, World, id_of, token_number, with_seeds,
};
use super::memory_store::MemoryStore;
use super::naive_server::{Hold, NaiveServer, Verdict, Waiting, holds_of};
use super::random::Random;
use super::scene::{TestClients, bound, ms, one, request, several, whole_turn};
use crate::error::LockError;
use crate::ids::{HoldRef, RequestId};
use crate::manager::LockManager;
use crate::mode::{Mode, Want};
use crate::request::{AcquireOutcome, Request, WaitPolicy, WaitResult};

/// What has been played, over all histories.
#[derive(Default)]
struct Tally {
    answers: usize,
    grants: usize,
    ended: usize,
    interrupted: usize,
    waits: usize,
    deadlocks: usize,
    late_deadlocks: usize,
    denied: usize,
    unheard: usize,
    longest_cycle: usize,
}

/// A history in which core and model go side by side.
struct SideBySide<'t> {
    world: World,
    model: NaiveServer,
    connections: [u64; 4],
    channels: [u32; 3],
    /// Whether some name was not served at any time.
    was_away: bool,
    /// When the wall clock has passed this, what it had revived by stepping back has ended again. A hold that
    /// revives is no reason to look at a queue.
    revived_until_us: u64,
    tally: &'t mut Tally,
}

impl SideBySide<'_> {
    fn pass_some_time(&mut self, random: &mut Random) {
        match random.below(10) {
            0..=4 => {}
            5 | 6 => self.world.pass(random.within(1, 4_000)),
            7 | 8 => {
                // To the next moment at which something is due, or beside it.
                if let Some(due_ms) = self.world.manager.next_due_ms(self.world.now()) {
                    self.world.pass_to(due_ms - 1 + random.within(0, 2), random.within(0, 999));
                }
            }
            _ => self.world.pass(random.within(1, 60_000)),
        }
    }

    /// Whether the step can be compared: that a hold comes back whose time was up and whose connection is
    /// being ended is not promised, nor is what becomes of it.
    fn can_step(&self, op: &Op) -> bool {
        let now_ms = self.world.now().unix_ms();
        let is_past = |hold: &Hold| hold.connection.is_some() && hold.deadline_ms <= now_ms;
        match op {
            Op::StepWallClock(us) if *us < 0 => {
                self.world.now().unix_us() as i64 + us > BASE_MS as i64 * 1000
                    && !self.model.names.iter().flat_map(|name| &name.holds).any(is_past)
            }
            _ => true,
        }
    }

    fn step(&mut self, op: &Op) {
        let now = self.world.now();
        let reply = self.world.does(op);
        let count = |result: Result<usize, LockError>| result.map_or_else(Reply::Error, Reply::Count);
        let model = &mut self.model;
        let expected = match op {
            Op::Ask(asked) => match model.ask(now, asked) {
                Verdict::Granted(fence) => Reply::Granted(fence),
                Verdict::Refused => Reply::Refused,
                Verdict::Error(error) => Reply::Error(error),
                Verdict::Waits => match model.renew(asked, now) {
                    Some(same) => Reply::Waiting(same),
                    None => {
                        let id = if let Reply::Waiting(id) = reply { id } else { RequestId::LAST };
                        model.enqueue(id, asked, now);
                        self.tally.waits += 1;
                        // While some are about to leave, a cycle is looked for later.
                        let leaves =
                            |request: &Waiting| model.may_leave(request) || model.is_over(request, now);
                        let is_late = model.waiting.iter().any(leaves);
                        let steps = match reply {
                            Reply::Waiting(_) if is_late => 0,
                            _ => WaitsFor::new(model, now.unix_ms()).assert_cycle(id, asked, &reply),
                        };
                        if steps > 0 {
                            model.forget(id);
                            self.tally.deadlocks += 1;
                            self.tally.longest_cycle = self.tally.longest_cycle.max(steps);
                        }
                        reply.clone()
                    }
                },
            },
            Op::Extend { names, token, extension, fence } => {
                count(model.extend(names, *token, *extension, *fence, now))
            }
            Op::Release { name, token, mode, fence } => {
                count(model.release(&[*name], *token, *mode, *fence, now))
            }
            Op::ReleaseAll { names, token, fence } => count(model.release(names, *token, None, *fence, now)),
            Op::Cancel { name, token, refuse_ms } => {
                refuse_ms.inspect(|ms| model.refuse(*name, *token, *ms, now));
                Reply::Count(model.cancel(*name, *token))
            }
            Op::Downgrade { name, token, ttl_ms, fence } => {
                model.downgrade(*name, *token, *ttl_ms, *fence, now).map_or_else(Reply::Error, Reply::Granted)
            }
            _ => {
                self.happens(op);
                Reply::Nothing
            }
        };
        assert_eq!(reply, expected, "{op:?}");
        self.judge_results(matches!(op, Op::EndWaits | Op::Cancel { .. }));
        self.compare();
    }

    fn happens(&mut self, op: &Op) {
        let (world, model) = (&self.world, &mut self.model);
        match op {
            Op::Abandon(request) | Op::TimeOut(request) => model.forget(*request),
            Op::Close(connection, requests) => {
                requests.iter().for_each(|request| model.forget(*request));
                model.closed.insert(*connection);
                let next = self.connections.iter().max().unwrap() + 1;
                *self.connections.iter_mut().find(|open| *open == connection).unwrap() = next;
            }
            Op::Delete(name) | Op::Retype(name) | Op::Replace(name, ..) => {
                model.names[*name].is_other_type = matches!(op, Op::Retype(_));
                model.names[*name].holds = holds_of(world, *name);
            }
            Op::MoveAway(name) | Op::ComeBack(name) => {
                model.names[*name].is_away = matches!(op, Op::MoveAway(_));
                self.was_away |= model.names[*name].is_away;
            }
            Op::Deafen(channel, _) => {
                model.deaf.insert(*channel);
                let next = self.channels.iter().max().unwrap() + 1;
                *self.channels.iter_mut().find(|open| *open == channel).unwrap() = next;
            }
            Op::Deny(token) => drop(model.denied.insert(*token)),
            Op::Allow(token) => drop(model.denied.remove(token)),
            Op::SwapDatabases => model.swap_databases(),
            Op::StepWallClock(step_us) => {
                let now_ms = world.now().unix_ms();
                let was_us = world.now().unix_us().checked_add_signed(-step_us).unwrap();
                let revives = |hold: &Hold| hold.deadline_ms > now_ms && hold.deadline_ms <= was_us / 1000;
                if model.names.iter().flat_map(|name| &name.holds).any(revives) {
                    self.revived_until_us = self.revived_until_us.max(was_us);
                }
            }
            Op::StartGrace(ms) => model.grace_until_ms = world.now().monotonic_ms() + ms,
            _ => {}
        }
    }

    /// A whole turn ends, or is interrupted after so many looks at the clock.
    fn serve(&mut self, looks: usize) {
        let is_whole = self.world.serve(looks);
        let now = self.world.now();
        // Which holds of closed connections have come to their end is not the model's to say, only that all
        // do in the end.
        for name in 0..NAMES {
            let left = holds_of(&self.world, name);
            let (model, ended) = (&self.model, &mut self.tally.ended);
            let stays =
                |hold: &Hold| !model.has_ended(hold) || left.iter().any(|left| left.fence == hold.fence);
            let holds: Vec<Hold> =
                model.names[name].holds.iter().filter(|hold| stays(hold)).cloned().collect();
            *ended += model.names[name].holds.len() - holds.len();
            self.model.names[name].holds = holds;
        }
        self.judge_results(true);
        self.tally.interrupted += usize::from(!is_whole);
        self.compare();
        if is_whole && !self.is_revived() {
            for request in &self.model.waiting {
                assert!(!self.model.must_answer(request, now), "left behind: {request:?}");
            }
            assert!(self.was_away || !self.has_ended_holds());
            let graph = WaitsFor::new(&self.model, now.unix_ms());
            assert!(!(0..TOKENS.len()).any(|token| graph.has_cycle_through_token(token)), "a cycle stands");
        }
        if is_whole {
            let due_ms = self.world.manager.next_due_ms(now);
            assert!(due_ms.is_none_or(|due_ms| due_ms > now.monotonic_ms()), "due at once again");
        }
    }

    fn judge_results(&mut self, may_have: bool) {
        let (now, results) = (self.world.now(), self.world.manager.take_answers());
        assert!(may_have || results.is_empty(), "granted in a command: {results:?}");
        let (waitlist, answers) = (self.world.manager.waitlist(), &results);
        let has_left =
            |id: RequestId| waitlist.get(id).is_none() && !answers.iter().any(|answer| answer.request == id);
        let gone: Vec<RequestId> = self
            .model
            .waiting
            .iter()
            .filter(|request| has_left(request.id))
            .map(|request| {
                assert!(self.model.may_leave(request), "it has left without an answer: {request:?}");
                request.id
            })
            .collect();
        self.tally.unheard += gone.len();
        gone.iter().for_each(|id| self.model.forget(*id));
        for answer in &results {
            self.model.judge(answer, now);
            self.tally.answers += 1;
            match &answer.result {
                WaitResult::Granted(_) => self.tally.grants += 1,
                WaitResult::Failed(LockError::Deadlock(_)) => self.tally.late_deadlocks += 1,
                WaitResult::Failed(LockError::NoPermission) => self.tally.denied += 1,
                _ => {}
            }
        }
    }

    fn is_revived(&self) -> bool {
        self.world.now().unix_us() < self.revived_until_us
    }

    fn has_ended_holds(&self) -> bool {
        let now_ms = self.world.now().unix_ms();
        let mut holds = self.model.names.iter().flat_map(|name| &name.holds);
        holds.any(|hold| hold.deadline_ms > now_ms && self.model.has_ended(hold))
    }

    fn compare(&mut self) {
        let (now, world) = (self.world.now(), &self.world);
        for number in 0..NAMES {
            let live = |holds: &[Hold]| -> Vec<Hold> {
                let live = holds.iter().filter(|hold| hold.deadline_ms > now.unix_ms());
                live.map(|hold| Hold { connection: None, ..hold.clone() }).collect()
            };
            let naive = live(&self.model.names[number].holds);
            assert_eq!(live(&holds_of(world, number)), naive, "name {number}");
            self.model.sync(world, number);
            let queue = self.model.queue_at(number);
            let waiters = world.manager.waitlist().at(id_of(number));
            let waiters: Vec<_> = waiters.map(|waiter| (token_number(&waiter.token), waiter.want)).collect();
            let expected: Vec<_> =
                queue.iter().map(|request| (request.asked.token, request.asked.want)).collect();
            assert_eq!(waiters, expected, "name {number}");
        }
        assert_eq!(world.manager.waitlist().len(), self.model.waiting.len());
        assert_eq!(world.manager.fences.last(), self.model.last_fence);
        if world.manager.has_work() || self.is_revived() {
            return;
        }
        let due_in = world.manager.next_due_ms(now).map(|due_ms| due_ms.saturating_sub(now.monotonic_ms()));
        if let Some(in_ms) = self.model.next_answer_in(now) {
            assert!(due_in.is_some_and(|due_in| due_in <= in_ms), "needed in {in_ms} ms, due in {due_in:?}");
        }
        if self.has_ended_holds() {
            assert!(due_in.is_some_and(|due_in| due_in <= 8000), "due in {due_in:?}");
        }
    }

    /// Everybody who still waits leaves, or is waited for.
    fn end(mut self, random: &mut Random) {
        self.world.store.assert_rebuilt_by_records();
        for id in self.model.waiting.iter().map(|request| request.id).collect::<Vec<_>>() {
            if random.chance(50) {
                self.step(&Op::Abandon(id));
            }
        }
        self.serve(usize::MAX);
        while let Some(due_ms) = self.world.manager.next_due_ms(self.world.now())
            && !self.model.waiting.is_empty()
        {
            self.world.pass_to(due_ms, 0);
            self.serve(usize::MAX);
        }
        assert!(self.model.waiting.is_empty(), "they wait for ever: {:?}", self.model.waiting);
        assert!(self.world.manager.waitlist().is_empty() && !self.world.manager.has_work());
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
    let (mut world, mut model) = (World::new(), NaiveServer::new());
    model.requests_of_token = random.pick(&[2, 3, usize::MAX]);
    world.manager.max_requests_of_token = model.requests_of_token;
    world.manager.left_at_once = random.pick(&[0, 1, 256]);
    let connections = [1, 2, 3, 4];
    let channels = [1, 2, 3];
    let mut both =
        SideBySide { world, model, connections, channels, was_away: false, revived_until_us: 0, tally };
    // Whether turns are short, long, or interrupted.
    let percent_serving = if all_wait { 100 } else { random.pick(&[15, 40, 100]) };
    let percent_interrupted = if all_wait { 0 } else { random.pick(&[0, 30, 70]) };
    for _ in 0..60 {
        both.pass_some_time(&mut random);
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
        if both.can_step(&op) {
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
    both.end(&mut random);
}

#[test]
fn random_histories_equal_the_naive_server() {
    let mut tally = Tally::default();
    with_seeds(0..3_000, |seed, telling| play(seed, telling, &mut tally, false));
    let Tally { answers, grants, ended, interrupted, waits, deadlocks, late_deadlocks, .. } = tally;
    assert!(late_deadlocks > 5 && tally.denied > 50, "{late_deadlocks} late, {} denied", tally.denied);
    assert!(tally.unheard > 80, "{} unheard", tally.unheard);
    assert!(answers > 8_000 && grants > 5_000, "{answers} answers, {grants} grants");
    assert!(ended > 1_000 && interrupted > 5_000, "{ended} ended, {interrupted} interrupted");
    assert!(waits > 20_000 && deadlocks > 500, "{deadlocks} of {waits}");
}

#[test]
fn no_cycle_stands_where_all_wait() {
    let mut tally = Tally::default();
    with_seeds(0..2_500, |seed, telling| play(seed, telling, &mut tally, true));
    let Tally { waits, deadlocks, late_deadlocks, longest_cycle, .. } = tally;
    assert!(late_deadlocks > 15, "{late_deadlocks} late");
    assert!(waits > 5_000 && deadlocks > 300, "{deadlocks} of {waits}");
    assert!(longest_cycle >= 3, "the longest cycle had {longest_cycle} steps");
}

/// A crowd that has come and gone leaves the memory as it was, whichever way it went.
#[test]
fn a_crowd_leaves_no_memory_behind() {
    type Way = fn(&mut LockManager, &mut MemoryStore, &[RequestId]);
    let ways: [(&str, Way); 5] = [
        ("left", |manager, _, all| all.iter().for_each(|request| assert!(manager.abandon(*request)))),
        ("timed out", |_, _, _| ()),
        ("sent away", |manager, _, _| {
            drop(manager.resign(LockError::NotPrimary));
            manager.end_waits(&mut whole_turn(ms(1_000)));
        }),
        ("granted, and ended by deadlines", |manager, store, _| {
            assert_eq!(manager.release(one(store, ms(1_000), &id_of(0)), HoldRef::of(b"first"), None), Ok(1));
            manager.serve_queues(store, &mut TestClients::default(), &mut whole_turn(ms(1_000)));
            let names: [&[u8]; 1] = [id_of(0).name];
            let last = Request { ttl_ms: 1, ..request(b"last", Want::Hold(Mode::Write)) };
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
            manager.serve_queues(&mut store, &mut TestClients::default(), &mut whole_turn(ms(1_100)));
            manager.take_answers();
            store.delete(&id_of(0).into());
            store.records = Vec::new();
        });
        manager.waitlist().check();
        assert!(manager.waitlist().is_empty() && !manager.has_work());
        assert!(growth < 4_096, "{how}: {growth} bytes are left");
    }
}
