//! A naive model of the whole: names with plain lists of holds, and one list of requests in order of
//! arrival. It was written from the contract and shares no decision with the core.
//!
//! It answers commands by itself. Of what happens in [`LockManager::serve_queues`] it judges each answer in
//! the order in which it was given: a grant must be due to a request at the front of its queues, with the
//! next fence, and so on. [`NaiveServer::must_answer`] says whether anybody is left behind.
//!
//! [`LockManager::serve_queues`]: crate::manager::LockManager::serve_queues

use std::collections::{BTreeMap, BTreeSet};

use super::deadlock::WaitsFor;
use super::history::{Asked, NAMES, USERS, World, token_number, twin_of};
use super::scene::channel;
use crate::error::LockError;
use crate::ids::{ConnectionId, RequestId};
use crate::limits::NUMBER_MAX;
use crate::lock::Holder;
use crate::manager::Bounds;
use crate::mode::{Mode, Want};
use crate::request::{Answer, Extension, WaitPolicy, WaitResult};
use crate::time::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) token: usize,
    pub(super) mode: Mode,
    pub(super) fence: u64,
    pub(super) since_ms: u64,
    pub(super) deadline_ms: u64,
    pub(super) meta: Vec<u8>,
    /// With which it ends.
    pub(super) connection: Option<ConnectionId>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Name {
    pub(super) is_other_type: bool,
    pub(super) is_away: bool,
    pub(super) holds: Vec<Hold>,
}

impl Name {
    pub(super) fn obstacle(&self) -> Option<LockError> {
        if self.is_away {
            return Some(LockError::NotServed);
        }
        self.is_other_type.then_some(LockError::WrongType)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) id: RequestId,
    pub(super) asked: Asked,
    gives_up_ms: Option<u64>,
    pub(super) is_cancelled: bool,
}

impl Waiting {
    fn is_over(&self, now: Timestamp) -> bool {
        self.is_cancelled || self.gives_up_ms.is_some_and(|at_ms| at_ms <= now.monotonic_ms())
    }
}

impl Waiting {
    /// Whether this is the same one again.
    fn is_renewed_by(&self, asked: &Asked) -> bool {
        let (own, names) =
            (&self.asked, |asked: &Asked| asked.names.iter().copied().collect::<BTreeSet<usize>>());
        let are_on_channels = own.channel.is_some() && asked.channel.is_some();
        own.token == asked.token && own.want == asked.want && names(own) == names(asked) && are_on_channels
    }
}

/// Whether a request can be granted.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// It can be granted; it is a refresh of the hold with this fence, if any.
    Clear(Option<u64>),
    Blocked,
    /// It can never be granted, for this reason, which lies at this name.
    Impossible(LockError, usize),
}

/// What became of a request at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Granted(u64),
    Refused,
    Waits,
    Error(LockError),
}

#[derive(Clone, Debug, Default)]
pub(super) struct NaiveServer {
    pub(super) names: Vec<Name>,
    /// In order of arrival.
    pub(super) waiting: Vec<Waiting>,
    pub(super) grace_until_ms: u64,
    /// Connections that have closed.
    pub(super) closed: BTreeSet<ConnectionId>,
    pub(super) last_fence: u64,
    /// Channels to which nobody listens.
    pub(super) deaf: BTreeSet<u32>,
    /// Tokens whose users have no permission.
    pub(super) denied: BTreeSet<usize>,
    /// How many places in queues there may be.
    pub(super) bounds: Bounds,
    /// Until when, on the monotonic clock, which token is revoked at which name, and whether it has lost a hold by that.
    revoked: BTreeMap<(usize, usize), (u64, bool)>,
}

impl NaiveServer {
    pub(super) fn new() -> Self {
        Self { names: vec![Name::default(); NAMES], ..Self::default() }
    }

    fn first_at(&self, name: usize) -> Option<RequestId> {
        self.queue_at(name).first().map(|request| request.id)
    }

    /// Who waits for this name, in order: upgrades, then by arrival.
    pub(super) fn queue_at(&self, name: usize) -> Vec<&Waiting> {
        let mut all: Vec<&Waiting> =
            self.waiting.iter().filter(|request| request.asked.names.contains(&name)).collect();
        all.sort_by_key(|request| (request.asked.want != Want::Upgrade, request.id));
        all
    }

    /// Whether the hold is to end because its connection has closed.
    pub(super) fn has_ended(&self, hold: &Hold) -> bool {
        hold.connection.is_some_and(|connection| self.closed.contains(&connection))
    }

