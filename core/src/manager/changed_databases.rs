//! Databases all of whose keys have changed outside of the manager: how far the look at their queues has come.

use std::collections::BTreeSet;
use std::mem;

use crate::queue::{QueueId, Waitlist};

/// So many queues are passed over at most before others have their turn.
const PASSED_OVER: usize = 64;

/// See the file. However many databases there are and however often they change, to note it is one step.
#[derive(Debug, Default)]
pub(super) struct ChangedDatabases {
    /// What the look at all queues is about.
    changes: Changes,
    /// The last queue that was looked at.
    done: Option<QueueId>,
    /// What has changed since the look began, for the next one.
    later: Changes,
}

#[derive(Debug, Default)]
struct Changes {
    some: BTreeSet<i32>,
    all: bool,
}

impl ChangedDatabases {
    pub(super) fn is_empty(&self) -> bool {
        self.changes.some.is_empty() && !self.changes.all
    }

    fn noted(&mut self) -> &mut Changes {
        if self.done.is_none() { &mut self.changes } else { &mut self.later }
    }

    /// This database has changed, or every one.
    pub(super) fn note(&mut self, db: Option<i32>) {
        let noted = self.noted();
        match db {
            Some(db) => drop(noted.some.insert(db)),
            None => noted.all = true,
        }
    }

    /// The next queue to look at.
    pub(super) fn next(&mut self, waitlist: &Waitlist) -> Option<QueueId> {
        let mut queues = waitlist.queues_after(self.done).take(PASSED_OVER).peekable();
        if queues.peek().is_none() {
            *self = Self { changes: mem::take(&mut self.later), ..Self::default() };
            return None;
        }
        queues.find_map(|(id, queue)| {
            self.done = Some(id);
            (self.changes.all || self.changes.some.contains(&queue.lock.db)).then_some(id)
        })
    }
}
