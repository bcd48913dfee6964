//! Where the core finds its locks: the server's keys.
//!
//! [`Keyspace::apply`] is the one way in which our commands change a stored lock, always in this
//! order: the value, the key's expiry, the replication stream, `WATCH`. The announcement comes last,
//! when the desk is free again ([`Keyspace::announce`]): a subscriber may run commands, also ours.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use slock_core::{Change, Effect, Event, Lock, PlaceRef, Seen, Space};

use crate::server::{Ctx, LockKey, Opened, OwnedText, Text};
use crate::{ephemerals, marks, metrics, wire};

/// The keys that a context sees.
pub struct Keyspace<'c> {
    ctx: Ctx<'c>,
    /// The keys that the command named. The server has let it through to this node for them, and no
    /// string has to be made.
    named: &'c [Text<'c>],
    /// The one of them that is probably asked for next: they are gone through in order.
    next_named: usize,
    /// Where each of them stands, once one was asked for out of order.
    named_at: Option<HashMap<&'c [u8], usize>>,
    db: i32,
    /// Whether changes have to be written out for others; see [`Ctx::has_audience`].
    is_heard: bool,
    open: Option<Open<'c>>,
    unannounced: SmallVec<[Announcement<'c>; 1]>,
}

/// An event that subscribers have not been told yet.
struct Announcement<'c> {
    db: i32,
    name: Name<'c>,
    event: Event,
    changed: Changed,
}

/// What an effect did to a stored lock, besides what it says.
#[derive(Clone, Copy, Default)]
pub struct Changed {
    /// So many holders went because their time was up, while others stayed.
    outlived: usize,
    /// The time of all holders was up: the key had expired, and the server had not collected it yet.
    had_expired: bool,
    /// The key is there now and was not before.
    is_new: bool,
    /// The key has gone.
    pub is_gone: bool,
}

struct Open<'c> {
    db: i32,
    name: Name<'c>,
    key: LockKey<'c>,
}

enum Name<'c> {
    Lent(Text<'c>),
    Own(OwnedText),
}

impl Name<'_> {
    fn text(&self) -> Text<'_> {
        match self {
            Self::Lent(text) => *text,
            Self::Own(text) => text.as_text(),
        }
    }
}

