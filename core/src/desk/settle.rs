//! Serving the queues: after an operation, after a deadline, after anything that befell a key.

use std::collections::{BTreeSet, VecDeque};
use std::mem;

use hashbrown::HashSet;

use super::untold::{Before, Untold};
use super::{Answer, Ask, Desk, Patience, Refusal};
use crate::fence::Moment;
use crate::lock::Standing;
use crate::queue::{Place, PlaceRef, Ticket};
use crate::space::{Seen, Space};

/// Something that has to be looked at again.
#[derive(Debug)]
pub(super) enum Work {
    /// The front of this name's queue.
    Place(Place),
    /// This request, wherever it stands.
    Ticket(Ticket),
}

/// How a waiting request stands with all its locks.
enum Assessment {
    Clear(Vec<Standing>),
    Blocked,
    Hopeless(Refusal),
}

impl Desk {
    /// Something happened to this key that did not go through the desk. [`Desk::drive`] looks.
    pub fn mark(&mut self, place: PlaceRef<'_>) {
        if self.waitlist.len_at(place) > 0 {
            self.marked.push(place.into());
        }
    }

    /// Something happened to all keys of this database, or of every one, outside of the desk.
    pub fn mark_database(&mut self, db: Option<i32>) {
        let places = self.waitlist.places().filter(|place| db.is_none_or(|db| place.db == db));
        self.marked.extend(places.cloned());
    }

    /// Looks, once for each request that waits, whether this node still has the names it asks for. (They
    /// are all in one slot.) [`Desk::drive`] sends away those for which it has not.
    pub fn probe(&mut self, space: &mut impl Space) {
        for place in self.waitlist.first_places() {
            if matches!(space.look(place.as_ref()), Seen::Elsewhere) {
                self.marked.push(place);
            }
        }
    }

