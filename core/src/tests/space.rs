//! Locks in memory: a primary that records what is done to it, and a copy that is told only that.

use hashbrown::{HashMap, HashSet};

use crate::desk::{Seen, Space};
use crate::effect::{Change, Effect, Event};
use crate::encoding::encode;
use crate::fence::Moment;
use crate::lock::{Lock, Mode};
use crate::queue::{Place, PlaceRef};

pub(super) fn place(name: &str) -> Place {
    PlaceRef { db: 0, name: name.as_bytes() }.into()
}

pub(super) fn ms(unix_ms: u64) -> Moment {
    Moment::from_unix_ms(unix_ms)
}

/// Something that was done to a name, as a replica hears of it.
#[derive(Clone, Debug)]
pub(super) enum Record {
    Effect { place: Place, at_ms: u64, change: OwnedChange, event: Event },
    Deleted(Place),
    Replaced(Place, Lock),
}

/// A [`Change`] that outlives the operation it came from.
#[derive(Clone, Debug)]
pub(super) enum OwnedChange {
    Hold { mode: Mode, token: Box<[u8]>, fence: u64, since_ms: u64, deadline_ms: u64, meta: Box<[u8]> },
    Extend { token: Box<[u8]>, deadline_ms: u64 },
    Release { token: Box<[u8]> },
}

impl From<Change<'_>> for OwnedChange {
    fn from(change: Change<'_>) -> Self {
        match change {
            Change::Hold { mode, token, fence, since_ms, deadline_ms, meta } => {
                Self::Hold { mode, token: token.into(), fence, since_ms, deadline_ms, meta: meta.into() }
            }
            Change::Extend { token, deadline_ms } => Self::Extend { token: token.into(), deadline_ms },
            Change::Release { token } => Self::Release { token: token.into() },
        }
    }
}

impl OwnedChange {
    fn borrow(&self) -> Change<'_> {
        match self {
            Self::Hold { mode, token, fence, since_ms, deadline_ms, meta } => Change::Hold {
                mode: *mode,
                token,
                fence: *fence,
                since_ms: *since_ms,
                deadline_ms: *deadline_ms,
                meta,
            },
            Self::Extend { token, deadline_ms } => Change::Extend { token, deadline_ms: *deadline_ms },
            Self::Release { token } => Change::Release { token },
        }
    }
}

/// What a server does with an effect.
fn apply(locks: &mut HashMap<Place, Lock>, place: PlaceRef<'_>, effect: &Effect<'_>) {
    match locks.get_mut(&place) {
        Some(lock) => {
            if !lock.apply(effect) {
                locks.remove(&place);
            }
        }
        None => {
            if let Some(lock) = Lock::born_of(effect) {
                locks.insert(place.into(), lock);
            }
        }
    }
}

/// The primary. It also refuses, by panic, what must never be done to a lock: a hold that excludes
/// a live one or is excluded by it, and a change of a hold that is not there.
#[derive(Debug, Default)]
pub(super) struct Primary {
    locks: HashMap<Place, Lock>,
    other_types: HashSet<Place>,
    elsewhere: HashSet<Place>,
    expiries: HashMap<Place, u64>,
    pub(super) records: Vec<Record>,
    /// Who was bound to which connection where.
    pub(super) bindings: Vec<(Place, Box<[u8]>, Option<u64>)>,
    bound: HashMap<(Place, Box<[u8]>), u64>,
    /// Connections that have closed.
    pub(super) closed: HashSet<u64>,
}

impl Primary {
    pub(super) fn lock(&self, place: &Place) -> Option<&Lock> {
        self.locks.get(place)
    }

    pub(super) fn is_other_type(&self, place: &Place) -> bool {
        self.other_types.contains(place)
    }

    pub(super) fn is_elsewhere(&self, place: &Place) -> bool {
        self.elsewhere.contains(place)
    }

    /// `DEL`, or any other way in which a key goes without our doing.
    pub(super) fn delete(&mut self, place: &Place) {
        self.other_types.remove(place);
        self.locks.remove(place);
        self.records.push(Record::Deleted(place.clone()));
    }

    /// `SET` and its like.
    pub(super) fn replace_by_other_type(&mut self, place: &Place) {
        self.delete(place);
        self.other_types.insert(place.clone());
    }

    /// `RESTORE … REPLACE` and its like.
    pub(super) fn replace(&mut self, place: &Place, lock: Lock) {
        self.other_types.remove(place);
        self.locks.insert(place.clone(), lock.clone());
        self.records.push(Record::Replaced(place.clone(), lock));
    }

    /// `PEXPIREAT`: the key is known to go at this moment, though nobody else does anything.
    pub(super) fn set_expiry(&mut self, place: &Place, at_ms: u64) {
        self.expiries.insert(place.clone(), at_ms);
    }