impl<'c> Keyspace<'c> {
    /// The keys of a command, and whatever else is opened because of it: those who waited for one of
    /// its keys may ask for others too.
    pub fn of_command(ctx: Ctx<'c>, named: &'c [Text<'c>], db: i32) -> Self {
        Self {
            ctx,
            named,
            next_named: 0,
            named_at: None,
            db,
            is_heard: ctx.has_audience(),
            open: None,
            unannounced: SmallVec::new(),
        }
    }

    /// All keys, seen from a timer.
    pub fn of_timer(ctx: Ctx<'c>) -> Self {
        Self {
            ctx,
            named: &[],
            next_named: 0,
            named_at: None,
            db: ctx.db(),
            is_heard: true,
            open: None,
            unannounced: SmallVec::new(),
        }
    }

    /// The database that the keys are in.
    pub fn db(&self) -> i32 {
        self.db
    }

    /// Tells subscribers what has happened. Not while the desk is in use.
    pub fn announce(mut self) {
        self.open = None;
        // A key that comes back within the operation has not gone: the server has announced its coming
        // (`new`) already.
        let mut come_back: HashSet<(i32, Box<[u8]>)> = HashSet::new();
        let mut seen_gone = false;
        for Announcement { db, name, changed, .. } in &self.unannounced {
            seen_gone |= changed.is_gone;
            if changed.is_new && seen_gone {
                come_back.insert((*db, name.text().bytes().into()));
            }
        }
        for Announcement { db, name, event, changed } in self.unannounced {
            if self.db != db {
                self.ctx.select_db(db);
                self.db = db;
            }
            let (ctx, name) = (self.ctx, name.text());
            if changed.had_expired {
                ctx.announce_expired(name);
            }
            (0..changed.outlived).for_each(|_| ctx.announce(c"slock.expire", name));
            ctx.announce(event_name(event), name);
            if changed.is_gone && (come_back.is_empty() || !come_back.contains(&(db, name.bytes().into()))) {
                ctx.announce_gone(name);
            }
        }
    }

    /// Gives a lock that came without an expiry of its key the one that it should have.
    pub fn give_expiry(&mut self, place: PlaceRef<'_>) {
        let ctx = self.ctx;
        let Some(open) = self.open(place).filter(|open| open.key.expires_ms().is_none()) else { return };
        let Opened::Lock(lock) = open.key.get() else { return };
        let last = lock.holders_unordered().max_by_key(|holder| holder.deadline_ms).cloned();
        if let Some(last) = last {
            // That its last holder stays until then changes nothing else, here or at a replica.
            let change = Change::Extend { token: &last.token, deadline_ms: last.deadline_ms };
            let effect = Effect { at_ms: 0, change };
            open.key.expire_at_ms(last.deadline_ms);
            let name = open.name.text();
            wire::send(ctx, name, &effect);
            ctx.signal_modified(name);
        }
    }

    /// Which of the named keys this is, if any.
    fn position(&mut self, name: &[u8]) -> Option<usize> {
        let named = self.named;
        if named.get(self.next_named).is_some_and(|text| text.bytes() == name) {
            return Some(self.next_named);
        }
        if named.len() <= 1 {
            return named.first().filter(|text| text.bytes() == name).map(|_| 0);
        }
        let named_at = self
            .named_at
            .get_or_insert_with(|| named.iter().enumerate().map(|(at, text)| (text.bytes(), at)).collect());
        named_at.get(name).copied()
    }

    /// Opens a key, unless it is the one that is open. None if another node of the cluster has it, which
    /// can be so of every key but those that the command named.
    fn open(&mut self, place: PlaceRef<'_>) -> Option<&mut Open<'c>> {
        let is_open = self
            .open
            .as_ref()
            .is_some_and(|open| open.db == place.db && open.name.text().bytes() == place.name);
        if !is_open {
            self.open = None;
            if self.db != place.db {
                self.ctx.select_db(place.db);
                self.db = place.db;
            }
            let name = if let Some(at) = self.position(place.name) {
                self.next_named = (at + 1) % self.named.len();
                Name::Lent(self.named[at])
            } else {
                let name = OwnedText::new(place.name);
                if self.ctx.is_cluster() && !self.ctx.owns_key(name.as_text()) {
                    return None;
                }
                Name::Own(name)
            };
            let key = LockKey::open(self.ctx, name.text());
            self.open = Some(Open { db: place.db, name, key });
        }
        self.open.as_mut()
    }
}

impl Space for Keyspace<'_> {
    fn look(&mut self, place: PlaceRef<'_>) -> Seen<'_> {
        match self.open(place).map(|open| open.key.get()) {
            None => Seen::Elsewhere,
            Some(Opened::Empty) => Seen::Lock(None),
            Some(Opened::Lock(lock)) => Seen::Lock(Some(lock)),
            Some(Opened::OtherType) => Seen::OtherType,
        }
    }

    fn apply(&mut self, place: PlaceRef<'_>, effect: &Effect<'_>, event: Event) {
        let Some(open) = self.open(place) else { return };
        let changed = change(&mut open.key, place, effect);
        let ctx = self.ctx;
        if let Some(Open { db, name, key }) = self.open.take() {
            drop(key);
            if self.is_heard {
                wire::send(ctx, name.text(), effect);
            } else {
                ctx.note_change();
            }
            ctx.signal_modified(name.text());
            self.unannounced.push(Announcement { db, name, event, changed });
        }
    }

    fn collected_ms(&mut self, place: PlaceRef<'_>) -> Option<u64> {
        // A key is collected when its expiry has passed, not when it has come.
        self.open(place).and_then(|open| open.key.expires_ms()).map(|at_ms| at_ms + 1)
    }

    fn bind(&mut self, place: PlaceRef<'_>, token: &[u8], connection: Option<u64>) {
        ephemerals::bind(place, token, connection);
    }

    fn bound(&self, place: PlaceRef<'_>, token: &[u8]) -> Option<u64> {
        ephemerals::bound(place, token)
    }

    fn is_connected(&self, connection: u64) -> bool {
        self.ctx.is_connected(connection)
    }
}

/// Makes an effect on a stored lock, and nothing else: this is all that a replica does.
pub fn change(key: &mut LockKey<'_>, place: PlaceRef<'_>, effect: &Effect<'_>) -> Changed {
    match key.get() {
        Opened::Lock(lock) => {
            let ended = lock.count_ended(effect.at_ms);
            let had_expired = ended == lock.len();
            let outlived = if had_expired { 0 } else { lock.count_outlived(effect.at_ms) };
            if ended > 0 {
                metrics::count_expirations(ended);
                if !ephemerals::is_empty() {
                    lock.ended(effect.at_ms).for_each(|gone| ephemerals::unbind(place, &gone.token));
                }
            }
            if let Change::Release { token } = effect.change {
                ephemerals::unbind(place, token);
            }
            let is_gone = !lock.apply(effect);
            if is_gone {
                marks::as_ours(|| key.delete());
            } else {
                let last_ms = lock.last_deadline_ms();
                key.expire_at_ms(last_ms);
            }
            Changed { outlived, had_expired, is_new: false, is_gone }
        }
        Opened::Empty => {
            let Some(lock) = Lock::born_of(effect) else { return Changed::default() };
            let last_ms = lock.last_deadline_ms();
            marks::as_ours(|| key.set(lock));
            key.expire_at_ms(last_ms);
            Changed { is_new: true, ..Changed::default() }
        }
        Opened::OtherType => Changed::default(),
    }
}

fn event_name(event: Event) -> &'static std::ffi::CStr {
    match event {
        Event::Lock => c"slock.lock",
        Event::Rlock => c"slock.rlock",
        Event::Unlock => c"slock.unlock",
        Event::Runlock => c"slock.runlock",
        Event::Extend => c"slock.extend",
        Event::Upgrade => c"slock.upgrade",
        Event::Downgrade => c"slock.downgrade",
    }
}
