//! What is noted of holders, and how far a look at them has come. `holders` and `own_holds` use it.

use std::collections::BTreeSet;

use hashbrown::DefaultHashBuilder;
use smallvec::SmallVec;

use super::byte_map::Place;
use super::handles::QueueId;

/// What is noted of one lock's holders.
#[derive(Debug)]
pub(super) enum NotedHolders {
    /// The hashes of their tokens.
    Few(SmallVec<[u64; 1]>),
    /// There are more than a few.
    Many,
}

impl Default for NotedHolders {
    fn default() -> Self {
        Self::Few(SmallVec::new())
    }
}

/// What is noted of holders, by token, for all locks that are waited for.
#[derive(Debug, Default)]
pub(super) struct HolderIndex {
    pub(super) by_hash: BTreeSet<(u64, QueueId)>,
    pub(super) crowded: BTreeSet<QueueId>,
    pub(super) hasher: DefaultHashBuilder,
}

impl HolderIndex {
    pub(super) fn add(&mut self, queue: QueueId, noted: &NotedHolders) {
        match noted {
            NotedHolders::Few(hashes) => self.by_hash.extend(hashes.iter().map(|hash| (*hash, queue))),
            NotedHolders::Many => self.crowded.extend([queue]),
        }
    }

    pub(super) fn remove(&mut self, queue: QueueId, noted: &NotedHolders) {
        match noted {
            NotedHolders::Few(hashes) => {
                for hash in hashes {
                    self.by_hash.remove(&(*hash, queue));
                }
            }
            NotedHolders::Many => {
                self.crowded.remove(&queue);
            }
        }
    }

    /// Checks that it is what is noted at the queues.
    #[cfg(test)]
    pub(super) fn check<'q>(&self, noted: impl Iterator<Item = (QueueId, &'q NotedHolders)>) {
        let mut again = Self::default();
        noted.for_each(|(queue, noted)| again.add(queue, noted));
        assert_eq!((&again.by_hash, &again.crowded), (&self.by_hash, &self.crowded));
    }
}

/// How far a look at the tokens that wait and hold a lock has come.
#[derive(Clone, Debug, Default)]
pub(crate) enum HoldersSeen {
    #[default]
    None,
    /// It goes through the holders; those up to this fence were looked at.
    UpToFence(u64),
    /// It goes through the tokens that wait; those up to this place were looked at.
    UpToToken(Option<Place>),
    All,
}
