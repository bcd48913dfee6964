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
//! Only requests that lead out of a queue are looked at ("entangled" ones), so parking the
//! ten-thousandth request costs what the first did.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use crate::fence::Moment;
use crate::lock::{Mode, Standing, Want};
use crate::queue::{Place, Ticket, Waitlist};
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
    let (token, jumps_queue) = (&waiter.token, waiter.want == Want::Upgrade);
    // For each owner reached, who waits for it and where: the way back to the start.
    let mut reached: HashMap<Rc<[u8]>, Step> = HashMap::new();
    let mut frontier = VecDeque::from([token.clone()]);
    while let Some(waiting) = frontier.pop_front() {
        // What else the token waits for closes no cycle now, unless others have just come to wait for
        // this request: an upgrade goes before those who are there.
        let is_only = waiting == *token && !jumps_queue;
        for ticket in waitlist.of_token(&waiting).filter(|own| !is_only || *own == ticket) {
            for (place, blocker) in blockers(ticket, token, waitlist, space, now) {
                let step = Step { token: waiting.clone(), place };
                if blocker == *token {
                    return Some(way_back(step, token, &reached));
                }
                if !reached.contains_key(&blocker) {
                    reached.insert(blocker.clone(), step);
                    frontier.push_back(blocker);
                }
            }
        }
    }
    None
}

fn way_back(last: Step, start: &Rc<[u8]>, reached: &HashMap<Rc<[u8]>, Step>) -> Vec<Step> {
    let mut steps = vec![last];
    while steps.last().is_some_and(|step| step.token != *start) {
        let step = reached[&steps[steps.len() - 1].token].clone();
        steps.push(step);
    }
    steps.reverse();
    steps
}

/// Whom this request waits for, as far as a cycle back to `start` can lead through them: owners
/// that wait themselves, and `start`.
fn blockers(
    ticket: Ticket,
    start: &Rc<[u8]>,
    waitlist: &Waitlist,
    space: &mut impl Space,
    now: Moment,
) -> Vec<(Place, Rc<[u8]>)> {
    let Some(waiter) = waitlist.get(ticket) else { return Vec::new() };
    let mut found = Vec::new();
    for place in &waiter.places {
        let mut own = waitlist.of_token_at(&waiter.token, place.as_ref()).into_iter();
        if own.any(|own| own != ticket && waitlist.is_ahead(place.as_ref(), own, ticket)) {
            continue;
        }
        if let Seen::Lock(Some(lock)) = space.look(place.as_ref()) {
            let standing = lock.standing(&waiter.token, waiter.want, now.ms());
            if matches!(standing, Standing::Held { .. } | Standing::OtherMode(_) | Standing::NotHeld) {
                continue;
            }
            let excluded = waiter.wants_write() || lock.mode() == Mode::Write;
            if excluded || waitlist.has_writer_ahead(place.as_ref(), ticket) {
                let mut note = |token: &Rc<[u8]>| {
                    if *token != waiter.token && lock.holder(token, now.ms()).is_some() {
                        found.push((place.clone(), token.clone()));
                    }
                };
                note(start);
                if lock.len() <= waitlist.tokens().len() {
                    let waiting = lock.holders_unordered().filter(|holder| waitlist.has_token(&holder.token));
                    waiting.for_each(|holder| note(&Rc::from(&*holder.token)));
                } else {
                    waitlist.tokens().for_each(note);
                }
            }
        }
        let of_start = waitlist.of_token_at(start, place.as_ref());
        let ahead = of_start.into_iter().filter(|other| waitlist.is_ahead(place.as_ref(), *other, ticket));
        for other in ahead.chain(waitlist.entangled_ahead(place.as_ref(), ticket)) {
            let Some(ahead) = waitlist.get(other) else { continue };
            let together = waiter.want == ahead.want
                && ahead.is_lone_reader()
                && !waitlist.has_writer_between(place.as_ref(), other, ticket);
            if ahead.token != waiter.token && !together {
                found.push((place.clone(), ahead.token.clone()));
            }
        }
    }
    found
}
