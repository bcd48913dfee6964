//! The whole core, queue included, over random histories.
//!
//! Two kinds of histories. In the *prompt* ones the desk is driven whenever time passes or a key
//! changes, as a server does that keeps up, and everything must equal [`NaiveServer`]: every reply,
//! every answer, every hold, every queue. In the *late* ones anything may come before the next drive,
//! and an owner may do whatever it likes with names it waits for in a request for several; there the
//! properties are asserted by themselves:
//!
//! * **Safety.** No writer beside another holder; asserted with each effect by [`Primary`].
//! * **No overtaking.** A new hold is given to a newcomer only where nobody waits, and to a waiting
//!   request only when no older one is left behind on any of its names; upgrades go first.
//! * **No lost wake-up.** After a drive no request is left that could be answered, and the moment at
//!   which the desk wants to be driven again is not after the first at which one could be, and is
//!   not now.
//! * **All or none.** Checked in the prompt histories: a grant covers every name with one fence.
//! * **Nobody is forgotten.** Every request that was parked is answered exactly once, unless its
//!   client left.
//! * **Nothing is remembered.** When everybody has left, the desk is as empty as at the start.
//! * **Effects are the truth.** Copies made from them alone are equal to the byte.
//!
//! [`Primary`]: super::space::Primary

use std::collections::{BTreeMap, BTreeSet};

use super::heap::growth_of;
use super::history::{
    Asked, BASE_MS, Habits, Op, Reply, Telling, World, code, name_number, place_of, token_number, with_seeds,
};
use super::naive_server::{Answer, Hold, Kind, NaiveServer, NewFences, Request, Verdict, holds_of};
use super::random::Random;
use super::space::{Primary, ms};
use crate::desk::{self, Ask, Desk, Outcome, Parting, Patience, Refusal};
use crate::fence::Moment;
use crate::lock::{Mode, Want};
use crate::queue::Ticket;

fn pass_some_time(random: &mut Random, world: &mut World) {
    match random.below(10) {
        0..=4 => {}
        5 | 6 => world.pass(random.within(1, 4_000)),
        7 | 8 => {
            // To the next moment at which something is due, or beside it.
            if let Some(due_ms) = world.desk.next_due_ms() {
                let near_ms = due_ms - 1 + random.within(0, 2);
                world.pass((near_ms * 1000).saturating_sub(world.now.us()));
            }
        }
        _ => world.pass(random.within(1, 60_000)),
    }
}

/// What the core has answered since the last call, in the model's words; asserts that nobody is
/// answered twice.
fn take_answers(world: &mut World) -> (BTreeMap<Ticket, desk::Answer>, NewFences) {
    let all = world.desk.take_answers();
    let count = all.len();
    let answers: BTreeMap<_, _> = all.into_iter().collect();
    assert_eq!(answers.len(), count, "answered twice");
    let fences = answers
        .iter()
        .filter_map(|(ticket, answer)| match answer {
            desk::Answer::Granted(fence) => Some((*ticket, *fence)),
            _ => None,
        })
        .collect();
    (answers, fences)
}

fn same_answer(core: &desk::Answer, naive: &Answer) -> bool {
    match (core, naive) {
        (desk::Answer::Granted(one), Answer::Granted(other)) => one == other,
        (desk::Answer::TimedOut, Answer::TimedOut) => true,
        (desk::Answer::Refused(refusal), Answer::Error(error)) => code(refusal) == *error,
        _ => false,
    }
}

/// A history in which core and model go side by side.
struct SideBySide {
    world: World,
    model: NaiveServer,
}

impl SideBySide {
    /// An owner that waits for several names at once leaves those names alone meanwhile, and does not
    /// ask for several where it waits: which of its own requests is looked at first is not promised,
    /// nor whether it is told now or when its turn comes that it asks for the impossible.
    fn is_tame(&self, op: &Op) -> bool {
        let (names, token) = match op {
            Op::Ask(Asked { names, token, .. }) | Op::ReleaseAll { names, token } => (names.clone(), *token),
            Op::Release { name, token, .. } | Op::Downgrade { name, token, .. } => (vec![*name], *token),
            _ => return true,
        };
        let entangled = |request: &Request| {
            let own = &request.asked;
            let many = own.names.len() > 1 || names.len() > 1;
            own.token == token && many && own.names.iter().any(|name| names.contains(name))
        };
        !self.model.waiting.iter().any(entangled)
    }

