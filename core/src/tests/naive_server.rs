//! A naive model of the whole: names with plain lists of holds, and one list of requests in order of
//! arrival. It was written from the contract and shares no decision with the core.
//!
//! After everything that happens it goes through all requests from the oldest to the youngest until
//! none can be answered: no marks, no wakes, no look-up tables. The one thing it takes from the core
//! is the number of a new fence, which it checks to be new, greater than all before, and not behind
//! the clock.

use std::collections::BTreeMap;

use super::history::{Asked, World, name_number, place_of, token_number};
use crate::desk::{Parting, Patience};
use crate::fence::Moment;
use crate::lock::{Holder, Mode, Want};
use crate::queue::{Place, Ticket};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) token: usize,
    pub(super) mode: Mode,
    pub(super) fence: u64,
    since_ms: u64,
    pub(super) deadline_ms: u64,
    meta: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Lock,
    OtherType,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Name {
    pub(super) kind: Kind,
    pub(super) elsewhere: bool,
    pub(super) holds: Vec<Hold>,
}

#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) ticket: Ticket,
    pub(super) asked: Asked,
    pub(super) gives_up_ms: Option<u64>,
}

/// A grant whose client has not been told.
#[derive(Debug)]
struct Untold {
    ticket: Ticket,
    token: usize,
    fence: u64,
    /// What the token held before, on each name.
    before: BTreeMap<usize, Option<Hold>>,
}

