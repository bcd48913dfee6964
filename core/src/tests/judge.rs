//! Those who wait, in the naive model, and whether what the core does with them is what the model allows.
//!
//! Each answer is judged in the order in which it was given: a grant must be due to a request at the front of its queues,
//! with the next fence, and so on. [`NaiveServer::must_answer`] says whether anybody is left behind. [`WaitsFor`] is built
//! by brute force from the definition at the head of `deadlock.rs` of the core, straight from who holds and who stands
//! where, without any shortcut.

use std::collections::BTreeSet;

use super::history::{Asked, NAMES, Reply, USERS, token_number, twin_of};
use super::naive_server::{Look, NaiveServer, Waiting, is_other};
use super::parts::channel;
use crate::error::{DeadlockStep, LockError};
use crate::ids::RequestId;
use crate::mode::{Mode, Want};
use crate::request::{Answer, WaitPolicy, WaitResult};
use crate::timestamp::Timestamp;

impl NaiveServer {
    /// The same request as one that waits and is answered on a channel: which one. It has what is new.
    pub(super) fn renew(&mut self, asked: &Asked, now: Timestamp) -> Option<RequestId> {
        let same = self.waiting.iter_mut().find(|request| request.is_renewed_by(asked))?;
        // It stands in the order of names in which it was asked for first.
        same.asked = Asked { names: same.asked.names.clone(), ..asked.clone() };
        same.gives_up_ms = gives_up_ms(asked, now);
        Some(same.id)
    }

    /// Whether the request may leave without an answer.
    pub(super) fn may_leave(&self, request: &Waiting) -> bool {
        request.asked.channel.is_some_and(|channel| self.deaf.contains(&channel))
    }

    /// Whether its wait is over: it has lasted as long as it should, or ends with a connection that has closed.
    pub(super) fn is_over(&self, request: &Waiting, now: Timestamp) -> bool {
        let Asked { channel, connection, .. } = &request.asked;
        let has_closed = connection.is_some_and(|connection| self.closed.contains(&connection));
        let is_past = request.gives_up_ms.is_some_and(|at_ms| at_ms <= now.monotonic_ms());
        request.is_cancelled || is_past || (channel.is_some() && has_closed)
    }

    pub(super) fn enqueue(&mut self, id: RequestId, asked: &Asked, now: Timestamp) {
        let gives_up_ms = gives_up_ms(asked, now);
        self.waiting.push(Waiting { id, asked: asked.clone(), gives_up_ms, is_cancelled: false });
    }

    pub(super) fn cancel(&mut self, name: usize, token: usize) -> usize {
        let fits =
            |request: &&mut Waiting| request.asked.token == token && request.asked.names.contains(&name);
        let cancelled = self.waiting.iter_mut().filter(fits);
        cancelled.map(|request| request.is_cancelled = true).count()
    }

    pub(super) fn forget(&mut self, id: RequestId) {
        self.waiting.retain(|request| request.id != id);
    }

    pub(super) fn swap_databases(&mut self) {
        for name in 0..NAMES / 2 {
            let twin = twin_of(name);
            self.names.swap(name, twin);
            // What a node serves goes by the name, not by what stands there.
            let (first, second) = (self.names[name].is_away, self.names[twin].is_away);
            (self.names[name].is_away, self.names[twin].is_away) = (second, first);
        }
        self.names.iter_mut().flat_map(|name| &mut name.holds).for_each(|hold| hold.connection = None);
    }

    /// Asserts that this answer to a waiting request is right now, and lets it be.
    pub(super) fn judge(&mut self, answer: &Answer, now: Timestamp) {
        let Answer { request: id, user, channel: to, result } = answer;
        let id = *id;
        let at = self.waiting.iter().position(|request| request.id == id).expect("it waits");
        let request = self.waiting[at].clone();
        let own =
            request.asked.channel.map(|number| (channel(number).into(), request.asked.tag.clone().into()));
        assert_eq!((to, user.as_deref()), (&own, Some(USERS[request.asked.user].as_bytes())), "{request:?}");
        assert!(!self.may_leave(&request) || !matches!(result, WaitResult::Granted(_)), "{request:?}");
        let look = self.look(&request.asked, Some(id), now);
        let expected = match look {
            _ if self.is_over(&request, now) => Ok(WaitResult::TimedOut),
            _ if matches!(result, WaitResult::Failed(LockError::Deadlock(_))) => {
                let WaitResult::Failed(LockError::Deadlock(cycle)) = result else { unreachable!() };
                WaitsFor::new(self, now.unix_ms()).assert_cycle_of(id, request.asked.token, &cycle.steps);
                Ok(result.clone())
            }
            Look::Blocked => Err("it is blocked"),
            Look::Impossible(error, _) => Ok(WaitResult::Failed(error)),
            Look::Clear(_) if self.denied.contains(&request.asked.token) => {
                Ok(WaitResult::Failed(LockError::NoPermission))
            }
            Look::Clear(same) => {
                let given = self.give(now, &request.asked, same);
                Ok(given.map_or_else(WaitResult::Failed, WaitResult::Granted))
            }
        };
        assert_eq!(Ok(result), expected.as_ref(), "{request:?}");
        self.waiting.remove(at);
    }

    /// Whether a request has to be answered at this moment though nobody acts: it can be granted, or
    /// it is at the front of the very name that makes it impossible, or its time has run out.
    pub(super) fn must_answer(&self, request: &Waiting, now: Timestamp) -> bool {
        let is_first = |name: &usize| self.first_at(*name) == Some(request.id);
        self.is_over(request, now)
            || match self.look(&request.asked, Some(request.id), now) {
                // What it has got already, by a lock that came from elsewhere, can wait for its turn.
                Look::Clear(same) => same.is_none() || request.asked.names.iter().any(is_first),
                Look::Blocked => false,
                Look::Impossible(_, name) => is_first(&name),
            }
    }

    /// How many milliseconds from now some request has to be answered, if nobody acts.
    pub(super) fn next_answer_in(&self, now: Timestamp) -> Option<u64> {
        let deadlines = self.names.iter().flat_map(|name| &name.holds).map(|hold| hold.deadline_ms);
        let from_wall = deadlines.filter_map(|at_ms| at_ms.checked_sub(now.unix_ms()));
        let give_ups = self.waiting.iter().filter_map(|request| request.gives_up_ms);
        let durations = give_ups.chain([self.grace_until_ms]);
        let from_monotonic = durations.filter_map(|at_ms| at_ms.checked_sub(now.monotonic_ms()));
        let moments: BTreeSet<u64> = from_wall.chain(from_monotonic).collect();
        moments.into_iter().find(|in_ms| {
            let then = Timestamp::new(now.unix_us() + in_ms * 1000, now.monotonic_ms() + in_ms);
            self.waiting.iter().any(|request| self.must_answer(request, then))
        })
    }
}

impl Waiting {
    /// Whether this is the same one again.
    pub(super) fn is_renewed_by(&self, asked: &Asked) -> bool {
        let (own, names) =
            (&self.asked, |asked: &Asked| asked.names.iter().copied().collect::<BTreeSet<usize>>());
        let are_on_channels = own.channel.is_some() && asked.channel.is_some();
        own.token == asked.token && own.want == asked.want && names(own) == names(asked) && are_on_channels
    }
}

fn gives_up_ms(asked: &Asked, now: Timestamp) -> Option<u64> {
    match asked.wait {
        WaitPolicy::Timeout(ms) => Some(now.monotonic_ms() + ms),
        _ => None,
    }
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
