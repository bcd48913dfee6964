//! Requests to search around for cycles, each once, first come first served: so nobody who is searched for again and
//! again keeps others from their turn.

use std::collections::{BTreeSet, VecDeque};

use crate::ids::RequestId;

/// See the file.
#[derive(Debug, Default)]
pub(super) struct SearchQueue {
    /// In order. May still name some that were removed.
    order: VecDeque<RequestId>,
    members: BTreeSet<RequestId>,
}

impl SearchQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn pop(&mut self) -> Option<RequestId> {
        while let Some(first) = self.order.pop_front() {
            if self.members.remove(&first) {
                return Some(first);
            }
        }
        None
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = RequestId> {
        self.order.iter().copied().filter(|request| self.members.contains(request))
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, request: RequestId) -> bool {
        let was_there = self.members.remove(&request);
        if self.members.is_empty() {
            self.order.clear();
        }
        was_there
    }
}

impl Extend<RequestId> for SearchQueue {
    /// Who is there already keeps its place.
    fn extend<T: IntoIterator<Item = RequestId>>(&mut self, requests: T) {
        let Self { order, members } = self;
        order.extend(requests.into_iter().filter(|request| members.insert(*request)));
    }
}