    fn step(&mut self, op: &Op) {
        let reply = self.world.does(op);
        let (answers, fences) = take_answers(&mut self.world);
        let (now, now_ms) = (self.world.now, self.world.now_ms());
        let granted = match reply {
            Reply::Granted(fence) => Some(fence),
            _ => None,
        };
        let error = |error: &str| Reply::Error(error.to_owned());
        let model = &mut self.model;
        let expected = match op {
            Op::Ask(asked) => match model.ask(now, asked, granted) {
                Verdict::Granted(fence) => Reply::Granted(fence),
                Verdict::Refused => Reply::Refused,
                Verdict::Error(code) => error(code),
                Verdict::Waits => {
                    if let Reply::Parked(ticket) = reply {
                        model.park(ticket, asked, now_ms);
                    } else {
                        // When that is right is the matter of another file.
                        assert_eq!(reply, error("DEADLOCK"));
                    }
                    reply.clone()
                }
            },
            Op::Extend { names, token, ttl_ms } => match model.obstacle(names) {
                Some(obstacle) => error(obstacle),
                None => Reply::Count(usize::from(model.extend(names, *token, *ttl_ms, now_ms))),
            },
            Op::Release { name, token, mode } => match model.obstacle(&[*name]) {
                Some(obstacle) => error(obstacle),
                None => Reply::Count(usize::from(model.release(*name, *token, *mode, now_ms))),
            },
            Op::ReleaseAll { names, token } => match model.obstacle(names) {
                Some(obstacle) => error(obstacle),
                None => {
                    Reply::Count(names.iter().filter(|n| model.release(**n, *token, None, now_ms)).count())
                }
            },
            Op::Downgrade { name, token, ttl_ms } => match model.obstacle(&[*name]) {
                Some(obstacle) => error(obstacle),
                None => match model.downgrade(now, *name, *token, *ttl_ms, granted) {
                    Some(fence) => Reply::Granted(fence),
                    None => error("NOTHELD"),
                },
            },
            Op::Leave(ticket) => {
                model.leave(*ticket);
                Reply::Nothing
            }
            Op::Told(ticket) => {
                model.told(*ticket);
                Reply::Nothing
            }
            Op::Delete(name) | Op::Retype(name) | Op::Replace(name, ..) => {
                let kind = if matches!(op, Op::Retype(_)) { Kind::OtherType } else { Kind::Lock };
                model.names[*name].kind = kind;
                model.names[*name].holds = holds_of(&self.world, *name);
                Reply::Nothing
            }
            Op::MoveAway(name) | Op::ComeBack(name) => {
                model.names[*name].elsewhere = matches!(op, Op::MoveAway(_));
                Reply::Nothing
            }
        };
        assert_eq!(reply, expected, "{op:?}");
        if matches!(reply, Reply::Nothing) {
            assert!(answers.is_empty(), "only a drive may follow from this");
        } else {
            model.settle(now, &fences);
        }
        self.compare(answers);
    }

    fn drive(&mut self) {
        self.world.drive();
        let (answers, fences) = take_answers(&mut self.world);
        self.model.drive(self.world.now, &fences);
        self.compare(answers);
        assert_nothing_is_due(&self.world, &self.model);
    }

    fn compare(&mut self, answers: BTreeMap<Ticket, desk::Answer>) {
        let naive = std::mem::take(&mut self.model.answers);
        let same = answers.len() == naive.len()
            && answers
                .iter()
                .zip(&naive)
                .all(|((one, core), (other, naive))| one == other && same_answer(core, naive));
        assert!(same, "the core answers {answers:?}\nthe model {naive:?}");
        let now_ms = self.world.now_ms();
        for (number, name) in self.model.names.iter().enumerate() {
            let live = |holds: Vec<_>| -> Vec<Hold> {
                holds.into_iter().filter(|hold: &Hold| hold.deadline_ms > now_ms).collect()
            };
            assert_eq!(live(holds_of(&self.world, number)), live(name.holds.clone()), "name {number}");
            let queue = self.model.queue_at(number);
            let waiters: Vec<_> = self.world.desk.waitlist().at(place_of(number)).collect();
            assert_eq!(waiters.len(), queue.len());
            for (waiter, request) in waiters.into_iter().zip(queue) {
                assert_eq!(token_number(&waiter.token), request.asked.token);
                assert_eq!(waiter.want, request.asked.want);
                assert!(waiter.places.iter().map(name_number).eq(request.asked.names.iter().copied()));
            }
        }
    }
}

/// No lost wake-up.
fn assert_nothing_is_due(world: &World, model: &NaiveServer) {
    let now_ms = world.now_ms();
    for request in &model.waiting {
        assert!(!model.must_answer(request, now_ms), "left behind: {request:?}");
    }
    let due_ms = world.desk.next_due_ms();
    assert!(due_ms.is_none_or(|due_ms| due_ms > now_ms), "due at once again");
    if let Some(next_ms) = model.next_answer_ms(now_ms) {
        let covered = due_ms.is_some_and(|due_ms| due_ms <= next_ms);
        assert!(covered, "somebody can be answered in {} ms, due is {due_ms:?}", next_ms - now_ms);
    }
}

