//! Grants whose clients have not been told yet.
//!
//! A grant is decided, stored and replicated before its client hears of it. If the client goes in
//! between, the hold is taken back and handed to the next, unless its owner knows of it by another
//! way: from another of its requests that was answered with the same fence, or because it has used
//! the hold.

use std::collections::VecDeque;
use std::mem;
use std::rc::Rc;

use hashbrown::HashMap;

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
    pub(super) ticket: Ticket,
    pub(super) fence: u64,
    pub(super) deadline_ms: u64,
    /// The connection that a new hold was bound to, if to any.
    pub(super) connection: Option<u64>,
    /// For each name, the hold that the token had there before, if any.
    pub(super) before: Vec<(Place, Option<Before>)>,
}

/// The hold that a token had before a grant gave it another.
#[derive(Debug)]
pub(super) struct Before {
    mode: Mode,
    holder: Holder,
    /// What it ended with, besides its deadline.
    connection: Option<u64>,
}

impl Before {
    pub(super) fn look(
        space: &mut impl Space,
        now: Moment,
        place: PlaceRef<'_>,
        token: &[u8],
    ) -> Option<Self> {
        let (mode, holder) = hold_at(space, place, token, now)?;
        Some(Self { mode, holder, connection: space.bound(place, token) })
    }

    /// Whether it would still be in force, had the grant never been.
    fn is_live(&self, space: &impl Space, now: Moment) -> bool {
        self.holder.is_live(now.ms())
            && self.connection.is_none_or(|connection| space.is_connected(connection))
    }
}

impl Untold {
    fn gave(&self, place: PlaceRef<'_>) -> bool {
        self.before.iter().any(|(given, _)| given.as_ref() == place)
    }
}

/// All such grants, by owner. However many are told at once, each looks at its owner's alone.
#[derive(Debug, Default)]
pub(super) struct UntoldGrants {
    /// In order: a later grant to a token may be built on an earlier one.
    of_token: HashMap<Rc<[u8]>, Vec<Untold>>,
    token_of: HashMap<Ticket, Rc<[u8]>>,
}

impl UntoldGrants {
    pub(super) fn push(&mut self, token: Rc<[u8]>, grant: Untold) {
        self.token_of.insert(grant.ticket, token.clone());
        self.of_token.entry(token).or_default().push(grant);
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// A crowd that has gone leaves no memory behind.
    fn tidy(&mut self) {
        if self.token_of.is_empty() {
            self.clear();
        }
    }

    fn contains(&self, ticket: Ticket) -> bool {
        self.token_of.contains_key(&ticket)
    }

    fn db_of(&self, ticket: Ticket) -> Option<i32> {
        let grants = self.of_token.get(self.token_of.get(&ticket)?)?;
        let grant = grants.iter().find(|grant| grant.ticket == ticket)?;
        grant.before.first().map(|(place, _)| place.db)
    }

    /// Takes out a grant: its token, itself, and how many of the token's grants are earlier.
    fn take(&mut self, ticket: Ticket) -> Option<(Rc<[u8]>, Untold, usize)> {
        let token = self.token_of.remove(&ticket)?;
        let grants = self.of_token.get_mut(&token)?;
        let at = grants.iter().position(|grant| grant.ticket == ticket)?;
        let grant = grants.remove(at);
        if grants.is_empty() {
            self.of_token.remove(&token);
        }
        Some((token, grant, at))
    }

    /// Keeps of the token's grants those that `keep` wants; it may change them.
    fn retain(&mut self, token: &[u8], mut keep: impl FnMut(usize, &mut Untold) -> bool) {
        let Some(grants) = self.of_token.get_mut(token) else { return };
        let mut at = 0;
        grants.retain_mut(|grant| {
            let is_kept = keep(at, grant);
            at += 1;
            if !is_kept {
                self.token_of.remove(&grant.ticket);
            }
            is_kept
        });
        if grants.is_empty() {
            self.of_token.remove(token);
        }
    }

    /// The first of the token's grants, after so many earlier ones, that was built on this hold: what was
    /// there before it, and the connection that it came from.
    fn built_on(
        &mut self,
        token: &[u8],
        earlier: usize,
        place: &Place,
        fence: u64,
    ) -> Option<(&mut Option<Before>, Option<u64>)> {
        let later = self.of_token.get_mut(token)?.get_mut(earlier..)?;
        later.iter_mut().find_map(|grant| {
            let (_, before) = grant.before.iter_mut().find(|(at, _)| at == place)?;
            let is_built = before.as_ref().is_some_and(|own| own.holder.fence == fence);
            is_built.then_some((before, grant.connection))
        })
    }
}

impl Desk {
    /// Gives back the memory of grants that have all been told.
    pub fn tidy(&mut self) {
        self.untold.tidy();
    }