    /// The name's slot is being moved, or has come back.
    pub(super) fn set_elsewhere(&mut self, place: &Place, elsewhere: bool) {
        if elsewhere {
            self.elsewhere.insert(place.clone());
        } else {
            self.elsewhere.remove(place);
        }
    }

    /// Asserts that copies that get every record once, every record twice in a row, and the whole
    /// stream twice, all equal this one, to the byte.
    pub(super) fn assert_rebuilt_by_records(&self) {
        let mut once = Replica::default();
        let mut doubled = Replica::default();
        for record in &self.records {
            once.hear(record);
            doubled.hear(record);
            doubled.hear(record);
        }
        self.assert_equals(&once, "each record once");
        self.assert_equals(&doubled, "each record twice in a row");
        self.records.iter().for_each(|record| once.hear(record));
        self.assert_equals(&once, "the whole stream twice");
    }

    fn assert_equals(&self, copy: &Replica, how: &str) {
        assert_eq!(self.locks.len(), copy.locks.len(), "{how}: another number of locks");
        for (place, lock) in &self.locks {
            let twin = copy.locks.get(place).unwrap_or_else(|| panic!("{how}: {place:?} is missing"));
            assert!(lock == twin, "{how}: {place:?} is\n{twin:?}\ninstead of\n{lock:?}");
            assert_eq!(encode(lock), encode(twin), "{how}: {place:?}");
        }
    }
}

impl Space for Primary {
    fn look(&mut self, place: PlaceRef<'_>) -> Seen<'_> {
        if self.elsewhere.contains(&place) {
            Seen::Elsewhere
        } else if self.other_types.contains(&place) {
            Seen::OtherType
        } else {
            Seen::Lock(self.locks.get(&place))
        }
    }

    fn collected_ms(&mut self, place: PlaceRef<'_>) -> Option<u64> {
        self.expiries.get(&place).copied()
    }

    fn bind(&mut self, place: PlaceRef<'_>, token: &[u8], connection: Option<u64>) {
        self.bindings.push((place.into(), token.into(), connection));
        match connection {
            Some(connection) => self.bound.insert((place.into(), token.into()), connection),
            None => self.bound.remove(&(place.into(), token.into())),
        };
    }

    fn bound(&self, place: PlaceRef<'_>, token: &[u8]) -> Option<u64> {
        self.bound.get(&(place.into(), token.into())).copied()
    }

    fn is_connected(&self, connection: u64) -> bool {
        !self.closed.contains(&connection)
    }

    fn apply(&mut self, place: PlaceRef<'_>, effect: &Effect<'_>, event: Event) {
        assert!(!self.elsewhere.contains(&place) && !self.other_types.contains(&place));
        assert!(effect.at_ms > 0);
        let lock = self.locks.get(&place);
        let others = |token: &[u8]| {
            let live = lock.into_iter().flat_map(Lock::holders).filter(|other| other.is_live(effect.at_ms));
            live.filter(|other| *other.token != *token).count()
        };
        match effect.change {
            Change::Hold { mode: Mode::Write, token, .. } => {
                assert_eq!(others(token), 0, "a writer among others: {effect:?}");
            }
            Change::Hold { mode: Mode::Read, token, .. } => {
                let written = lock.is_some_and(|lock| lock.mode() == Mode::Write);
                assert!(!written || others(token) == 0, "a reader beside a writer: {effect:?}");
            }
            Change::Extend { token, .. } | Change::Release { token } => {
                let own = lock.and_then(|lock| lock.holder(token, effect.at_ms));
                assert!(own.is_some(), "not a live hold: {effect:?}");
            }
        }
        apply(&mut self.locks, place, effect);
        let (at_ms, change) = (effect.at_ms, effect.change.into());
        self.records.push(Record::Effect { place: place.into(), at_ms, change, event });
    }
}

/// Counts looks at the locks, of which every decision takes one for each name.
#[derive(Default)]
pub(super) struct Counted {
    pub(super) space: Primary,
    pub(super) looks: usize,
}

impl Space for Counted {
    fn look(&mut self, place: PlaceRef<'_>) -> Seen<'_> {
        self.looks += 1;
        self.space.look(place)
    }

    fn apply(&mut self, place: PlaceRef<'_>, effect: &Effect<'_>, event: Event) {
        self.space.apply(place, effect, event);
    }
}

/// A replica, or a server that loads its log.
#[derive(Debug, Default)]
pub(super) struct Replica {
    locks: HashMap<Place, Lock>,
}

impl Replica {
    pub(super) fn hear(&mut self, record: &Record) {
        match record {
            Record::Effect { place, at_ms, change, .. } => {
                let effect = Effect { at_ms: *at_ms, change: change.borrow() };
                apply(&mut self.locks, place.as_ref(), &effect);
            }
            Record::Deleted(place) => {
                self.locks.remove(place);
            }
            Record::Replaced(place, lock) => {
                self.locks.insert(place.clone(), lock.clone());
            }
        }
    }
}
