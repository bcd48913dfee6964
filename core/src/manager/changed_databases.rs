//! Databases all of whose keys have changed outside of the manager: how far the look at their queues has come.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::queue::{Place, QueueId, Waitlist};

/// How far a look at all queues of a database, or of every one, has come.
#[derive(Debug)]
struct Scan<P> {
    /// The last queue that was looked at.
    done: Option<P>,
    /// The database has changed again since the look began.
    again: bool,
}

impl<P: Copy> Scan<P> {
    /// What this is a look at has changed: it begins, or is to begin again.
    fn note(scan: &mut Option<Self>) {
        match scan {
            Some(scan) => scan.again = scan.done.is_some(),
            None => *scan = Some(Self { done: None, again: false }),
        }
    }

    /// The next queue to look at, as `next_after` finds it. `None` at the end of a look.
    fn next(
        scan: &mut Option<Self>,
        next_after: impl FnOnce(Option<P>) -> Option<(P, QueueId)>,
    ) -> Option<QueueId> {
        let under_way = scan.as_mut()?;
        if let Some((position, queue)) = next_after(under_way.done) {
            under_way.done = Some(position);
            return Some(queue);
        }
        under_way.done = None;
        if !std::mem::take(&mut under_way.again) {
            *scan = None;
        }
        None
    }
}

/// See the file. However many databases there are and however often they change, to note it is one step.
#[derive(Debug, Default)]
pub(super) struct ChangedDatabases {
    some: BTreeMap<i32, Option<Scan<Place>>>,
    /// The database whose turn was last.
    last: Option<i32>,
    all: Option<Scan<QueueId>>,
    /// Where what has changed for all of them is the time before which nothing is granted.
    grace: Option<Scan<QueueId>>,
}

/// What has changed for the locks of a queue that has to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    /// Others may hold it.
    Holders,
    /// Only when it may be granted.
    Grace,
}

impl ChangedDatabases {
    pub(super) fn is_empty(&self) -> bool {
        self.some.is_empty() && self.all.is_none() && self.grace.is_none()
    }

    /// This database has changed, or every one.
    pub(super) fn note(&mut self, db: Option<i32>) {
        match db {
            Some(db) => Scan::note(self.some.entry(db).or_default()),
            None => Scan::note(&mut self.all),
        }
    }

    /// New holds may be given sooner than was said.
    pub(super) fn note_grace(&mut self) {
        Scan::note(&mut self.grace);
    }

    /// The next queue to look at of one that has changed, the databases taking turns, and of all; and what has changed.
    pub(super) fn next(&mut self, waitlist: &Waitlist) -> [Option<(QueueId, Changed)>; 3] {
        let next_of_all = |after| waitlist.next_queue_id(after).map(|queue| (queue, queue));
        [
            self.next_of_some(waitlist).map(|queue| (queue, Changed::Holders)),
            Scan::next(&mut self.all, next_of_all).map(|queue| (queue, Changed::Holders)),
            Scan::next(&mut self.grace, next_of_all).map(|queue| (queue, Changed::Grace)),
        ]
    }

    fn next_of_some(&mut self, waitlist: &Waitlist) -> Option<QueueId> {
        let later = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.some.range((later, Bound::Unbounded)).next().or_else(|| self.some.iter().next());
        let db = *next?.0;
        self.last = Some(db);
        let of_db = self.some.get_mut(&db)?;
        let queue = Scan::next(of_db, |after| waitlist.next_queue(db, after));
        if of_db.is_none() {
            self.some.remove(&db);
        }
        queue
    }
}
