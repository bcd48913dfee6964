// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is to be done after the command that caused it: queues and requests that have to be looked at.

use std::collections::{BTreeSet, VecDeque};

use crate::ids::RequestId;
use crate::queue::{QueueId, Waitlist};

/// Queues and requests that have to be looked at.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    /// Queues whose first request has to be looked at, the first that changed first. Each stands here once.
    pub(super) ready: VecDeque<QueueId>,
    /// Requests to look at, wherever they stand: those for several names, and others of tokens that were granted a
    /// lock.
    pub(super) revisit: BTreeSet<RequestId>,
    /// How far the look at all queues has come, if one is under way.
    pub(super) after: Option<QueueId>,
    /// Whether it begins again at the end, because all queues may have changed meanwhile.
    is_repeated: bool,
}

impl Tasks {
    /// All queues have to be looked at. To note it is one step, however many there are and however often they change.
    pub(super) fn look_at_all(&mut self) {
        self.is_repeated = self.after.is_some_and(|after| after != QueueId::FIRST);
        self.after.get_or_insert(QueueId::FIRST);
    }

    /// The next queue of the look at all; `None` at its end.
    pub(super) fn next_of_all(&mut self, waitlist: &Waitlist) -> Option<QueueId> {
        let next = waitlist.queues_after(Some(self.after?)).next().map(|(queue, _)| queue);
        self.after = next.or(self.is_repeated.then_some(QueueId::FIRST));
        self.is_repeated &= next.is_some();
        next
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.revisit.is_empty() && self.after.is_none()
    }

    /// Whether requests that were put aside have their turn: when all queues have been looked at, but at least every so
    /// many rounds. Before, one for many names would be looked at again at each of them.
    pub(super) fn has_turn_of_revisit(&self, round: usize) -> bool {
        const AT_LEAST_EVERY: usize = 64;
        (self.ready.is_empty() && self.after.is_none()) || round.is_multiple_of(AT_LEAST_EVERY)
    }
}