    /// The client of a granted request has been told. So its owner knows of the holds at these places,
    /// whichever of its earlier requests gave them.
    pub fn told(&mut self, ticket: Ticket) {
        let Some((token, told, earlier)) = self.untold.take(ticket) else { return };
        self.untold.retain(&token, |at, other| {
            if at < earlier {
                other.before.retain(|(place, _)| !told.gave(place.as_ref()));
            }
            !other.before.is_empty()
        });
    }

    /// The client of a request has gone, or no longer wants it. Touches no lock, so that it can be
    /// called wherever the server says so; [`Desk::drive`] does what follows from it.
    pub fn leave(&mut self, ticket: Ticket) -> Parting {
        if let Some(waiter) = self.waitlist.remove(ticket) {
            self.marked.extend(waiter.places);
            Parting::Left
        } else if self.untold.contains(ticket) {
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
        self.untold.retain(token, |_, grant| !grant.gave(place));
    }

    /// Takes back the grants of clients that have gone without being told, in this database or in all.
    /// [`Desk::drive`] begins with this.
    pub fn take_back_grants(&mut self, space: &mut impl Space, now: Moment, db: Option<i32>) {
        for ticket in mem::take(&mut self.mourned) {
            if db.is_none_or(|db| self.untold.db_of(ticket) == Some(db)) {
                self.take_back(space, now, ticket);
            } else {
                self.mourned.push(ticket);
            }
        }
    }

    /// Undoes a grant whose client never heard of it, where the hold is still as it was granted.
    fn take_back(&mut self, space: &mut impl Space, now: Moment, ticket: Ticket) {
        let Some((token, grant, earlier)) = self.untold.take(ticket) else { return };
        let mut work = VecDeque::new();
        for (place, before) in grant.before {
            // A later grant refreshed this one: what was before this is now before it, and if this one
            // acquired the hold, that one did.
            if let Some((refreshed, connection)) = self.untold.built_on(&token, earlier, &place, grant.fence)
            {
                if before.as_ref().is_none_or(|own| own.holder.fence != grant.fence) {
                    space.bind(place.as_ref(), &token, connection);
                }
                *refreshed = before;
                continue;
            }
            let untouched = hold_at(space, place.as_ref(), &token, now)
                .is_some_and(|(_, own)| own.fence == grant.fence && own.deadline_ms == grant.deadline_ms);
            if !untouched {
                continue;
            }
            let token = &*token;
            if let Some(Before { mode, holder: own, connection }) =
                before.filter(|before| before.is_live(space, now))
            {
                let change = Change::Hold {
                    mode,
                    token,
                    fence: own.fence,
                    since_ms: own.since_ms,
                    deadline_ms: own.deadline_ms,
                    meta: &own.meta,
                };
                let event = if mode == Mode::Read { Event::Downgrade } else { Event::Extend };
                space.apply(place.as_ref(), &Effect { at_ms: now.ms(), change }, event);
                space.bind(place.as_ref(), token, connection);
            } else {
                let event = match lock_at(space, place.as_ref()) {
                    Ok(Some(lock)) if lock.mode() == Mode::Read => Event::Runlock,
                    _ => Event::Unlock,
                };
                let change = Change::Release { token };
                space.apply(place.as_ref(), &Effect { at_ms: now.ms(), change }, event);
            }
            work.push_back(Work::Place(place));
        }
        self.settle(space, now, work);
    }
}