/// How a request stands.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It can be granted; it is a refresh of the hold with this fence, if any.
    Clear(Option<u64>),
    Blocked,
    /// It can never be granted, for this reason, which lies at this name.
    Hopeless(&'static str, usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Granted(u64),
    TimedOut,
    Error(&'static str),
}

/// What became of a request at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Granted(u64),
    Refused,
    Waits,
    Error(&'static str),
}

#[derive(Debug, Default)]
pub(super) struct NaiveServer {
    pub(super) names: Vec<Name>,
    /// In order of arrival.
    pub(super) waiting: Vec<Request>,
    pub(super) closed_until_ms: u64,
    untold: Vec<Untold>,
    mourned: Vec<Ticket>,
    last_fence: u64,
    /// Answers given and not yet compared.
    pub(super) answers: BTreeMap<Ticket, Answer>,
}

/// The fences that the core gave in this step, to whom.
pub(super) type NewFences = BTreeMap<Ticket, u64>;

impl NaiveServer {
    pub(super) fn new(names: usize) -> Self {
        Self { names: vec![Name::default(); names], ..Self::default() }
    }

    /// What the model would be in if it had lived through everything the desk has, except for
    /// grants that have not been told.
    pub(super) fn snapshot(world: &World) -> Self {
        let mut model = Self::new(world.names);
        for (number, name) in model.names.iter_mut().enumerate() {
            let place = Place::from(place_of(number));
            name.elsewhere = world.space.is_elsewhere(&place);
            name.kind = if world.space.is_other_type(&place) { Kind::OtherType } else { Kind::Lock };
            name.holds = holds_of(world, number);
        }
        let waitlist = world.desk.waitlist();
        for ticket in waitlist.tickets() {
            let waiter = waitlist.get(ticket).expect("it waits");
            let asked = Asked {
                names: waiter.places.iter().map(name_number).collect(),
                token: token_number(&waiter.token),
                want: waiter.want,
                ttl_ms: waiter.ttl_ms,
                meta: None,
                patience: Patience::Endless,
            };
            model.waiting.push(Request { ticket, asked, gives_up_ms: waiter.gives_up_ms });
        }
        model.closed_until_ms = world.desk.closed_until_ms;
        model
    }

    /// Who is to be served first on this name.
    pub(super) fn first_at(&self, name: usize) -> Option<Ticket> {
        self.queue_at(name).first().map(|request| request.ticket)
    }

    /// Who waits for this name, in order: upgrades, then by arrival.
    pub(super) fn queue_at(&self, name: usize) -> Vec<&Request> {
        let mut all: Vec<&Request> =
            self.waiting.iter().filter(|request| request.asked.names.contains(&name)).collect();
        all.sort_by_key(|request| (request.asked.want != Want::Upgrade, request.ticket));
        all
    }

    pub(super) fn own_hold(&self, name: usize, token: usize, now_ms: u64) -> Option<&Hold> {
        self.names[name].holds.iter().find(|hold| hold.token == token && hold.deadline_ms > now_ms)
    }

    /// How a request stands: a waiting one with its ticket, a newcomer without.
    pub(super) fn look(&self, asked: &Asked, ticket: Option<Ticket>, now_ms: u64) -> Look {
        let mut blocked = false;
        let mut fences = Vec::new();
        for &number in &asked.names {
            let name = &self.names[number];
            if name.elsewhere {
                return Look::Hopeless("TRYAGAIN", number);
            }
            if name.kind == Kind::OtherType {
                return Look::Hopeless("WRONGTYPE", number);
            }
            let own = self.own_hold(number, asked.token, now_ms);
            let has_it = match (asked.want, own) {
                (Want::Hold(mode), Some(own)) if own.mode != mode => {
                    return Look::Hopeless("WRONGMODE", number);
                }
                (Want::Upgrade, None) => return Look::Hopeless("NOTHELD", number),
                (Want::Upgrade, Some(own)) => own.mode == Mode::Write,
                (Want::Hold(_), own) => own.is_some(),
            };
            if has_it {
                fences.push(own.map(|own| own.fence));
                continue;
            }
            fences.push(None);
            let mut others =
                name.holds.iter().filter(|hold| hold.token != asked.token && hold.deadline_ms > now_ms);
            let reads = asked.want == Want::Hold(Mode::Read);
            let excluded = others.any(|other| !reads || other.mode == Mode::Write);
            let first = self.first_at(number);
            let is_turn = match ticket {
                Some(_) => first == ticket,
                None => first.is_none() || asked.want == Want::Upgrade,
            };
            blocked |= excluded || !is_turn || now_ms < self.closed_until_ms;
        }
        if blocked {
            return Look::Blocked;
        }
        let same = fences.windows(2).all(|pair| pair[0] == pair[1]);
        Look::Clear(if same { fences[0] } else { None })
    }

    /// A request comes. `new_fence` is what the core gave, if it granted it.
    pub(super) fn ask(&mut self, now: Moment, asked: &Asked, new_fence: Option<u64>) -> Verdict {
        match self.look(asked, None, now.ms()) {
            Look::Hopeless(error, _) => Verdict::Error(error),
            Look::Blocked if asked.patience != Patience::None => Verdict::Waits,
            Look::Blocked if now.ms() < self.closed_until_ms => Verdict::Error("GRACE"),
            Look::Blocked => Verdict::Refused,
            Look::Clear(same) => {
                asked.names.iter().for_each(|name| self.used(*name, asked.token));
                Verdict::Granted(self.give(now, asked, same, new_fence))
            }
        }
    }

    fn give(&mut self, now: Moment, asked: &Asked, same: Option<u64>, new_fence: Option<u64>) -> u64 {
        let now_ms = now.ms();
        let fence = same.unwrap_or_else(|| self.check_new(now, new_fence.unwrap_or(0)));
        let mode = if asked.want == Want::Hold(Mode::Read) { Mode::Read } else { Mode::Write };
        for &name in &asked.names {
            let own = self.own_hold(name, asked.token, now_ms).cloned();
            let kept = own.as_ref().map_or(Vec::new(), |own| own.meta.clone());
            let since_ms = if same.is_some() { own.map_or(now_ms, |own| own.since_ms) } else { now_ms };
            let meta = asked.meta.clone().unwrap_or(kept);
            let deadline_ms = now_ms + asked.ttl_ms;
            let hold = Hold { token: asked.token, mode, fence, since_ms, deadline_ms, meta };
            self.put(name, now_ms, hold);
        }
        fence
    }

    fn check_new(&mut self, now: Moment, fence: u64) -> u64 {
        assert!(fence >= now.us(), "the core did not grant it, or gave a fence behind the clock: {fence}");
        self.last_fence = self.last_fence.max(fence);
        fence
    }

    fn put(&mut self, name: usize, now_ms: u64, hold: Hold) {
        let holds = &mut self.names[name].holds;
        holds.retain(|other| other.deadline_ms > now_ms && other.token != hold.token);
        holds.push(hold);
        holds.sort_by_key(|hold| hold.fence);
    }

    pub(super) fn release(&mut self, name: usize, token: usize, mode: Option<Mode>, now_ms: u64) -> bool {
        let own = self.own_hold(name, token, now_ms);
        let released = own.is_some_and(|own| mode.is_none_or(|mode| mode == own.mode));
        if released {
            self.used(name, token);
            self.names[name].holds.retain(|hold| hold.deadline_ms > now_ms && hold.token != token);
        }
        released
    }

    /// Why these names cannot be looked at, if they cannot.
    pub(super) fn obstacle(&self, names: &[usize]) -> Option<&'static str> {
        let names = names.iter().map(|name| &self.names[*name]);
        names.filter_map(obstacle_of).next()
    }

    pub(super) fn extend(&mut self, names: &[usize], token: usize, ttl_ms: u64, now_ms: u64) -> bool {
        let all = names.iter().all(|name| self.own_hold(*name, token, now_ms).is_some());
        for &name in names.iter().filter(|_| all) {
            self.used(name, token);
            let own = self.own_hold(name, token, now_ms).expect("all are held").clone();
            self.put(name, now_ms, Hold { deadline_ms: now_ms + ttl_ms, ..own });
        }
        all
    }

    pub(super) fn downgrade(
        &mut self,
        now: Moment,
        name: usize,
        token: usize,
        ttl_ms: u64,
        new_fence: Option<u64>,
    ) -> Option<u64> {
        let (now_ms, deadline_ms) = (now.ms(), now.ms() + ttl_ms);
        let own = self.own_hold(name, token, now_ms)?.clone();
        self.used(name, token);
        let hold = if own.mode == Mode::Read {
            Hold { deadline_ms, ..own }
        } else {
            let fence = self.check_new(now, new_fence.unwrap_or(0));
            Hold { mode: Mode::Read, fence, since_ms: now_ms, deadline_ms, ..own }
        };
        let fence = hold.fence;
        self.put(name, now_ms, hold);
        Some(fence)
    }

    pub(super) fn park(&mut self, ticket: Ticket, asked: &Asked, now_ms: u64) {
        let gives_up_ms = match asked.patience {
            Patience::Ms(ms) => Some(now_ms + ms),
            _ => None,
        };
        self.waiting.push(Request { ticket, asked: asked.clone(), gives_up_ms });
    }

    pub(super) fn leave(&mut self, ticket: Ticket) -> Parting {
        let before = self.waiting.len();
        self.waiting.retain(|request| request.ticket != ticket);
        if self.waiting.len() < before {
            Parting::Left
        } else if self.untold.iter().any(|grant| grant.ticket == ticket) {
            self.mourned.push(ticket);
            Parting::Mourned
        } else {
            Parting::Unknown
        }
    }

    /// The client knows of its holds now, and so of whatever they were built on.
    pub(super) fn told(&mut self, ticket: Ticket) {
        let Some(at) = self.untold.iter().position(|grant| grant.ticket == ticket) else { return };
        let known = self.untold.remove(at);
        for earlier in self.untold[..at].iter_mut().filter(|earlier| earlier.token == known.token) {
            earlier.before.retain(|name, _| !known.before.contains_key(name));
        }
        self.untold.retain(|grant| !grant.before.is_empty());
    }

    pub(super) fn untold(&self) -> Vec<Ticket> {
        self.untold.iter().map(|grant| grant.ticket).collect()
    }

    /// The token has shown that it knows of its hold.
    fn used(&mut self, name: usize, token: usize) {
        self.untold.retain(|grant| grant.token != token || !grant.before.contains_key(&name));
    }

    /// Everything that is due: grants of clients that have gone, queues that opened, waits that ended.
    pub(super) fn drive(&mut self, now: Moment, fences: &NewFences) {
        for ticket in std::mem::take(&mut self.mourned) {
            self.take_back(ticket, now.ms());
            self.settle(now, fences);
        }
        self.settle(now, fences);
        let (over, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|request| request.gives_up_ms.is_some_and(|at_ms| at_ms <= now.ms()));
        self.waiting = waiting;
        let over: Vec<Request> = over;
        over.into_iter().for_each(|request| self.answer(request.ticket, Answer::TimedOut));
        self.settle(now, fences);
    }

    /// As if the grant had never been: what the token had before, it has again. What other clients
    /// of the token were granted on top of it stays.
    fn take_back(&mut self, ticket: Ticket, now_ms: u64) {
        let Some(at) = self.untold.iter().position(|grant| grant.ticket == ticket) else { return };
        let grant = self.untold.remove(at);
        for (name, before) in grant.before {
            let on_top = self.untold[at..].iter_mut().filter(|other| other.token == grant.token);
            let mut on_top = on_top.filter_map(|other| other.before.get_mut(&name));
            if let Some(base) =
                on_top.find(|base| base.as_ref().is_some_and(|base| base.fence == grant.fence))
            {
                *base = before;
                continue;
            }
            let own = self.own_hold(name, grant.token, now_ms);
            if own.is_none_or(|own| own.fence != grant.fence) || self.obstacle(&[name]).is_some() {
                continue;
            }
            match before.filter(|before| before.deadline_ms > now_ms) {
                Some(before) => self.put(name, now_ms, before),
                None => {
                    self.names[name]
                        .holds
                        .retain(|hold| hold.deadline_ms > now_ms && hold.token != grant.token);
                }
            }
        }
    }

    /// Answers whoever can be answered, oldest first, until nobody can.
    pub(super) fn settle(&mut self, now: Moment, fences: &NewFences) {
        let can = |model: &Self, request: &Request| {
            let look = model.look(&request.asked, Some(request.ticket), now.ms());
            (look != Look::Blocked).then_some(look)
        };
        while let Some((at, look)) =
            (0..self.waiting.len()).find_map(|at| can(self, &self.waiting[at]).map(|look| (at, look)))
        {
            let request = self.waiting.remove(at);
            let answer = match look {
                Look::Hopeless(error, _) => Answer::Error(error),
                Look::Clear(same) => {
                    let (token, names) = (request.asked.token, &request.asked.names);
                    let held = |name: &usize| (*name, self.own_hold(*name, token, now.ms()).cloned());
                    let before = names.iter().map(held).collect();
                    let new_fence = fences.get(&request.ticket).copied();
                    let fence = self.give(now, &request.asked, same, new_fence);
                    self.untold.push(Untold { ticket: request.ticket, token, fence, before });
                    Answer::Granted(fence)
                }
                Look::Blocked => unreachable!("only those that can be answered are found"),
            };
            self.answer(request.ticket, answer);
        }
    }

    fn answer(&mut self, ticket: Ticket, answer: Answer) {
        let second = self.answers.insert(ticket, answer);
        assert!(second.is_none(), "{ticket:?} was answered twice");
    }

    /// Whether a request has to be answered at this moment though nobody acts: it can be granted, or
    /// it is at the front of the very name that makes it hopeless, or its time has run out.
    pub(super) fn must_answer(&self, request: &Request, now_ms: u64) -> bool {
        request.gives_up_ms.is_some_and(|at_ms| at_ms <= now_ms)
            || match self.look(&request.asked, Some(request.ticket), now_ms) {
                // What it has got already, by a lock that came from elsewhere, can wait for its turn.
                Look::Clear(same) => {
                    let is_first = |name: &usize| self.first_at(*name) == Some(request.ticket);
                    same.is_none() || request.asked.names.iter().any(is_first)
                }
                Look::Blocked => false,
                Look::Hopeless(_, name) => self.first_at(name) == Some(request.ticket),
            }
    }

    /// The first moment after `now_ms` at which some request has to be answered if nobody acts.
    pub(super) fn next_answer_ms(&self, now_ms: u64) -> Option<u64> {
        let deadlines = self.names.iter().flat_map(|name| &name.holds).map(|hold| hold.deadline_ms);
        let give_ups = self.waiting.iter().filter_map(|request| request.gives_up_ms);
        let mut moments: Vec<u64> = deadlines.chain(give_ups).chain([self.closed_until_ms]).collect();
        moments.sort_unstable();
        let moments = moments.into_iter().filter(|at_ms| *at_ms > now_ms);
        moments.into_iter().find(|at_ms| self.waiting.iter().any(|request| self.must_answer(request, *at_ms)))
    }
}

fn obstacle_of(name: &Name) -> Option<&'static str> {
    if name.elsewhere { Some("TRYAGAIN") } else { (name.kind == Kind::OtherType).then_some("WRONGTYPE") }
}

/// What the core's lock of this name holds, live or not.
pub(super) fn holds_of(world: &World, name: usize) -> Vec<Hold> {
    let Some(lock) = world.lock(name) else { return Vec::new() };
    let hold = |holder: &Holder| Hold {
        token: token_number(&holder.token),
        mode: lock.mode(),
        fence: holder.fence,
        since_ms: holder.since_ms,
        deadline_ms: holder.deadline_ms,
        meta: holder.meta.to_vec(),
    };
    lock.holders().map(hold).collect()
}