    /// What the token holds, as it finds it itself.
    pub(super) fn own_hold(&self, name: usize, token: usize, now_ms: u64) -> Option<&Hold> {
        let holds = &mut self.names[name].holds.iter();
        holds.find(|hold| hold.token == token && hold.deadline_ms > now_ms && !self.has_ended(hold))
    }

    /// How a request stands: a waiting one with its number, a newcomer without.
    fn look(&self, asked: &Asked, request: Option<RequestId>, now: Timestamp) -> Look {
        let now_ms = now.unix_ms();
        let mut is_blocked = false;
        let mut fences = Vec::new();
        for &number in &asked.names {
            let name = &self.names[number];
            if let Some(error) = name.obstacle() {
                return Look::Impossible(error, number);
            }
            let own = self.own_hold(number, asked.token, now_ms);
            let has_it = match (asked.want, own) {
                (Want::Hold(mode), Some(own)) if own.mode != mode => {
                    return Look::Impossible(LockError::WrongMode(own.mode), number);
                }
                (Want::Upgrade, None) => return Look::Impossible(LockError::NotHeld, number),
                (Want::Upgrade, Some(own)) if own.mode == Mode::Write => true,
                (Want::Upgrade, Some(own)) if is_other(own, asked.fence) => {
                    return Look::Impossible(LockError::NotHeld, number);
                }
                (Want::Upgrade, Some(_)) => false,
                (Want::Hold(_), own) => own.is_some(),
            };
            if has_it {
                fences.push(own.map(|own| own.fence));
                continue;
            }
            fences.push(None);
            let others: Vec<&Hold> = name
                .holds
                .iter()
                .filter(|hold| hold.token != asked.token && hold.deadline_ms > now_ms)
                .collect();
            let reads = asked.want == Want::Hold(Mode::Read);
            let is_excluded = others.iter().any(|other| !reads || other.mode == Mode::Write)
                || asked.limit.is_some_and(|limit| others.len() >= limit.get() as usize);
            let first = self.first_at(number);
            let is_next = match request {
                Some(_) => first == request,
                None => first.is_none() || asked.want == Want::Upgrade,
            };
            is_blocked |= is_excluded || !is_next || now.monotonic_ms() < self.grace_until_ms;
        }
        if is_blocked {
            return Look::Blocked;
        }
        let is_same = fences.windows(2).all(|pair| pair[0] == pair[1]);
        Look::Clear(if is_same { fences[0] } else { None })
    }

    /// A request comes.
    pub(super) fn ask(&mut self, now: Timestamp, asked: &Asked) -> Verdict {
        self.end_closed(&asked.names, asked.token, now);
        if asked.wait == WaitPolicy::OnlyRefresh {
            return self.refresh(now, asked);
        }
        let look = self.look(asked, None, now);
        let revoked_ms = self.revoked_ms(asked, now);
        match look {
            Look::Impossible(error, _) => Verdict::Error(error),
            Look::Blocked | Look::Clear(None) if revoked_ms > 0 => {
                Verdict::Error(LockError::Revoked(revoked_ms))
            }
            Look::Blocked if asked.wait != WaitPolicy::NoWait => {
                self.room_for(asked).map_or_else(Verdict::Error, |()| Verdict::Waits)
            }
            Look::Blocked if now.monotonic_ms() < self.grace_until_ms => {
                Verdict::Error(LockError::Grace(self.grace_until_ms - now.monotonic_ms()))
            }
            Look::Blocked => Verdict::Refused,
            Look::Clear(same) => self.give(now, asked, same).map_or_else(Verdict::Error, Verdict::Granted),
        }
    }

    /// Whether the request may take its places: those of all, of the user who asks, and of the user with this token are
    /// counted. Who asks again for what waits already has them.
    fn room_for(&self, asked: &Asked) -> Result<(), LockError> {
        let same = self.waiting.iter().find(|request| request.is_renewed_by(asked));
        let is_theirs = |other: &Asked| other.user == asked.user;
        if same.is_some_and(|same| is_theirs(&same.asked)) {
            return Ok(());
        }
        let places = |counts: &dyn Fn(&Asked) -> bool| -> usize {
            let counted = self.waiting.iter().map(|request| &request.asked).filter(|other| counts(other));
            counted.chain([asked]).map(|request| request.names.len()).sum()
        };
        let Bounds { places: most, places_of_user, places_of_token } = self.bounds;
        if places(&|other| is_theirs(other) && other.token == asked.token) > places_of_token {
            Err(LockError::TokenQueueFull(places_of_token))
        } else if same.is_none() && places(&|_| true) > most {
            Err(LockError::QueueFull(most))
        } else if places(&is_theirs) > places_of_user {
            Err(LockError::UserQueueFull(places_of_user))
        } else {
            Ok(())
        }
    }

