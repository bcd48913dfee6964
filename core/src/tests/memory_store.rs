//! Locks in memory: a primary that records what is done to it, and a copy that hears only of that.

use std::hash::Hash;

use hashbrown::{Equivalent, HashMap, HashSet};

use crate::effect::{Change, Effect, Event};
use crate::format::encode;
use crate::ids::{LockId, LockIdRef};
use crate::lock::Lock;
use crate::mode::Mode;
use crate::outside::{LockStore, Lookup};
use crate::wire::{self, Message};

pub(super) fn id(name: &str) -> LockId {
    LockIdRef { db: 0, name: name.as_bytes() }.into()
}

/// Something that was done to a name, as a replica hears of it: an effect in its form for the log.
#[derive(Clone, Debug)]
pub(super) enum Record {
    Effect { id: LockId, line: Box<[u8]>, meta: Box<[u8]> },
    Deleted(LockId),
    Replaced(LockId, Lock),
}

impl Record {
    fn effect(&self) -> Option<Effect<'_>> {
        let Self::Effect { line, meta, .. } = self else { return None };
        let Some(Message::Effect(effect)) = wire::read(line, meta) else { panic!("{line:?}") };
        Some(effect)
    }
}

/// What a server does with an effect.
impl Equivalent<LockId> for LockIdRef<'_> {
    fn equivalent(&self, id: &LockId) -> bool {
        *self == id.as_ref()
    }
}

fn apply(locks: &mut HashMap<LockId, Lock>, id: LockIdRef<'_>, effect: &Effect<'_>) {
    match locks.get_mut(&id) {
        Some(lock) => {
            if lock.apply(effect).is_empty {
                locks.remove(&id);
            }
        }
        None => {
            if let Some(lock) = Lock::born_of(effect) {
                locks.insert(id.into(), lock);
            }
        }
    }
}

/// The primary. It also refuses, by panic, what a manager must never do: reach a name that is not open,
/// open a name twice at once, give a hold that excludes a live one or is excluded by it, or change a hold
/// that is not there.
#[derive(Debug, Default)]
pub(super) struct MemoryStore {
    locks: HashMap<LockId, Lock>,
    other_types: HashSet<LockId>,
    not_served: HashSet<LockId>,
    expiries: HashMap<LockId, u64>,
    open: Vec<LockId>,
    /// How many operations were begun, and how many names they opened.
    pub(super) operations: usize,
    pub(super) opened: usize,
    /// How many locks were looked at beside them.
    pub(super) peeked: usize,
    pub(super) records: Vec<Record>,
}

impl MemoryStore {
    pub(super) fn lock(&self, id: &(impl Hash + Equivalent<LockId>)) -> Option<&Lock> {
        self.locks.get(id)
    }

    /// `DEL`, or any other way in which a key goes without our doing.
    pub(super) fn delete(&mut self, id: &LockId) {
        self.other_types.remove(id);
        self.locks.remove(id);
        self.records.push(Record::Deleted(id.clone()));
    }

    /// `SET` and its like.
    pub(super) fn replace_by_other_type(&mut self, id: &LockId) {
        self.delete(id);
        self.other_types.insert(id.clone());
    }

    /// `RESTORE … REPLACE` and its like.
    pub(super) fn replace(&mut self, id: &LockId, lock: Lock) {
        self.other_types.remove(id);
        self.locks.insert(id.clone(), lock.clone());
        self.records.push(Record::Replaced(id.clone(), lock));
    }

    /// `SWAPDB`, for keys of these names.
    pub(super) fn swap(&mut self, names: &[&str]) {
        for name in names {
            let [first, second] = [0, 1].map(|db| LockId { db, name: name.as_bytes().into() });
            let locks = [self.locks.remove(&first), self.locks.remove(&second)];
            let others = [self.other_types.remove(&first), self.other_types.remove(&second)];
            for ((id, lock), is_other) in [second, first].iter().zip(locks).zip(others) {
                match lock {
                    Some(lock) => self.replace(id, lock),
                    None if is_other => self.replace_by_other_type(id),
                    None => self.delete(id),
                }
            }
        }
    }

    /// `PEXPIREAT`: the key is known to go at this moment, though nobody else does anything.
    pub(super) fn set_expiry(&mut self, id: &LockId, at_ms: u64) {
        self.expiries.insert(id.clone(), at_ms);
    }

    /// The name's slot is being moved, or has come back.
    pub(super) fn set_served(&mut self, id: &LockId, is_served: bool) {
        if is_served {
            self.not_served.remove(id);
        } else {
            self.not_served.insert(id.clone());
        }
    }