    /// Whether [`Desk::drive`] has work that does not wait for time to pass.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.marked.is_empty() || !self.mourned.is_empty()
    }

    /// When [`Desk::drive`] has to be called next, in Unix milliseconds, if nothing happens.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<u64> {
        self.waitlist.next_due_ms()
    }

    /// When the next request gives up, in Unix milliseconds, if nothing happens.
    #[must_use]
    pub fn next_wait_end_ms(&self) -> Option<u64> {
        self.waitlist.next_wait_end_ms()
    }

    /// Does what no command asked for: takes back the grants of clients that have gone, serves
    /// queues whose locks opened by themselves, and answers requests that have waited long enough.
    pub fn drive(&mut self, space: &mut impl Space, now: Moment) {
        self.take_back_grants(space, now, None);
        let mut work: VecDeque<Work> = mem::take(&mut self.marked).into_iter().map(Work::Place).collect();
        while let Some(place) = self.waitlist.pop_wake(now.ms()) {
            work.push_back(Work::Place(place));
        }
        self.settle(space, now, work);
        self.end_waits(now);
        let work = mem::take(&mut self.marked).into_iter().map(Work::Place).collect();
        self.settle(space, now, work);
        self.tidy();
    }

    /// Answers the requests that have waited long enough, and leaves those behind them to
    /// [`Desk::drive`]. This much can be done while no lock may be changed.
    pub fn end_waits(&mut self, now: Moment) {
        while let Some(ticket) = self.waitlist.next_give_up(now.ms()) {
            self.counters.wait_timeouts += 1;
            let freed = self.dismiss(ticket, Answer::TimedOut);
            self.marked.extend(freed);
        }
    }

    /// Sends everybody away who waits, and forgets what was to be done: this server no longer
    /// decides.
    pub fn dismiss_all(&mut self, refusal: &Refusal) {
        for ticket in self.waitlist.tickets() {
            self.dismiss(ticket, Answer::Refused(refusal.clone()));
        }
        self.marked.clear();
        self.mourned.clear();
        self.untold.clear();
    }

    /// Serves whoever waits at these names and can now be served. All names that one operation has
    /// changed come in one call, so that a request that waits at many of them is looked at once.
    pub fn settle_at<'p>(
        &mut self,
        space: &mut impl Space,
        now: Moment,
        places: impl IntoIterator<Item = PlaceRef<'p>>,
    ) {
        if self.waitlist.is_empty() {
            return;
        }
        let waited_for = places.into_iter().filter(|place| self.waitlist.len_at(*place) > 0);
        let work: VecDeque<Work> = waited_for.map(|place| Work::Place(place.into())).collect();
        if !work.is_empty() {
            self.settle(space, now, work);
        }
    }

    /// Works through the queues that something has changed for, and those that change in turn.
    ///
    /// The cost is that of the requests served, whatever the number of those that go on waiting: at
    /// each name only the front is looked at, until one cannot be served. A request for many names,
    /// which may be at the front of all of them, is looked at when the others have been served.
    pub(super) fn settle(&mut self, space: &mut impl Space, now: Moment, mut work: VecDeque<Work>) {
        // Requests that were found blocked, and for which nothing has changed since.
        let mut blocked = HashSet::new();
        let mut for_many = BTreeSet::new();
        loop {
            while let Some(item) = work.pop_front() {
                match item {
                    Work::Place(place) => {
                        while let Some(ticket) = self.waitlist.front(place.as_ref()) {
                            if blocked.contains(&ticket) {
                                break;
                            }
                            if self.waitlist.get(ticket).is_some_and(|waiter| waiter.places.len() > 1) {
                                for_many.insert(ticket);
                                break;
                            }
                            if !self.attempt(space, now, ticket, &mut work, &mut blocked) {
                                self.set_wakes(space, now, ticket);
                                break;
                            }
                        }
                    }
                    Work::Ticket(ticket) => {
                        // The grant to its token may have moved the end of what an upgrade waits with.
                        if !self.attempt(space, now, ticket, &mut work, &mut blocked) {
                            self.set_wakes(space, now, ticket);
                        }
                    }
                }
            }
            let Some(ticket) = for_many.pop_first() else { break };
            if !self.attempt(space, now, ticket, &mut work, &mut blocked) {
                self.set_wakes(space, now, ticket);
            }
        }
    }

    /// Serves a request, or sends it away if it has become hopeless, and notes what has to be looked
    /// at because of it. False if it goes on waiting.
    fn attempt(
        &mut self,
        space: &mut impl Space,
        now: Moment,
        ticket: Ticket,
        work: &mut VecDeque<Work>,
        blocked: &mut HashSet<Ticket>,
    ) -> bool {
        let next = match self.assess(space, now, ticket) {
            Assessment::Clear(standings) => self.serve(space, now, ticket, &standings),
            Assessment::Hopeless(refusal) => {
                let freed = self.dismiss(ticket, Answer::Refused(refusal));
                freed.into_iter().map(Work::Place).collect()
            }
            Assessment::Blocked => {
                blocked.insert(ticket);
                return false;
            }
        };
        for item in &next {
            let changed = match item {
                Work::Place(place) => self.waitlist.front(place.as_ref()),
                Work::Ticket(sibling) => Some(*sibling),
            };
            changed.map(|ticket| blocked.remove(&ticket));
        }
        work.extend(next);
        true
    }

    fn assess(&self, space: &mut impl Space, now: Moment, ticket: Ticket) -> Assessment {
        let Some(waiter) = self.waitlist.get(ticket) else { return Assessment::Blocked };
        let mut standings = Vec::with_capacity(waiter.places.len());
        let mut blocked = false;
        for place in &waiter.places {
            let is_next = self.waitlist.front(place.as_ref()) == Some(ticket);
            match self.standing(space, now, place.as_ref(), &waiter.token, waiter.want, is_next) {
                Ok(Standing::Blocked { .. }) => blocked = true,
                Ok(standing) => standings.push(standing),
                Err(refusal) => return Assessment::Hopeless(refusal),
            }
        }
        if blocked { Assessment::Blocked } else { Assessment::Clear(standings) }
    }

    /// For a blocked request: wherever it is at the front, notes when the lock lets it in if nobody
    /// acts.
    pub(super) fn set_wakes(&mut self, space: &mut impl Space, now: Moment, ticket: Ticket) {
        let Some(waiter) = self.waitlist.get(ticket) else { return };
        let mut wakes = Vec::new();
        for place in &waiter.places {
            if self.waitlist.front(place.as_ref()) != Some(ticket) {
                continue;
            }
            let standing = self.standing(space, now, place.as_ref(), &waiter.token, waiter.want, true);
            let wake_ms = match standing {
                Ok(Standing::Blocked { until_ms }) => {
                    let gone_ms = space.collected_ms(place.as_ref()).unwrap_or(until_ms);
                    Some(gone_ms.min(until_ms))
                }
                _ => None,
            };
            wakes.push((place.clone(), wake_ms));
        }
        for (place, wake_ms) in wakes {
            self.waitlist.set_wake(&place, wake_ms);
        }
    }

    /// Grants a request that waited. What has to be looked at again because of it.
    fn serve(
        &mut self,
        space: &mut impl Space,
        now: Moment,
        ticket: Ticket,
        standings: &[Standing],
    ) -> Vec<Work> {
        let Some(waiter) = self.waitlist.remove(ticket) else { return Vec::new() };
        let names: Vec<&[u8]> = waiter.places.iter().map(|place| &*place.name).collect();
        let ask = Ask {
            db: waiter.places[0].db,
            names: &names,
            token: &waiter.token,
            want: waiter.want,
            ttl_ms: waiter.ttl_ms,
            meta: waiter.meta.as_deref(),
            patience: Patience::None,
            connection: waiter.connection,
        };
        let before = waiter
            .places
            .iter()
            .map(|place| (place.clone(), Before::look(space, now, place.as_ref(), &waiter.token)))
            .collect();
        let fence = self.grant(space, now, &ask, standings);
        // A refresh is the answer to a request of a token that holds by now; only a new hold counts.
        let is_new = standings.iter().any(|standing| !matches!(standing, Standing::Held { .. }));
        if is_new {
            let waited_ms = now.ms().saturating_sub(waiter.arrived_ms);
            self.counters.handoffs += 1;
            self.counters.wait_ms_total += waited_ms;
            self.counters.wait_ms_max = self.counters.wait_ms_max.max(waited_ms);
        }
        let (deadline_ms, connection) = (now.ms() + waiter.ttl_ms, waiter.connection);
        self.untold.push(waiter.token.clone(), Untold { ticket, fence, deadline_ms, connection, before });
        self.answers.push((ticket, Answer::Granted(fence)));
        // Others of this token now hold what they wait for, or can never have it. A refresh is one of
        // those others.
        let siblings = waiter
            .places
            .iter()
            .filter(|_| is_new)
            .flat_map(|place| self.waitlist.of_token_at(&waiter.token, place.as_ref()))
            .map(Work::Ticket);
        siblings.chain(waiter.places.iter().cloned().map(Work::Place)).collect()
    }

    /// Answers a request that waits and takes it out. The names it stood at.
    fn dismiss(&mut self, ticket: Ticket, answer: Answer) -> Box<[Place]> {
        let Some(waiter) = self.waitlist.remove(ticket) else { return Box::default() };
        self.answers.push((ticket, answer));
        waiter.places
    }
}