    fn refresh(&mut self, now: Timestamp, asked: &Asked) -> Verdict {
        if let Err(error) = self.check(&asked.names) {
            return Verdict::Error(error);
        }
        let own = |name: &usize| {
            let own = self.own_hold(*name, asked.token, now.unix_ms());
            own.filter(|own| Want::Hold(own.mode) == asked.want).map(|own| own.fence)
        };
        let fences: BTreeSet<Option<u64>> = asked.names.iter().map(own).collect();
        match fences.first() {
            Some(Some(fence)) if fences.len() == 1 => {
                self.give(now, asked, Some(*fence)).map_or_else(Verdict::Error, Verdict::Granted)
            }
            _ => Verdict::Refused,
        }
    }

    /// For how long yet the request is refused.
    fn revoked_ms(&self, asked: &Asked, now: Timestamp) -> u64 {
        let until_ms = asked.names.iter().filter_map(|name| self.revoked.get(&(*name, asked.token))).max();
        until_ms.map_or(0, |(until_ms, _)| until_ms.saturating_sub(now.monotonic_ms()))
    }

    /// Whether the token has lost a hold there, now or since it was revoked first.
    pub(super) fn revoke(
        &mut self,
        name: usize,
        token: usize,
        ms: u64,
        is_released: bool,
        now: Timestamp,
    ) -> bool {
        let entry = self.revoked.entry((name, token)).or_default();
        if entry.0 <= now.monotonic_ms() {
            *entry = (0, false);
        }
        *entry = (entry.0.max(now.monotonic_ms() + ms), entry.1 || is_released);
        entry.1
    }

    /// `MUNLOCK … REFUSE`.
    pub(super) fn end(
        &mut self,
        names: &[usize],
        token: usize,
        ms: u64,
        now: Timestamp,
    ) -> Result<usize, LockError> {
        self.end_closed(names, token, now);
        self.check(names)?;
        let mut count = 0;
        for &name in names {
            self.cancel(name, token);
            let is_released = self.release(&[name], token, None, None, now)? > 0;
            count += usize::from(self.revoke(name, token, ms, is_released, now));
        }
        Ok(count)
    }

    fn give(&mut self, now: Timestamp, asked: &Asked, same: Option<u64>) -> Result<u64, LockError> {
        let now_ms = now.unix_ms();
        let deadline_ms = deadline_ms(now, asked.ttl_ms)?;
        let fence = same.unwrap_or_else(|| self.next_fence(now));
        let mode = if asked.want == Want::Hold(Mode::Read) { Mode::Read } else { Mode::Write };
        for &name in &asked.names {
            let own = self.own_hold(name, asked.token, now_ms).cloned();
            let since_ms = own.as_ref().filter(|_| same.is_some()).map_or(now_ms, |own| own.since_ms);
            // An upgrade and a refresh stay with the connection that acquired.
            let connection = match &own {
                Some(own) if same.is_some() || asked.want == Want::Upgrade => own.connection,
                _ => asked.connection,
            };
            let deadline_ms = own.as_ref().map_or(deadline_ms, |own| own.deadline_ms.max(deadline_ms));
            let meta = asked.meta.clone().unwrap_or(own.map_or(Vec::new(), |own| own.meta));
            let hold = Hold { token: asked.token, mode, fence, since_ms, deadline_ms, meta, connection };
            self.put(name, now_ms, hold);
        }
        Ok(fence)
    }

    fn next_fence(&mut self, now: Timestamp) -> u64 {
        self.last_fence = now.unix_us().max(self.last_fence + 1);
        self.last_fence
    }

    fn put(&mut self, name: usize, now_ms: u64, hold: Hold) {
        self.drop_hold(name, hold.token, now_ms);
        let holds = &mut self.names[name].holds;
        holds.push(hold);
        holds.sort_by_key(|hold| hold.fence);
    }

    fn drop_hold(&mut self, name: usize, token: usize, now_ms: u64) {
        self.names[name].holds.retain(|hold| hold.deadline_ms > now_ms && hold.token != token);
    }

    /// What the token has had from a connection that has closed ends when the token acts.
    pub(super) fn end_closed(&mut self, names: &[usize], token: usize, now: Timestamp) {
        for &name in names {
            let live = |hold: &&Hold| hold.token == token && hold.deadline_ms > now.unix_ms();
            let own = self.names[name].holds.iter().find(live);
            if own.is_some_and(|own| self.has_ended(own)) && self.names[name].obstacle().is_none() {
                self.drop_hold(name, token, now.unix_ms());
            }
        }
    }

    /// Why these names cannot be looked at, if they cannot.
    fn check(&self, names: &[usize]) -> Result<(), LockError> {
        names.iter().find_map(|name| self.names[*name].obstacle()).map_or(Ok(()), Err)
    }

