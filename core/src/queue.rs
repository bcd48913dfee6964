//! The requests that wait, in order of arrival.
//!
//! A queue belongs to a name, not to a lock: it exists while somebody waits there, whether or not
//! the key does. One request may stand in many queues, one for each name it asks for. Its
//! [`Ticket`], drawn from one counter for the whole server, is its place in all of them, so that
//! two requests that share two names stand in the same order in both and can never wait for each
//! other.
//!
//! # Fairness
//!
//! Requests leave from the front, in order of arrival, and whoever comes while a queue is not empty
//! goes behind it. Only a waiting upgrade stands before the others: it reads already, so nobody
//! behind it could be served before it anyway. So neither readers nor writers starve. (Strict FIFO
//! hand-off is what tokio's `batch_semaphore` does and what parking_lot calls a fair unlock.)
//!
//! This file keeps the order and the look-up tables, each step in logarithmic time. It decides
//! nothing; `desk` does.

#[cfg(test)]
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use hashbrown::{Equivalent, HashMap, HashSet};

use crate::lock::{Mode, Want};

/// The name of a lock: a key in one of the server's databases.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The number of the database.
    pub db: i32,
    /// The key.
    pub name: Rc<[u8]>,
}

/// A borrowed [`Place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlaceRef<'a> {
    /// The number of the database.
    pub db: i32,
    /// The key.
    pub name: &'a [u8],
}

impl Place {
    /// This place, borrowed.
    #[must_use]
    pub fn as_ref(&self) -> PlaceRef<'_> {
        PlaceRef { db: self.db, name: &self.name }
    }
}

impl From<PlaceRef<'_>> for Place {
    fn from(place: PlaceRef<'_>) -> Self {
        Self { db: place.db, name: place.name.into() }
    }
}

impl Hash for Place {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_ref().hash(state);
    }
}

impl Equivalent<Place> for PlaceRef<'_> {
    fn equivalent(&self, place: &Place) -> bool {
        *self == place.as_ref()
    }
}

/// The number of a request in order of arrival, unique while the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// Before every ticket that is drawn.
    pub(crate) const FIRST: Self = Self(0);

    /// What could be drawn after this one.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A request that waits.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// The locks asked for; all of them or none is granted.
    pub places: Box<[Place]>,
    /// Who asks.
    pub token: Rc<[u8]>,
    /// What for.
    pub want: Want,
    /// How long the hold shall last, from the grant on.
    pub ttl_ms: u64,
    /// The metadata of the hold, if the request brought any.
    pub meta: Option<Box<[u8]>>,
    /// The connection with which the hold shall end, if it shall.
    pub connection: Option<u64>,
    /// When the request came, in Unix milliseconds.
    pub arrived_ms: u64,
    /// When it stops waiting, in Unix milliseconds; `None` for never.
    pub gives_up_ms: Option<u64>,
}

impl Waiter {
    /// Whether readers can be served beside it: it asks for one lock, for read.
    pub(crate) fn is_lone_reader(&self) -> bool {
        self.want == Want::Hold(Mode::Read) && self.places.len() == 1
    }

    pub(crate) fn wants_write(&self) -> bool {
        self.want != Want::Hold(Mode::Read)
    }

    fn stands_at(&self, place: PlaceRef<'_>) -> bool {
        self.places.iter().any(|own| own.as_ref() == place)
    }
}

/// One name's queue.
#[derive(Debug, Default)]
struct Queue {
    /// Waiting upgrades, before everybody else. All of one token: a second token's is a deadlock.
    upgrades: BTreeSet<Ticket>,
    /// Everybody else.
    arrivals: BTreeSet<Ticket>,
    /// Of `arrivals`, those that want to write.
    writers: BTreeSet<Ticket>,
    /// Of all, those through which waiting can lead out of this queue: they ask for several names,
    /// or their token waits in another request too. The search for deadlocks looks at no others.
    entangled: BTreeSet<Ticket>,
    /// When the first in the queue may be let in by the mere passing of time.
    wake_ms: Option<u64>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.upgrades.is_empty() && self.arrivals.is_empty()
    }

    fn front(&self) -> Option<Ticket> {
        self.upgrades.first().or_else(|| self.arrivals.first()).copied()
    }

    fn iter(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.upgrades.iter().chain(&self.arrivals).copied()
    }

    fn len(&self) -> usize {
        self.upgrades.len() + self.arrivals.len()
    }
}

