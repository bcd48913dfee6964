//! Which hold ends with which connection.
//!
//! A binding names a place and a token, and holds for as long as the token's hold there does. It is
//! this server's alone: neither stored nor replicated, for the connection is neither.
//!
//! When a connection closes, nothing may be written at that moment. Its holds are doomed: they end at
//! the next turn of the event loop, or before the next of our commands in their database, so that no
//! command refreshes a hold that has ended or waits for its owner.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use slock_core::{Lock, PlaceRef};

/// A hold: database, key, token.
type Hold = (i32, Box<[u8]>, Box<[u8]>);

/// Holds that are about to end: the tokens, by database and key.
type Doomed = HashMap<(i32, Box<[u8]>), Vec<Box<[u8]>>>;

#[derive(Default)]
struct Ephemerals {
    connection_of: HashMap<Hold, u64>,
    holds_of: HashMap<u64, HashSet<Hold>>,
    doomed: Doomed,
}

thread_local! {
    static EPHEMERALS: RefCell<Ephemerals> = RefCell::default();
}

/// The hold of `token` is a new one, bound to this connection or to none. A doom spoken over the hold
/// before it is not its own.
pub fn bind(place: PlaceRef<'_>, token: &[u8], connection: Option<u64>) {
    EPHEMERALS.with_borrow_mut(|all| {
        all.unbind(place, token);
        if !all.doomed.is_empty()
            && let Some(tokens) = all.doomed.get_mut(&(place.db, place.name.into()))
        {
            tokens.retain(|doomed| **doomed != *token);
        }
        if let Some(connection) = connection {
            let hold: Hold = (place.db, place.name.into(), token.into());
            all.connection_of.insert(hold.clone(), connection);
            all.holds_of.entry(connection).or_default().insert(hold);
        }
    });
}

/// The connection that the hold of `token` is bound to, if to any.
pub fn bound(place: PlaceRef<'_>, token: &[u8]) -> Option<u64> {
    EPHEMERALS.with_borrow(|all| {
        if all.connection_of.is_empty() {
            return None;
        }
        all.connection_of.get(&(place.db, place.name.into(), token.into())).copied()
    })
}

/// Whether no hold is bound to any connection.
pub fn is_empty() -> bool {
    EPHEMERALS.with_borrow(|all| all.connection_of.is_empty())
}

/// The hold of `token` has ended.
pub fn unbind(place: PlaceRef<'_>, token: &[u8]) {
    EPHEMERALS.with_borrow_mut(|all| all.unbind(place, token));
}

/// The lock has left this name, with all its holders.
pub fn unbind_all(place: PlaceRef<'_>, lock: &Lock) {
    EPHEMERALS.with_borrow_mut(|all| {
        if !all.connection_of.is_empty() {
            lock.holders_unordered().for_each(|holder| all.unbind(place, &holder.token));
        }
    });
}

/// All locks of a database have gone, or of every one.
pub fn forget_database(db: Option<i32>) {
    EPHEMERALS.with_borrow_mut(|all| match db {
        None => *all = Ephemerals::default(),
        Some(_) => all.rebuild(|of| (Some(of) != db).then_some(of)),
    });
}

/// Two databases have changed places.
pub fn swap_databases(first: i32, second: i32) {
    EPHEMERALS.with_borrow_mut(|all| {
        all.rebuild(|of| {
            Some(if of == first {
                second
            } else if of == second {
                first
            } else {
                of
            })
        });
    });
}

/// This connection has closed. Whether that dooms any hold.
pub fn doom(connection: u64) -> bool {
    EPHEMERALS.with_borrow_mut(|all| {
        let Some(holds) = all.holds_of.remove(&connection) else { return false };
        // They stay bound to it until they have ended: whoever looks sees that it has closed.
        for (db, name, token) in holds {
            all.doomed.entry((db, name)).or_default().push(token);
        }
        true
    })
}

/// Whether any hold is doomed.
pub fn are_any_doomed() -> bool {
    EPHEMERALS.with_borrow(|all| !all.doomed.is_empty())
}

/// This hold is to end.
pub fn doom_hold(place: PlaceRef<'_>, token: &[u8]) {
    EPHEMERALS.with_borrow_mut(|all| {
        all.doomed.entry((place.db, place.name.into())).or_default().push(token.into());
    });
}

/// The doomed holds of this database, or of all; whoever takes them ends them.
pub fn take_doomed(db: Option<i32>) -> Doomed {
    EPHEMERALS.with_borrow_mut(|all| match db {
        None => std::mem::take(&mut all.doomed),
        Some(db) => {
            let (taken, rest) =
                std::mem::take(&mut all.doomed).into_iter().partition(|((of, _), _)| *of == db);
            all.doomed = rest;
            taken
        }
    })
}

impl Ephemerals {
    fn unbind(&mut self, place: PlaceRef<'_>, token: &[u8]) {
        if self.connection_of.is_empty() {
            return;
        }
        let hold: Hold = (place.db, place.name.into(), token.into());
        let Some(connection) = self.connection_of.remove(&hold) else { return };
        if let Some(holds) = self.holds_of.get_mut(&connection) {
            holds.remove(&hold);
            if holds.is_empty() {
                self.holds_of.remove(&connection);
            }
        }
    }

    fn rebuild(&mut self, database: impl Fn(i32) -> Option<i32>) {
        let old = std::mem::take(self);
        for ((db, name), tokens) in old.doomed {
            if let Some(db) = database(db) {
                self.doomed.insert((db, name), tokens);
            }
        }
        for ((db, name, token), connection) in old.connection_of {
            if let Some(db) = database(db) {
                let hold = (db, name, token);
                self.connection_of.insert(hold.clone(), connection);
                self.holds_of.entry(connection).or_default().insert(hold);
            }
        }
    }
}
