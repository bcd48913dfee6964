//! The search for a cycle in who waits for whom.
//!
//! An owner waits for another when one of its requests cannot be served before the other acts.
//! At each name a request asks for, it waits
//!
//! * for every live holder it cannot share the lock with: all others if it wants to write, the
//!   writer if it wants to read; and for every holder too when somebody ahead of it wants to write,
//!   for that one must be served and leave first;
//! * for every request ahead of it, except that a reader does not wait for another reader of that
//!   one lock when nobody who wants to write stands between them: they are let in together.
//!
//! But it waits for nobody at a name where it holds already what it wants or can never have it, nor
//! where an older request of its own token stands ahead: it is answered when that one is.
//!
//! Owners are tokens. A request that would close a cycle is refused when it comes, so that no cycle
//! stands among owners that only wait. (One that loses a name while it waits for that name among
//! others can come to wait in a cycle that no request closed; a deadline ends it.)
//!
//! Only requests that lead out of a queue are looked at ("entangled" ones): where nobody asks for
//! several names, no token waits twice and the lock has a writer, parking the ten-thousandth request
//! costs what the first did. Else it costs what the entangled requests that can be reached are: each
//! is reached once, and each queue gone through once, because whoever waits behind a request waits
//! behind all before it. Of a lock's readers those who wait themselves are looked for, by going
//! through the readers or through the tokens that wait, whichever are fewer.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use crate::fence::Moment;
use crate::lock::{Lock, Mode, Standing, Want};
use crate::queue::{Place, Ticket, Waiter, Waitlist};
use crate::space::{Seen, Space};

/// One step of a cycle: `token` waits at `place` for the next step's token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Who waits.
    pub token: Rc<[u8]>,
    /// Where.
    pub place: Place,
}

/// A shortest cycle that this request closes, or `None`. It must already stand in its queues, and be
/// the last that came.
pub(crate) fn cycle(
    ticket: Ticket,
    waitlist: &Waitlist,
    space: &mut impl Space,
    now: Moment,
) -> Option<Vec<Step>> {
    let waiter = waitlist.get(ticket)?;
    let start = waiter.token.clone();
    // What else the token waits for closes no cycle now, unless others have just come to wait for
    // this request: an upgrade goes before those who are there.
    let jumps_queue = waiter.want == Want::Upgrade;
    let mut search = Search {
        new: ticket,
        jumps_queue,
        waitlist,
        now,
        reached: HashMap::new(),
        frontier: VecDeque::from([start.clone()]),
        spots: HashMap::new(),
        start,
    };
    while let Some(waiting) = search.frontier.pop_front() {
        let is_only = waiting == search.start && !jumps_queue;
        for own in waitlist.of_token(&waiting).filter(|own| !is_only || *own == ticket) {
            if let Some(last) = search.follow(own, space) {
                return Some(search.way_back(last));
            }
        }
    }
    None
}

struct Search<'w> {
    /// The request that has just come, and its token.
    new: Ticket,
    start: Rc<[u8]>,
    jumps_queue: bool,
    waitlist: &'w Waitlist,
    now: Moment,
    /// For each owner reached, who waits for it and where: the way back to the start.
    reached: HashMap<Rc<[u8]>, Step>,
    frontier: VecDeque<Rc<[u8]>>,
    spots: HashMap<Place, Spot>,
}

/// What the search has done at one name.
struct Spot {
    /// Whether the lock is held for write.
    is_written: bool,
    /// Whether the start holds the lock.
    start_holds: bool,
    /// Where the start stands in the queue, as far as others can stand behind it.
    start_stands: Vec<Ticket>,
    /// Whether all holders have been reached.
    has_holders: bool,
    /// Whether the waiting upgrades have been reached.
    has_upgrades: bool,
    /// All that stand before this ticket have been reached,
    all_before: Ticket,
    /// and before this one all but the lone readers.
    others_before: Ticket,
}