    /// Asserts that copies that get every record once, every record twice in a row, and the whole
    /// stream twice, all equal this one, to the byte.
    pub(super) fn assert_rebuilt_by_records(&self) {
        let (mut copy, mut doubled, stream) = (Replica::default(), Replica::default(), self.stream());
        stream.iter().for_each(|record| copy.hear(record));
        self.assert_equals(&copy, "each record once");
        stream.iter().for_each(|record| copy.hear(record));
        self.assert_equals(&copy, "the whole stream twice");
        stream.iter().flat_map(|record| [record, record]).for_each(|record| doubled.hear(record));
        self.assert_equals(&doubled, "each record twice in a row");
    }

    /// The same of a copy that hears each record once, as all do. Of a crowd that has ended, one that hears a record
    /// twice drops some more.
    pub(super) fn assert_rebuilt_by_records_heard_once(&self) {
        let mut copy = Replica::default();
        self.stream().iter().for_each(|record| copy.hear(record));
        self.assert_equals(&copy, "each record once");
    }

    /// The records, with the effects that they say.
    fn stream(&self) -> Vec<(&Record, Option<Effect<'_>>)> {
        self.records.iter().map(|record| (record, record.effect())).collect()
    }

    fn assert_equals(&self, copy: &Replica, how: &str) {
        assert_eq!(self.locks.len(), copy.locks.len(), "{how}: another number of locks");
        for (id, lock) in &self.locks {
            let twin = copy.locks.get(id).unwrap_or_else(|| panic!("{how}: {id:?} is missing"));
            assert!(lock == twin, "{how}: {id:?} is\n{twin:?}\ninstead of\n{lock:?}");
            assert_eq!(encode(lock), encode(twin), "{how}: {id:?}");
        }
    }
}

impl LockStore for MemoryStore {
    fn open(&mut self, db: i32, names: &[&[u8]]) {
        self.open = names.iter().map(|name| LockIdRef { db, name }.into()).collect();
        self.operations += 1;
        self.opened += names.len();
        assert!(names.len() == 1 || self.open.iter().collect::<HashSet<_>>().len() == names.len());
    }

    fn get(&self, at: usize) -> Lookup<'_> {
        let id = &self.open[at];
        if self.not_served.contains(id) {
            Lookup::NotServed
        } else if self.other_types.contains(id) {
            Lookup::OtherType
        } else {
            Lookup::Lock(self.locks.get(id))
        }
    }

    fn commit(&mut self, at: usize, effect: &Effect<'_>, _: Event) {
        let Lookup::Lock(lock) = self.get(at) else { panic!("not a lock: {effect:?}") };
        assert!(effect.at_ms > 0);
        let at_ms = effect.at_ms;
        let others = |token: &[u8]| {
            let live = lock.into_iter().flat_map(Lock::holders);
            let mut live = live.filter(|other| other.is_live(at_ms));
            live.any(|other| *other.token() != *token)
        };
        match effect.change {
            Change::Hold { mode: Mode::Write, token, .. } => {
                assert!(!others(token), "a writer among others: {effect:?}");
            }
            Change::Hold { mode: Mode::Read, token, .. } => {
                let is_written = lock.is_some_and(|lock| lock.mode() == Mode::Write);
                assert!(!is_written || !others(token), "a reader beside a writer: {effect:?}");
            }
            Change::Extend { token, .. } | Change::Release { token } => {
                let own = lock.and_then(|lock| lock.holder(token, at_ms));
                assert!(own.is_some(), "not a live hold: {effect:?}");
            }
        }
        let id = &self.open[at];
        apply(&mut self.locks, id.as_ref(), effect);
        let (line, meta) = wire::write(effect);
        self.records.push(Record::Effect { id: id.clone(), line: line[..].into(), meta: meta.into() });
    }

    fn expires_ms(&self, at: usize) -> Option<u64> {
        self.expiries.get(&self.open[at]).copied()
    }

    fn close(&mut self) {
        self.open.clear();
    }

    fn peek(&mut self, id: LockIdRef<'_>) -> Option<&Lock> {
        self.peeked += 1;
        self.locks.get(&id)
    }
}

/// A replica, or a server that loads its log.
#[derive(Debug, Default)]
struct Replica {
    locks: HashMap<LockId, Lock>,
}

impl Replica {
    fn hear(&mut self, (record, effect): &(&Record, Option<Effect<'_>>)) {
        match (record, effect) {
            (Record::Effect { id, .. }, Some(effect)) => apply(&mut self.locks, id.as_ref(), effect),
            (Record::Replaced(id, lock), _) => _ = self.locks.insert(id.clone(), lock.clone()),
            (Record::Effect { id, .. } | Record::Deleted(id), _) => _ = self.locks.remove(id),
        }
    }
}
