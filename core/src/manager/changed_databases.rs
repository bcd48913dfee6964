//! Databases all of whose keys have changed outside of the manager: how far the look at their queues has come.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use crate::queue::{QueueId, Waitlist};

/// How far a look at all queues of a database has come.
#[derive(Debug, Default)]
struct Scan<P> {
    /// The last name that was looked at.
    done: Option<P>,
    /// The database has changed again since the look began.
    again: bool,
}

impl<P> Scan<P> {
    fn note_again(&mut self) {
        self.again = self.done.is_some();
    }
}

/// See the file. However many databases there are and however often they change, to note it is one step.
#[derive(Debug, Default)]
pub(super) struct ChangedDatabases {
    some: BTreeMap<i32, Scan<Rc<[u8]>>>,
    /// The database whose turn was last.
    last: Option<i32>,
    all: Option<Scan<(i32, Rc<[u8]>)>>,
}

impl ChangedDatabases {
    pub(super) fn is_empty(&self) -> bool {
        self.some.is_empty() && self.all.is_none()
    }

    /// This database has changed, or every one.
    pub(super) fn note(&mut self, db: Option<i32>) {
        match (db, &mut self.all) {
            (Some(db), _) => match self.some.get_mut(&db) {
                Some(scan) => scan.note_again(),
                None => drop(self.some.insert(db, Scan { done: None, again: false })),
            },
            (None, Some(scan)) => scan.note_again(),
            (None, none) => *none = Some(Scan { done: None, again: false }),
        }
    }

    /// The next queue to look at of one that has changed, the databases taking turns, and of all. `None` where there
    /// is none left.
    pub(super) fn next(&mut self, waitlist: &Waitlist) -> [Option<QueueId>; 2] {
        [self.next_of_some(waitlist), self.next_of_all(waitlist)]
    }

    fn next_of_some(&mut self, waitlist: &Waitlist) -> Option<QueueId> {
        let later = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.some.range((later, Bound::Unbounded)).next().or_else(|| self.some.iter().next());
        let db = *next?.0;
        self.last = Some(db);
        let scan = self.some.get_mut(&db)?;
        if let Some((name, queue)) = waitlist.next_queue(db, scan.done.as_deref()) {
            scan.done = Some(name);
            return Some(queue);
        }
        if std::mem::take(&mut scan.again) {
            scan.done = None;
        } else {
            self.some.remove(&db);
        }
        None
    }

    fn next_of_all(&mut self, waitlist: &Waitlist) -> Option<QueueId> {
        let scan = self.all.as_mut()?;
        if let Some((db, name, queue)) = waitlist.next_queue_of_all(scan.done.as_ref()) {
            scan.done = Some((db, name));
            return Some(queue);
        }
        if std::mem::take(&mut scan.again) {
            scan.done = None;
        } else {
            self.all = None;
        }
        None
    }
}