impl Search<'_> {
    /// Goes on to all whom this request waits for, as far as a cycle can lead through them: owners that
    /// wait themselves. The last step of the cycle, if one of them is the start.
    fn follow(&mut self, ticket: Ticket, space: &mut impl Space) -> Option<Step> {
        let waitlist = self.waitlist;
        let waiter = waitlist.get(ticket)?;
        waiter.places.iter().find_map(|place| self.follow_at(ticket, waiter, place, space))
    }

    fn follow_at(
        &mut self,
        ticket: Ticket,
        waiter: &Waiter,
        place: &Place,
        space: &mut impl Space,
    ) -> Option<Step> {
        let waitlist = self.waitlist;
        if self.spots.get(place).is_some_and(|spot| self.is_done(ticket, waiter, place, spot)) {
            return None;
        }
        let mut own = waitlist.of_token_at(&waiter.token, place.as_ref()).into_iter();
        if own.any(|own| own != ticket && waitlist.is_ahead(place.as_ref(), own, ticket)) {
            return None;
        }
        let lock = match space.look(place.as_ref()) {
            Seen::Lock(lock) => lock,
            Seen::OtherType | Seen::Elsewhere => None,
        };
        let now_ms = self.now.ms();
        let standing = lock.map(|lock| lock.standing(&waiter.token, waiter.want, now_ms));
        if let Some(Standing::Held { .. } | Standing::OtherMode(_) | Standing::NotHeld) = standing {
            return None;
        }
        let mut spot = self.spots.remove(place).unwrap_or_else(|| self.spot(place, lock));
        let found = self.holders(ticket, waiter, place, lock, &mut spot);
        let found = found.or_else(|| self.queue(ticket, waiter, place, &mut spot));
        self.spots.insert(place.clone(), spot);
        found
    }

    fn spot(&self, place: &Place, lock: Option<&Lock>) -> Spot {
        let mut start_stands = self.waitlist.of_token_at(&self.start, place.as_ref());
        if !self.jumps_queue {
            start_stands.retain(|own| *own != self.new);
        }
        let start_holds = lock.is_some_and(|lock| lock.holder(&self.start, self.now.ms()).is_some());
        Spot {
            is_written: lock.is_some_and(|lock| lock.mode() == Mode::Write),
            start_holds,
            start_stands,
            has_holders: false,
            has_upgrades: false,
            all_before: Ticket::FIRST,
            others_before: Ticket::FIRST,
        }
    }

    /// Whether all whom the request waits for here have been reached, and the start is not here.
    fn is_done(&self, ticket: Ticket, waiter: &Waiter, place: &Place, spot: &Spot) -> bool {
        let has_all_ahead = spot.has_upgrades
            && spot.all_before >= self.barrier(ticket, waiter, place)
            && spot.all_before.max(spot.others_before) >= ticket;
        let is_start_away = !spot.start_holds && spot.start_stands.is_empty();
        is_start_away
            && has_all_ahead
            && (spot.has_holders || !self.waits_for_holders(ticket, waiter, place, spot))
    }

    fn waits_for_holders(&self, ticket: Ticket, waiter: &Waiter, place: &Place, spot: &Spot) -> bool {
        waiter.wants_write() || spot.is_written || self.waitlist.has_writer_ahead(place.as_ref(), ticket)
    }

    /// The request waits for all that came before this: for everybody ahead, if it wants to write, and as
    /// a reader for all up to the last writer (and beyond for all but lone readers).
    fn barrier(&self, ticket: Ticket, waiter: &Waiter, place: &Place) -> Ticket {
        match waiter.want {
            Want::Hold(Mode::Read) => {
                self.waitlist.last_writer_before(place.as_ref(), ticket).map_or(Ticket::FIRST, Ticket::next)
            }
            _ => ticket,
        }
    }

    /// Reaches the holders, if the request waits for them.
    fn holders(
        &mut self,
        ticket: Ticket,
        waiter: &Waiter,
        place: &Place,
        lock: Option<&Lock>,
        spot: &mut Spot,
    ) -> Option<Step> {
        let (waitlist, now_ms) = (self.waitlist, self.now.ms());
        let lock = lock.filter(|_| self.waits_for_holders(ticket, waiter, place, spot))?;
        if spot.start_holds && waiter.token != self.start {
            return Some(self.step(waiter, place));
        }
        if spot.has_holders {
            return None;
        }
        spot.has_holders = true;
        if lock.len() <= waitlist.tokens().len() {
            let live = lock.holders_unordered().filter(|holder| holder.is_live(now_ms));
            let waiting = live.filter(|holder| waitlist.has_token(&holder.token));
            waiting.for_each(|holder| self.reach(&Rc::from(&*holder.token), waiter, place));
        } else {
            let holding = waitlist.tokens().filter(|token| lock.holder(token, now_ms).is_some());
            holding.for_each(|token| self.reach(token, waiter, place));
        }
        None
    }

    /// Reaches those ahead of the request in the queue, if it waits for them.
    fn queue(&mut self, ticket: Ticket, waiter: &Waiter, place: &Place, spot: &mut Spot) -> Option<Step> {
        let (waitlist, at) = (self.waitlist, place.as_ref());
        if waiter.token != self.start {
            let mut ahead = spot.start_stands.iter().filter(|own| waitlist.is_ahead(at, **own, ticket));
            if ahead.any(|own| !self.are_let_in_together(place, *own, ticket)) {
                return Some(self.step(waiter, place));
            }
        }
        if waiter.want == Want::Upgrade {
            return None; // Only its own token's stand before it.
        }
        if !spot.has_upgrades {
            spot.has_upgrades = true;
            self.reach_all(waitlist.entangled_upgrades(at), waiter, place);
        }
        let barrier = self.barrier(ticket, waiter, place);
        if barrier > spot.all_before {
            self.reach_all(waitlist.entangled_arrivals(at, spot.all_before, barrier), waiter, place);
            spot.all_before = barrier;
        }
        let from = spot.all_before.max(spot.others_before);
        if ticket > from {
            let mut others = waitlist.entangled_arrivals(at, from, ticket);
            others.retain(|other| waitlist.get(*other).is_some_and(|other| !other.is_lone_reader()));
            self.reach_all(others, waiter, place);
            spot.others_before = ticket;
        }
        None
    }

    fn are_let_in_together(&self, place: &Place, ahead: Ticket, behind: Ticket) -> bool {
        let (Some(first), Some(second)) = (self.waitlist.get(ahead), self.waitlist.get(behind)) else {
            return false;
        };
        first.is_lone_reader()
            && second.want == first.want
            && !self.waitlist.has_writer_between(place.as_ref(), ahead, behind)
    }

    /// The last first: where it stands behind the others elsewhere too, they are all reached from it.
    fn reach_all(&mut self, tickets: Vec<Ticket>, waiter: &Waiter, place: &Place) {
        let waitlist = self.waitlist;
        for ahead in tickets.into_iter().rev().filter_map(|ticket| waitlist.get(ticket)) {
            self.reach(&ahead.token, waiter, place);
        }
    }

    /// The start is not reached in this way: whether somebody waits for it is asked of each by itself.
    fn reach(&mut self, blocker: &Rc<[u8]>, waiter: &Waiter, place: &Place) {
        if *blocker != waiter.token && *blocker != self.start && !self.reached.contains_key(blocker) {
            self.reached.insert(blocker.clone(), self.step(waiter, place));
            self.frontier.push_back(blocker.clone());
        }
    }

    fn step(&self, waiter: &Waiter, place: &Place) -> Step {
        Step { token: waiter.token.clone(), place: place.clone() }
    }

    fn way_back(&self, last: Step) -> Vec<Step> {
        let mut steps = vec![last];
        while steps.last().is_some_and(|step| step.token != self.start) {
            let step = self.reached[&steps[steps.len() - 1].token].clone();
            steps.push(step);
        }
        steps.reverse();
        steps
    }
}
