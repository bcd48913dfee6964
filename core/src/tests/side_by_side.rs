//! The core and [`NaiveServer`] side by side, step by step. After every step:
//!
//! * **Commands answer as the model does**, and nobody else is granted anything by them.
//! * **Safety.** No writer beside another holder; asserted with each effect by [`MemoryStore`].
//! * **No overtaking.** A new hold is given to a newcomer only where nobody waits, and to a waiting request
//!   only at the front of all its queues; upgrades go first. The model judges each grant at its moment.
//! * **A grant is final.** The core holds what the model holds, which loses a hold only by its deadline, a
//!   release, the end of its connection, or what befell the key.
//! * **Fences rise.** Each is the model's next.
//! * **No lost wake-up.** Whoever has to be answered now is so at the end of the turn; before that, or when
//!   only time has passed, the manager has work or is due, and due no later than somebody has to be answered.
//! * **Deadlocks** are found exactly where [`WaitsFor`] finds them by brute force.
//! * **Nobody is forgotten**, and nothing is remembered of those who have gone.
//! * **Effects are the truth.** Copies made from them alone are equal to the byte: for the end of a history.
//!
//! [`MemoryStore`]: super::memory_store::MemoryStore

use super::history::{Asked, NAMES, Op, Reply, TOKENS, World, id_of, token_number};
use super::judge::WaitsFor;
use super::naive_server::{Hold, NaiveServer, Waiting, holds_of};
use crate::error::LockError;
use crate::ids::{ConnectionId, RequestId};
use crate::request::WaitResult;

/// What has been played, over all histories.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) grants: usize,
    pub(super) ended: usize,
    pub(super) interrupted: usize,
    pub(super) waits: usize,
    pub(super) deadlocks: usize,
    pub(super) late_deadlocks: usize,
    pub(super) denied: usize,
    pub(super) gone: usize,
    pub(super) longest_cycle: usize,
}

/// A history in which core and model go side by side.
pub(super) struct SideBySide {
    pub(super) world: World,
    pub(super) model: NaiveServer,
    pub(super) connections: [u64; 4],
    pub(super) channels: [u32; 3],
    /// Whether some name was not served at any time.
    was_away: bool,
    /// When the wall clock has passed this, what it had revived by stepping back has ended again. A hold that
    /// revives is no reason to look at a queue.
    revived_until_us: u64,
    pub(super) tally: Tally,
}

impl SideBySide {
    pub(super) fn new() -> Self {
        Self {
            world: World::new(),
            model: NaiveServer::new(),
            connections: [1, 2, 3, 4],
            channels: [1, 2, 3],
            was_away: false,
            revived_until_us: 0,
            tally: Tally::default(),
        }
    }

    pub(super) fn step(&mut self, op: &Op) {
        self.act(op);
        self.compare();
    }

    /// Makes it happen on both sides. That they are the same then is for [`SideBySide::compare`] to see.
    pub(super) fn act(&mut self, op: &Op) {
        let now = self.world.now();
        let reply = self.world.does(op);
        let expected = match (op, self.model.answer(now, op)) {
            (Op::Ask(asked), Reply::Waiting(_)) => self.waits(asked, &reply),
            (_, Reply::Nothing) => {
                self.happens(op);
                Reply::Nothing
            }
            (_, expected) => expected,
        };
        assert_eq!(reply, expected, "{op:?}");
        self.judge_results(matches!(op, Op::EndWaits | Op::Cancel { .. } | Op::End { .. }));
    }

    /// A request has to wait, if that closes no cycle. What it should be told.
    fn waits(&mut self, asked: &Asked, reply: &Reply) -> Reply {
        let (now, world, model) = (self.world.now(), &self.world, &mut self.model);
        if let Some(same) = model.renew(asked, now) {
            return Reply::Waiting(same);
        }
        let id = if let Reply::Waiting(id) = reply { *id } else { RequestId::LAST };
        model.enqueue(id, asked, now);
        self.tally.waits += 1;
        // While some are about to leave, a cycle is looked for later.
        let leaves = |request: &Waiting| model.may_leave(request) || model.is_over(request, now);
        let is_late =
            world.manager.ends_holds() || !world.untold.is_empty() || model.waiting.iter().any(leaves);
        let steps = match reply {
            Reply::Waiting(_) if is_late => 0,
            _ => WaitsFor::new(model, now.unix_ms()).assert_cycle(id, asked, reply),
        };
        if steps > 0 {
            model.forget(id);
            self.tally.deadlocks += 1;
            self.tally.longest_cycle = self.tally.longest_cycle.max(steps);
        }
        reply.clone()
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
    pub(super) fn serve(&mut self, looks: usize) {
        let is_whole = self.end_turn(looks);
        let now = self.world.now();
        self.compare();
        if is_whole && !self.is_revived() && self.world.untold.is_empty() {
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

    /// The same, and each answer is judged; that both sides are the same then is for others to see. Whether nothing was
    /// left to do.
    pub(super) fn end_turn(&mut self, looks: usize) -> bool {
        let is_whole = self.world.serve(looks);
        // Which holds of closed connections have come to their end is not the model's to say, only that all
        // do in the end; where their names are not served, by their ttl.
        for name in 0..NAMES {
            let is_served = self.model.names[name].obstacle().is_none();
            for hold in self.model.names[name].holds.iter_mut().filter(|hold| hold.connection.is_some()) {
                if !is_served && self.world.manager.connection_of(id_of(name), hold.fence).is_none() {
                    hold.connection = None;
                }
            }
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
        is_whole
    }

    fn judge_results(&mut self, may_have: bool) {
        let (now, results) = (self.world.now(), self.world.manager.take_answers(usize::MAX));
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
        self.tally.gone += gone.len();
        gone.iter().for_each(|id| self.model.forget(*id));
        for answer in &results {
            self.model.judge(answer, now);
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

    pub(super) fn compare(&mut self) {
        let (now, world) = (self.world.now(), &self.world);
        world.manager.waitlist().check();
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
            let waiters: Vec<_> =
                waiters.map(|waiter| (token_number(&waiter.token), waiter.terms.want)).collect();
            let expected: Vec<_> =
                queue.iter().map(|request| (request.asked.token, request.asked.want)).collect();
            assert_eq!(waiters, expected, "name {number}");
        }
        assert_eq!(world.manager.waitlist().len(), self.model.waiting.len());
        assert_eq!(world.manager.fences.last(), self.model.last_fence);
        if world.manager.has_work() || self.is_revived() || !world.untold.is_empty() {
            return;
        }
        let due_in = world.manager.next_due_ms(now).map(|due_ms| due_ms.saturating_sub(now.monotonic_ms()));
        if let Some(in_ms) = self.model.next_answer_in(now) {
            assert!(due_in.is_some_and(|due_in| due_in <= in_ms), "needed in {in_ms} ms, due in {due_in:?}");
        }
        assert!(!self.has_ended_holds());
    }

    /// The requests that a client gives up that closes this connection. What is answered on a channel has no client.
    pub(super) fn waiting_by(&self, connection: ConnectionId) -> Vec<RequestId> {
        let theirs = self.model.waiting.iter().filter(|request| {
            request.asked.connection == Some(connection) && request.asked.channel.is_none()
        });
        theirs.map(|request| request.id).collect()
    }

    /// Nobody acts any more: time passes until everybody who waits was answered.
    pub(super) fn run_out(&mut self) {
        self.act(&Op::Probe);
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