/// Everybody who still waits leaves, or is waited for.
fn assert_nothing_is_remembered(random: &mut Random, world: &mut World) {
    for ticket in world.desk.waitlist().tickets() {
        if random.chance(50) {
            assert_eq!(world.desk.leave(ticket), Parting::Left);
        }
    }
    world.drive();
    while let Some(due_ms) = world.desk.next_due_ms() {
        world.pass((due_ms * 1000).saturating_sub(world.now.us()));
        world.drive();
    }
    let left: Vec<_> = world.desk.waitlist().tickets();
    assert!(left.is_empty(), "they wait for ever: {left:?}");
    assert!(world.desk.waitlist().is_empty() && !world.desk.has_work());
    assert_eq!(world.desk.waitlist().places().count(), 0);
}

fn play_prompt(seed: u64, telling: Telling) {
    let mut random = Random::new(seed);
    let habits = Habits::draw(&mut random);
    let mut both = SideBySide { world: World::new(habits.names), model: NaiveServer::new(habits.names) };
    let closing = if random.chance(20) { random.below(60) } else { usize::MAX };
    for number in 0..60 {
        if number == closing {
            let closed_until_ms = both.world.now_ms() + random.within(1, 60);
            both.world.desk.closed_until_ms = closed_until_ms;
            both.model.closed_until_ms = closed_until_ms;
        }
        pass_some_time(&mut random, &mut both.world);
        both.drive();
        let waiting: Vec<Ticket> = both.model.waiting.iter().map(|request| request.ticket).collect();
        let op = habits.op(&mut random, &waiting, &both.model.untold());
        if !both.is_tame(&op) {
            continue;
        }
        telling.tell(|| format!("{} ms: {op:?}", both.world.now_ms() - BASE_MS));
        both.step(&op);
        // A client that was told may go like any other.
        if let (Op::Told(ticket), true) = (&op, random.chance(50)) {
            both.step(&Op::Leave(*ticket));
        }
        // Several clients may go before they are told, in one turn of the loop.
        if random.chance(5) {
            both.drive();
            for ticket in both.model.untold() {
                both.step(&Op::Leave(ticket));
            }
        }
        both.drive();
    }
    both.world.space.assert_rebuilt_by_records();
    assert_nothing_is_remembered(&mut random, &mut both.world);
}

/// What is remembered of each request in a late history.
#[derive(Default)]
struct Register {
    waiting: BTreeSet<Ticket>,
    untold: BTreeSet<Ticket>,
    answered: usize,
    handed_on: usize,
}

impl Register {
    /// Takes the answers, asserts that each is the only one, and that no grant overtook.
    fn note(&mut self, world: &mut World, before: &NaiveServer) {
        let (answers, fences) = take_answers(world);
        let left_behind = NaiveServer::snapshot(world).waiting;
        for (ticket, answer) in &answers {
            assert!(self.waiting.remove(ticket), "answered, but did not wait");
            self.answered += 1;
            let desk::Answer::Granted(_) = answer else { continue };
            self.untold.insert(*ticket);
            self.handed_on += 1;
            let granted = before.waiting.iter().find(|request| request.ticket == *ticket);
            // One that came in this very step was parked and is not granted in it.
            let asked = &granted.expect("it waited before").asked;
            if asked.want == Want::Upgrade {
                continue;
            }
            // What the token holds already it need not stand in line for.
            let siblings = before.waiting.iter().filter(|other| {
                other.ticket != *ticket
                    && other.asked.token == asked.token
                    && fences.contains_key(&other.ticket)
            });
            let by_sibling: Vec<usize> = siblings.flat_map(|other| other.asked.names.clone()).collect();
            let has =
                |name: &usize| by_sibling.contains(name) || before.own_hold(*name, asked.token, 0).is_some();
            let new: Vec<usize> = asked.names.iter().copied().filter(|name| !has(name)).collect();
            for older in left_behind.iter().filter(|older| older.ticket < *ticket) {
                let meet = older.asked.names.iter().any(|name| new.contains(name));
                assert!(!meet, "{ticket:?} {asked:?} overtook {older:?}");
            }
        }
    }
}