/// All requests that wait on this server.
#[derive(Debug, Default)]
pub struct Waitlist {
    waiters: HashMap<Ticket, Waiter>,
    queues: HashMap<Place, Queue>,
    by_token: HashMap<Rc<[u8]>, BTreeSet<Ticket>>,
    give_ups: BTreeSet<(u64, Ticket)>,
    wakes: BTreeSet<(u64, Place)>,
    drawn: u64,
}

impl Waitlist {
    /// How many requests wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// The request with this ticket, while it waits.
    #[must_use]
    pub fn get(&self, ticket: Ticket) -> Option<&Waiter> {
        self.waiters.get(&ticket)
    }

    /// How many wait at this place.
    #[must_use]
    pub fn len_at(&self, place: PlaceRef<'_>) -> usize {
        self.queue(place).map_or(0, Queue::len)
    }

    /// Those who wait at this place, the next to be served first.
    pub fn at<'a>(&'a self, place: PlaceRef<'_>) -> impl Iterator<Item = &'a Waiter> + use<'a> {
        self.queue(place).into_iter().flat_map(Queue::iter).map(|ticket| &self.waiters[&ticket])
    }

    /// The places where anybody waits.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.queues.keys()
    }

    /// The first place of each request, each once.
    pub(crate) fn first_places(&self) -> HashSet<Place> {
        self.waiters.values().map(|waiter| waiter.places[0].clone()).collect()
    }

    pub(crate) fn tickets(&self) -> Vec<Ticket> {
        let mut all: Vec<Ticket> = self.waiters.keys().copied().collect();
        all.sort_unstable();
        all
    }

    pub(crate) fn front(&self, place: PlaceRef<'_>) -> Option<Ticket> {
        self.queue(place).and_then(Queue::front)
    }

    /// Puts a request at the end of every queue it asks for, or before them if it is an upgrade.
    pub(crate) fn push(&mut self, waiter: Waiter) -> Ticket {
        self.drawn += 1;
        let ticket = Ticket(self.drawn);
        for place in &waiter.places {
            let queue = self.queues.entry(place.clone()).or_default();
            if waiter.want == Want::Upgrade {
                queue.upgrades.insert(ticket);
            } else {
                queue.arrivals.insert(ticket);
                if waiter.wants_write() {
                    queue.writers.insert(ticket);
                }
            }
        }
        if let Some(at_ms) = waiter.gives_up_ms {
            self.give_ups.insert((at_ms, ticket));
        }
        let siblings = self.by_token.entry(waiter.token.clone()).or_default();
        siblings.insert(ticket);
        // The second request of a token entangles the first; further ones find it so.
        let (first, has_siblings) = (siblings.first().copied(), siblings.len() > 1);
        let entangles_first = siblings.len() == 2;
        self.waiters.insert(ticket, waiter);
        self.set_entangled(ticket, has_siblings);
        if let (Some(first), true) = (first, entangles_first) {
            self.set_entangled(first, true);
        }
        ticket
    }

    /// Takes a request out of every queue it stands in.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        for place in &waiter.places {
            let Some(queue) = self.queues.get_mut(place) else { continue };
            queue.upgrades.remove(&ticket);
            queue.arrivals.remove(&ticket);
            queue.writers.remove(&ticket);
            queue.entangled.remove(&ticket);
            if queue.is_empty() {
                if let Some(at_ms) = queue.wake_ms {
                    self.wakes.remove(&(at_ms, place.clone()));
                }
                self.queues.remove(place);
            }
        }
        if let Some(at_ms) = waiter.gives_up_ms {
            self.give_ups.remove(&(at_ms, ticket));
        }
        if let Some(siblings) = self.by_token.get_mut(&*waiter.token) {
            siblings.remove(&ticket);
            match (siblings.len(), siblings.first().copied()) {
                (1, Some(last)) => self.set_entangled(last, false),
                (0, _) => drop(self.by_token.remove(&*waiter.token)),
                _ => {}
            }
        }
        if self.waiters.is_empty() {
            // A crowd that has gone leaves no memory behind.
            let drawn = self.drawn;
            *self = Self { drawn, ..Self::default() };
        }
        Some(waiter)
    }

    /// Says when the first at this place may be let in by the passing of time alone.
    pub(crate) fn set_wake(&mut self, place: &Place, at_ms: Option<u64>) {
        let Some(queue) = self.queues.get_mut(place) else { return };
        if queue.wake_ms == at_ms {
            return;
        }
        if let Some(old_ms) = queue.wake_ms {
            self.wakes.remove(&(old_ms, place.clone()));
        }
        if let Some(new_ms) = at_ms {
            self.wakes.insert((new_ms, place.clone()));
        }
        queue.wake_ms = at_ms;
    }

    /// When time alone next changes something: a wake or a request that gives up.
    pub(crate) fn next_due_ms(&self) -> Option<u64> {
        let wake = self.wakes.first().map(|(at_ms, _)| *at_ms);
        wake.into_iter().chain(self.next_wait_end_ms()).min()
    }

    /// When the next request gives up.
    pub(crate) fn next_wait_end_ms(&self) -> Option<u64> {
        self.give_ups.first().map(|(at_ms, _)| *at_ms)
    }

    pub(crate) fn pop_wake(&mut self, now_ms: u64) -> Option<Place> {
        let (at_ms, place) = self.wakes.first()?.clone();
        if at_ms > now_ms {
            return None;
        }
        self.wakes.pop_first();
        if let Some(queue) = self.queues.get_mut(&place) {
            queue.wake_ms = None;
        }
        Some(place)
    }

    pub(crate) fn next_give_up(&self, now_ms: u64) -> Option<Ticket> {
        self.give_ups.first().filter(|(at_ms, _)| *at_ms <= now_ms).map(|(_, ticket)| *ticket)
    }

    // What the search for deadlocks asks.

    /// The requests of a token, at most a few.
    pub(crate) fn of_token(&self, token: &[u8]) -> impl Iterator<Item = Ticket> + '_ {
        self.by_token.get(token).into_iter().flatten().copied()
    }

    pub(crate) fn has_token(&self, token: &[u8]) -> bool {
        self.by_token.contains_key(token)
    }

    /// Tokens that wait, each once.
    pub(crate) fn tokens(&self) -> impl ExactSizeIterator<Item = &Rc<[u8]>> {
        self.by_token.keys()
    }

    /// Other requests of this token that wait at this place.
    pub(crate) fn of_token_at(&self, token: &[u8], place: PlaceRef<'_>) -> Vec<Ticket> {
        self.of_token(token).filter(|ticket| self.waiters[ticket].stands_at(place)).collect()
    }

    /// Whether `first` is served before `second` at a place where both stand.
    pub(crate) fn is_ahead(&self, place: PlaceRef<'_>, first: Ticket, second: Ticket) -> bool {
        let Some(queue) = self.queue(place) else { return false };
        let rank = |ticket: Ticket| (!queue.upgrades.contains(&ticket), ticket);
        rank(first) < rank(second)
    }

    /// Whether anybody who wants to write is served at this place before `ticket`.
    pub(crate) fn has_writer_ahead(&self, place: PlaceRef<'_>, ticket: Ticket) -> bool {
        let Some(queue) = self.queue(place) else { return false };
        let ahead = |set: &BTreeSet<Ticket>| set.first().is_some_and(|first| *first < ticket);
        if queue.upgrades.contains(&ticket) {
            ahead(&queue.upgrades)
        } else {
            !queue.upgrades.is_empty() || ahead(&queue.writers)
        }
    }

    /// Whether anybody who wants to write stands at this place between two others.
    pub(crate) fn has_writer_between(&self, place: PlaceRef<'_>, first: Ticket, second: Ticket) -> bool {
        self.queue(place).is_some_and(|queue| queue.writers.range(first..second).next().is_some())
    }

    /// The last that wants to write among those who came to this place before `ticket`. Upgrades, which
    /// stand before everybody, are not counted.
    pub(crate) fn last_writer_before(&self, place: PlaceRef<'_>, ticket: Ticket) -> Option<Ticket> {
        self.queue(place)?.writers.range(..ticket).next_back().copied()
    }

    /// The entangled ones among the upgrades that wait at this place.
    pub(crate) fn entangled_upgrades(&self, place: PlaceRef<'_>) -> Vec<Ticket> {
        let Some(queue) = self.queue(place) else { return Vec::new() };
        queue.upgrades.intersection(&queue.entangled).copied().collect()
    }

    /// The entangled requests, other than upgrades, that came to this place from `from` to before `to`.
    pub(crate) fn entangled_arrivals(&self, place: PlaceRef<'_>, from: Ticket, to: Ticket) -> Vec<Ticket> {
        let Some(queue) = self.queue(place) else { return Vec::new() };
        let between = queue.entangled.range(from..to);
        between.filter(|ticket| !queue.upgrades.contains(ticket)).copied().collect()
    }

    fn queue(&self, place: PlaceRef<'_>) -> Option<&Queue> {
        if self.queues.is_empty() { None } else { self.queues.get(&place) }
    }

    /// Marks a request, in each of its queues, as leading out of them or not.
    fn set_entangled(&mut self, ticket: Ticket, by_siblings: bool) {
        let places = &self.waiters[&ticket].places;
        let entangled = by_siblings || places.len() > 1;
        for place in places {
            let Some(queue) = self.queues.get_mut(place) else { continue };
            if entangled {
                queue.entangled.insert(ticket);
            } else {
                queue.entangled.remove(&ticket);
            }
        }
    }

    /// Checks that the tables agree with each other; for tests.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut standing: BTreeMap<&Place, BTreeSet<Ticket>> = BTreeMap::new();
        for (ticket, waiter) in &self.waiters {
            for place in &waiter.places {
                standing.entry(place).or_default().insert(*ticket);
            }
            assert!(self.by_token[&waiter.token].contains(ticket));
            if let Some(at_ms) = waiter.gives_up_ms {
                assert!(self.give_ups.contains(&(at_ms, *ticket)));
            }
        }
        assert_eq!(standing.len(), self.queues.len());
        for (place, tickets) in standing {
            let queue = &self.queues[place];
            assert_eq!(queue.iter().collect::<BTreeSet<_>>(), tickets);
            for ticket in &tickets {
                let waiter = &self.waiters[ticket];
                let siblings = self.by_token[&waiter.token].len();
                assert_eq!(queue.entangled.contains(ticket), siblings > 1 || waiter.places.len() > 1);
                assert_eq!(queue.writers.contains(ticket), waiter.want == Want::Hold(Mode::Write));
                assert_eq!(queue.upgrades.contains(ticket), waiter.want == Want::Upgrade);
            }
        }
        let wakes: BTreeSet<_> = self
            .queues
            .iter()
            .filter_map(|(place, queue)| queue.wake_ms.map(|at_ms| (at_ms, place.clone())))
            .collect();
        assert_eq!(wakes, self.wakes);
        assert_eq!(self.by_token.values().map(BTreeSet::len).sum::<usize>(), self.waiters.len());
        assert_eq!(self.give_ups.len(), self.waiters.values().filter(|w| w.gives_up_ms.is_some()).count());
    }
}