    pub(super) fn release(
        &mut self,
        names: &[usize],
        token: usize,
        mode: Option<Mode>,
        fence: Option<u64>,
        now: Timestamp,
    ) -> Result<usize, LockError> {
        self.end_closed(names, token, now);
        self.check(names)?;
        let fits = |name: &&usize| {
            let own = self.own_hold(**name, token, now.unix_ms());
            own.is_some_and(|own| mode.is_none_or(|mode| mode == own.mode) && !is_other(own, fence))
        };
        let held: Vec<usize> = names.iter().filter(fits).copied().collect();
        held.iter().for_each(|name| self.drop_hold(*name, token, now.unix_ms()));
        Ok(held.len())
    }

    pub(super) fn extend(
        &mut self,
        names: &[usize],
        token: usize,
        extension: Extension,
        fence: Option<u64>,
        now: Timestamp,
    ) -> Result<usize, LockError> {
        self.end_closed(names, token, now);
        self.check(names)?;
        let own = |name: &usize| {
            let own = self.own_hold(*name, token, now.unix_ms());
            own.filter(|own| !is_other(own, fence)).cloned()
        };
        let Some(held) = names.iter().map(own).collect::<Option<Vec<Hold>>>() else { return Ok(0) };
        let (ttl_ms, may_shorten) = match extension {
            Extension::To(ttl_ms) => (ttl_ms, true),
            Extension::AtLeastTo(ttl_ms) => (ttl_ms, false),
        };
        let new_ms = deadline_ms(now, ttl_ms)?;
        for (name, own) in names.iter().zip(held) {
            let deadline_ms = if may_shorten { new_ms } else { new_ms.max(own.deadline_ms) };
            self.put(*name, now.unix_ms(), Hold { deadline_ms, ..own });
        }
        Ok(1)
    }

    pub(super) fn downgrade(
        &mut self,
        name: usize,
        token: usize,
        ttl_ms: u64,
        fence: Option<u64>,
        now: Timestamp,
    ) -> Result<u64, LockError> {
        self.end_closed(&[name], token, now);
        self.check(&[name])?;
        let now_ms = now.unix_ms();
        let own = self.own_hold(name, token, now_ms).ok_or(LockError::NotHeld)?.clone();
        if own.mode == Mode::Write && is_other(&own, fence) {
            return Err(LockError::NotHeld);
        }
        let deadline_ms = deadline_ms(now, ttl_ms)?.max(own.deadline_ms);
        let hold = if own.mode == Mode::Read {
            Hold { deadline_ms, ..own }
        } else {
            let fence = self.next_fence(now);
            Hold { mode: Mode::Read, fence, since_ms: now_ms, deadline_ms, ..own }
        };
        let fence = hold.fence;
        self.put(name, now_ms, hold);
        Ok(fence)
    }

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
        request.is_over(now) || (channel.is_some() && has_closed)
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

    /// Takes over what the core has at this name, where the model knows a hold with its connection.
    pub(super) fn sync(&mut self, world: &World, name: usize) {
        let known = std::mem::take(&mut self.names[name].holds);
        let with_connection = |hold: Hold| {
            let same = known.iter().find(|known| known.fence == hold.fence);
            Hold { connection: same.and_then(|known| known.connection), ..hold }
        };
        self.names[name].holds = holds_of(world, name).into_iter().map(with_connection).collect();
    }
}

/// Whether the hold is not the one that is meant.
pub(super) fn is_other(own: &Hold, fence: Option<u64>) -> bool {
    fence.is_some_and(|fence| fence != own.fence)
}

fn gives_up_ms(asked: &Asked, now: Timestamp) -> Option<u64> {
    match asked.wait {
        WaitPolicy::Timeout(ms) => Some(now.monotonic_ms() + ms),
        _ => None,
    }
}

fn deadline_ms(now: Timestamp, ttl_ms: u64) -> Result<u64, LockError> {
    Some(now.unix_ms() + ttl_ms).filter(|at_ms| *at_ms <= NUMBER_MAX).ok_or(LockError::OutOfRange)
}

/// What the core's lock of this name holds, live or not.
pub(super) fn holds_of(world: &World, name: usize) -> Vec<Hold> {
    let Some(lock) = world.lock(name) else { return Vec::new() };
    let hold = |holder: &Holder| Hold {
        token: token_number(holder.token()),
        mode: lock.mode(),
        fence: holder.fence,
        since_ms: holder.since_ms(),
        deadline_ms: holder.deadline_ms,
        meta: holder.meta().to_vec(),
        connection: None,
    };
    lock.holders().map(hold).collect()
}