fn play_late(seed: u64, telling: Telling, totals: &mut Register) {
    let mut random = Random::new(seed);
    let habits = Habits::draw(&mut random);
    let mut world = World::new(habits.names);
    let (mut register, mut latest) = (Register::default(), world.now);
    for _ in 0..60 {
        pass_some_time(&mut random, &mut world);
        if random.chance(5) {
            // The clock steps back.
            world.now = Moment::from_unix_us((world.now.us() - random.within(0, 3_000)).max(BASE_MS * 1000));
        }
        latest = latest.max(world.now);
        let before = NaiveServer::snapshot(&world);
        if random.chance(30) {
            telling.tell(|| format!("{} ms: drive", world.now_ms() - BASE_MS));
            world.drive();
            register.note(&mut world, &before);
            // A clock that has stepped back revives holds, which is no reason to look at queues again.
            if world.now == latest {
                assert_nothing_is_due(&world, &NaiveServer::snapshot(&world));
            }
            continue;
        }
        let waiting: Vec<Ticket> = register.waiting.iter().copied().collect();
        let untold: Vec<Ticket> = register.untold.iter().copied().collect();
        let op = habits.op(&mut random, &waiting, &untold);
        let reply = world.does(&op);
        telling.tell(|| format!("{} ms: {op:?} -> {reply:?}", world.now_ms() - BASE_MS));
        match (&op, &reply) {
            (Op::Ask(asked), Reply::Granted(fence)) => {
                let is_new = asked.names.iter().all(|name| {
                    before.own_hold(*name, asked.token, world.now_ms()).is_none_or(|own| own.fence != *fence)
                });
                let was_free = asked.names.iter().all(|name| {
                    before.own_hold(*name, asked.token, world.now_ms()).is_some()
                        || before.first_at(*name).is_none()
                });
                assert!(!is_new || was_free || asked.want == Want::Upgrade, "barged in: {asked:?}");
            }
            (Op::Ask(asked), Reply::Parked(ticket)) => {
                assert!(asked.patience != Patience::None);
                register.waiting.insert(*ticket);
            }
            (Op::Leave(ticket), _) => {
                register.waiting.remove(ticket);
                register.untold.remove(ticket);
            }
            (Op::Told(ticket), _) => {
                register.untold.remove(ticket);
            }
            _ => {}
        }
        register.note(&mut world, &before);
        let waits: BTreeSet<Ticket> = world.desk.waitlist().tickets().into_iter().collect();
        assert_eq!(waits, register.waiting, "lost, or answered in silence");
    }
    world.space.assert_rebuilt_by_records();
    assert_nothing_is_remembered(&mut random, &mut world);
    totals.answered += register.answered;
    totals.handed_on += register.handed_on;
}

#[test]
fn prompt_histories_equal_the_naive_server() {
    with_seeds(0..3_000, play_prompt);
}

#[test]
fn late_histories_keep_every_promise() {
    let mut totals = Register::default();
    with_seeds(0..3_000, |seed, telling| play_late(seed, telling, &mut totals));
    assert!(totals.answered > 10_000 && totals.handed_on > 5_000, "{} answers", totals.answered);
}

/// A crowd that has come and gone leaves the memory as it was, whichever way it went.
#[test]
fn a_crowd_leaves_no_memory_behind() {
    type Way = fn(&mut Desk, &mut Primary, &[Ticket]);
    let ways: [(&str, Way); 4] = [
        ("left", |desk, _, tickets| tickets.iter().for_each(|ticket| _ = desk.leave(*ticket))),
        ("timed out", |_, _, _| ()),
        ("sent away", |desk, _, _| desk.dismiss_all(&Refusal::NotPrimary)),
        ("granted, half of them told, the others gone", |desk, space, tickets| {
            assert_eq!(desk.release(space, ms(1_000), place_of(0), b"first", None), Ok(true));
            for (at, ticket) in tickets.iter().enumerate() {
                if at % 2 == 0 { desk.told(*ticket) } else { _ = desk.leave(*ticket) }
            }
        }),
    ];
    let ask = |desk: &mut Desk, space: &mut Primary, token: &[u8], want, patience| {
        let (names, connection) = ([place_of(0).name], None);
        let ask = Ask { db: 0, names: &names, token, want, ttl_ms: 500, meta: None, patience, connection };
        desk.acquire(space, ms(1_000), &ask)
    };
    for (how, way) in ways {
        let (mut desk, mut space) = (Desk::default(), Primary::default());
        ask(&mut desk, &mut space, b"first", Want::Hold(Mode::Write), Patience::None).unwrap();
        let ((), growth) = growth_of(|| {
            let mut tickets = Vec::new();
            for number in 0..2_000 {
                let (token, want) = (format!("token {number}"), Want::Hold(Mode::Read));
                match ask(&mut desk, &mut space, token.as_bytes(), want, Patience::Ms(100)) {
                    Ok(Outcome::Parked(ticket)) => tickets.push(ticket),
                    other => panic!("{other:?}"),
                }
            }
            way(&mut desk, &mut space, &tickets);
            desk.drive(&mut space, ms(1_100));
            desk.take_answers();
            space.delete(&place_of(0).into());
            (space.records, space.bindings) = Default::default();
        });
        desk.waitlist().check();
        assert!(desk.waitlist().is_empty() && !desk.has_work());
        assert!(growth < 4_096, "{how}: {growth} bytes are left");
    }
}
