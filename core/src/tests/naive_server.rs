//! A naive model of the whole: names with plain lists of holds, and one list of requests in order of
//! arrival. It was written from the contract and shares no decision with the core.
//!
//! It answers commands by itself. Of what happens when the queues are served, `judge.rs` judges each answer.

use std::collections::{BTreeMap, BTreeSet};

use super::history::{Asked, NAMES, Op, Reply, World, token_number};
use crate::error::LockError;
use crate::ids::{ConnectionId, RequestId};
use crate::limits::NUMBER_MAX;
use crate::lock::Holder;
use crate::manager::Bounds;
use crate::mode::{Mode, Want};
use crate::request::{Extension, WaitPolicy};
use crate::timestamp::Timestamp;

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
    pub(super) gives_up_ms: Option<u64>,
    pub(super) is_cancelled: bool,
}

/// Whether a request can be granted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It can be granted; it is a refresh of the hold with this fence, if any.
    Clear(Option<u64>),
    Blocked,
    /// It can never be granted, for this reason, which lies at this name.
    Impossible(LockError, usize),
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

    pub(super) fn first_at(&self, name: usize) -> Option<RequestId> {
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
    pub(super) fn look(&self, asked: &Asked, request: Option<RequestId>, now: Timestamp) -> Look {
        let now_ms = now.unix_ms();
        let is_asked_again = self.waiting.iter().any(|request| request.is_renewed_by(asked));
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
            fences.push(own.filter(|_| has_it).map(|own| own.fence));
            if has_it {
                continue;
            }
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
                None => first.is_none() || (asked.want == Want::Upgrade && !is_asked_again),
            };
            is_blocked |= is_excluded || !is_next || now.monotonic_ms() < self.grace_until_ms;
        }
        if is_blocked {
            return Look::Blocked;
        }
        let is_same = fences.windows(2).all(|pair| pair[0] == pair[1]);
        Look::Clear(if is_same { fences[0] } else { None })
    }

    /// What a command replies; `Waiting` is what a request gets that has to wait, if no cycle forbids it. What is no
    /// command replies nothing.
    pub(super) fn answer(&mut self, now: Timestamp, op: &Op) -> Reply {
        let Some((names, token)) = op.about() else { return Reply::Nothing };
        if !matches!(op, Op::Cancel { .. }) {
            self.end_closed(names, token, now);
        }
        self.command(now, op, names, token).unwrap_or_else(Reply::Error)
    }

    fn command(
        &mut self,
        now: Timestamp,
        op: &Op,
        names: &[usize],
        token: usize,
    ) -> Result<Reply, LockError> {
        match op {
            Op::Ask(asked) if asked.wait != WaitPolicy::OnlyRefresh => return self.ask(now, asked),
            Op::Cancel { name, .. } => return Ok(Reply::Count(self.cancel(*name, token))),
            // Why these names cannot be looked at, if they cannot.
            _ => names.iter().find_map(|name| self.names[*name].obstacle()).map_or(Ok(()), Err)?,
        }
        let now_ms = now.unix_ms();
        match op {
            Op::Ask(asked) => {
                let own = |name: &usize| {
                    let own = self.own_hold(*name, token, now_ms);
                    own.filter(|own| Want::Hold(own.mode) == asked.want).map(|own| own.fence)
                };
                let fences: BTreeSet<Option<u64>> = names.iter().map(own).collect();
                match fences.first() {
                    Some(Some(fence)) if fences.len() == 1 => {
                        self.give(now, asked, Some(*fence)).map(Reply::Granted)
                    }
                    _ => Ok(Reply::Refused),
                }
            }
            Op::Release { mode, fence, .. } => {
                Ok(Reply::Count(self.release(names, token, *mode, *fence, now)))
            }
            Op::Extend { extension, fence, .. } => {
                let own = |name: &usize| {
                    let own = self.own_hold(*name, token, now_ms);
                    own.filter(|own| !is_other(own, *fence)).cloned()
                };
                let Some(held) = names.iter().map(own).collect::<Option<Vec<Hold>>>() else {
                    return Ok(Reply::Count(0));
                };
                let (ttl_ms, may_shorten) = match extension {
                    Extension::To(ttl_ms) => (ttl_ms, true),
                    Extension::AtLeastTo(ttl_ms) => (ttl_ms, false),
                };
                let new_ms = deadline_ms(now, *ttl_ms)?;
                for (name, own) in names.iter().zip(held) {
                    let deadline_ms = if may_shorten { new_ms } else { new_ms.max(own.deadline_ms) };
                    self.put(*name, now_ms, Hold { deadline_ms, ..own });
                }
                Ok(Reply::Count(1))
            }
            Op::Downgrade { name, ttl_ms, fence, .. } => {
                let own = self.own_hold(*name, token, now_ms).ok_or(LockError::NotHeld)?.clone();
                if own.mode == Mode::Write && is_other(&own, *fence) {
                    return Err(LockError::NotHeld);
                }
                let deadline_ms = deadline_ms(now, *ttl_ms)?.max(own.deadline_ms);
                let hold = if own.mode == Mode::Read {
                    Hold { deadline_ms, ..own }
                } else {
                    let fence = self.next_fence(now);
                    Hold { mode: Mode::Read, fence, since_ms: now_ms, deadline_ms, ..own }
                };
                let fence = hold.fence;
                self.put(*name, now_ms, hold);
                Ok(Reply::Granted(fence))
            }
            // On how many names the token has lost a hold, now or since it was revoked first.
            Op::End { ms, .. } => {
                let mut count = 0;
                for &name in names {
                    self.cancel(name, token);
                    let is_released = self.release(&[name], token, None, None, now) > 0;
                    let entry = self.revoked.entry((name, token)).or_default();
                    if entry.0 <= now.monotonic_ms() {
                        *entry = (0, false);
                    }
                    *entry = (entry.0.max(now.monotonic_ms() + ms), entry.1 || is_released);
                    count += usize::from(entry.1);
                }
                Ok(Reply::Count(count))
            }
            _ => unreachable!("{op:?} is no command"),
        }
    }

    fn ask(&mut self, now: Timestamp, asked: &Asked) -> Result<Reply, LockError> {
        let look = self.look(asked, None, now);
        let until_ms = asked.names.iter().filter_map(|name| self.revoked.get(&(*name, asked.token))).max();
        let revoked_ms = until_ms.map_or(0, |(until_ms, _)| until_ms.saturating_sub(now.monotonic_ms()));
        let grace_ms = self.grace_until_ms.saturating_sub(now.monotonic_ms());
        match look {
            Look::Impossible(error, _) => Err(error),
            Look::Blocked | Look::Clear(None) if revoked_ms > 0 => Err(LockError::Revoked(revoked_ms)),
            Look::Blocked if asked.wait != WaitPolicy::NoWait => {
                self.room_for(asked).map(|()| Reply::Waiting(RequestId::LAST))
            }
            Look::Blocked if grace_ms > 0 => Err(LockError::Grace(grace_ms)),
            Look::Blocked => Ok(Reply::Refused),
            Look::Clear(same) => self.give(now, asked, same).map(Reply::Granted),
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

    pub(super) fn give(
        &mut self,
        now: Timestamp,
        asked: &Asked,
        same: Option<u64>,
    ) -> Result<u64, LockError> {
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
    fn end_closed(&mut self, names: &[usize], token: usize, now: Timestamp) {
        for &name in names {
            let live = |hold: &&Hold| hold.token == token && hold.deadline_ms > now.unix_ms();
            let own = self.names[name].holds.iter().find(live);
            if own.is_some_and(|own| self.has_ended(own)) && self.names[name].obstacle().is_none() {
                self.drop_hold(name, token, now.unix_ms());
            }
        }
    }

    fn release(
        &mut self,
        names: &[usize],
        token: usize,
        mode: Option<Mode>,
        fence: Option<u64>,
        now: Timestamp,
    ) -> usize {
        let fits = |name: &&usize| {
            let own = self.own_hold(**name, token, now.unix_ms());
            own.is_some_and(|own| mode.is_none_or(|mode| mode == own.mode) && !is_other(own, fence))
        };
        let held: Vec<usize> = names.iter().filter(fits).copied().collect();
        held.iter().for_each(|name| self.drop_hold(*name, token, now.unix_ms()));
        held.len()
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
