//! Grants whose clients have not been told yet.
//!
//! A grant is decided, stored and replicated before its client hears of it. If the client goes in
//! between, the hold is taken back and handed to the next, unless its owner knows of it by another
//! way: from another of its requests that was answered with the same fence, or because it has used
//! the hold.

use std::collections::VecDeque;
use std::rc::Rc;

use super::settle::Work;
use super::{Desk, Parting};
use crate::effect::{Change, Effect, Event};
use crate::fence::Moment;
use crate::lock::{Holder, Mode};
use crate::queue::{Place, PlaceRef, Ticket};
use crate::space::{Space, hold_at, lock_at};

/// A grant to a client that has not been told yet.
#[derive(Debug)]
pub(super) struct Untold {
    /// Rises from grant to grant: a later one of the same token may be built on an earlier one.
    pub(super) serial: u64,
    pub(super) token: Rc<[u8]>,
    pub(super) fence: u64,
    pub(super) deadline_ms: u64,
    /// For each name, the hold that the token had there before, if any.
    pub(super) before: Vec<(Place, Option<(Mode, Holder)>)>,
}

impl Desk {
    /// The client of a granted request has been told. So its owner knows of the holds at these places,
    /// whichever of its earlier requests gave them.
    pub fn told(&mut self, ticket: Ticket) {
        let Some(told) = self.untold.remove(&ticket) else { return };
        self.untold.retain(|_, earlier| {
            if earlier.token == told.token && earlier.serial < told.serial {
                earlier.before.retain(|(place, _)| told.before.iter().all(|(known, _)| known != place));
            }
            !earlier.before.is_empty()
        });
    }

    /// The client of a request has gone, or no longer wants it. Touches no lock, so that it can be
    /// called wherever the server says so; [`Desk::drive`] does what follows from it.
    pub fn leave(&mut self, ticket: Ticket) -> Parting {
        if let Some(waiter) = self.waitlist.remove(ticket) {
            self.marked.extend(waiter.places);
            Parting::Left
        } else if self.untold.contains_key(&ticket) {
            self.mourned.push(ticket);
            Parting::Mourned
        } else {
            Parting::Unknown
        }
    }

    /// Ends the wait of a request as if its time had run out. False if it does not wait.
    pub fn give_up(&mut self, ticket: Ticket) -> bool {
        let waits = self.leave(ticket) == Parting::Left;
        self.counters.wait_timeouts += u64::from(waits);
        waits
    }

    /// The token has used this hold since it was granted, so it knows of it: it is not taken back.
    pub(super) fn confirm(&mut self, place: PlaceRef<'_>, token: &[u8]) {
        if !self.untold.is_empty() {
            self.untold.retain(|_, grant| {
                *grant.token != *token || grant.before.iter().all(|(granted, _)| granted.as_ref() != place)
            });
        }
    }

    /// Undoes a grant whose client never heard of it, where the hold is still as it was granted.
    pub(super) fn take_back(&mut self, space: &mut impl Space, now: Moment, ticket: Ticket) {
        let Some(grant) = self.untold.remove(&ticket) else { return };
        let mut work = VecDeque::new();
        for (place, before) in grant.before {
            // A later grant to the same token refreshed this one: what was before this is now before it.
            let refresh = self
                .untold
                .values_mut()
                .filter(|later| later.serial > grant.serial && later.token == grant.token)
                .filter_map(|later| {
                    let (_, on) = later.before.iter_mut().find(|(at, _)| *at == place)?;
                    let is_built_on_it = on.as_ref().is_some_and(|(_, own)| own.fence == grant.fence);
                    is_built_on_it.then_some((later.serial, on))
                })
                .min_by_key(|(serial, _)| *serial);
            if let Some((_, on)) = refresh {
                *on = before;
                continue;
            }
            let untouched = hold_at(space, place.as_ref(), &grant.token, now)
                .is_some_and(|(_, own)| own.fence == grant.fence && own.deadline_ms == grant.deadline_ms);
            if !untouched {
                continue;
            }
            let token = &*grant.token;
            let (change, event) = match &before {
                Some((mode, own)) if own.is_live(now.ms()) => (
                    Change::Hold {
                        mode: *mode,
                        token,
                        fence: own.fence,
                        since_ms: own.since_ms,
                        deadline_ms: own.deadline_ms,
                        meta: &own.meta,
                    },
                    if *mode == Mode::Read { Event::Downgrade } else { Event::Extend },
                ),
                _ => (
                    Change::Release { token },
                    match lock_at(space, place.as_ref()) {
                        Ok(Some(lock)) if lock.mode() == Mode::Read => Event::Runlock,
                        _ => Event::Unlock,
                    },
                ),
            };
            space.apply(place.as_ref(), &Effect { at_ms: now.ms(), change }, event);
            work.push_back(Work::Place(place));
        }
        self.settle(space, now, work);
    }
}
