// SPDX-License-Identifier: MIT OR Apache-2.0

//! The table of a lock's holders.
//!
//! A handful of holders is a plain array, searched from end to end: most locks have one. Above
//! [`INDEX_ABOVE`] the holders are kept in trees, so that a lock with 100,000 readers is joined and left
//! at nearly the cost of one with ten. Trees, not hash tables: they grow by a node at a time, so no
//! single reader pays for the growth of the whole. The table knows nothing of modes.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::mem::{self, size_of};
use std::ops::Bound;
use std::slice;

use hashbrown::DefaultHashBuilder;
use smallvec::SmallVec;

use super::holder::Holder;
use crate::alloc_size::allocated;
use crate::limits::DROPPED_AT_ONCE;

/// Up to this many holders a linear search beats the trees.
const INDEX_ABOVE: usize = 16;

const _: () = assert!(INDEX_ABOVE <= DROPPED_AT_ONCE);

/// Holders by token, by fence and by deadline. Tokens and fences are unique.
#[derive(Clone, Debug)]
pub(crate) enum Holders {
    /// Most locks have one holder, which needs no allocation of its own.
    One(Holder),
    /// None, or a few in no particular order.
    Few(Vec<Holder>),
    /// More than a few.
    Many(Box<Trees>),
}

/// What is in the table, to look at.
enum View<'a> {
    Few(&'a [Holder]),
    Many(&'a Trees),
}

/// Every entry leads to a holder by its fence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trees {
    by_fence: BTreeMap<u64, Holder>,
    /// The hash of the token, and the fence.
    by_token: BTreeSet<(u64, u64)>,
    by_deadline: BTreeSet<(u64, u64)>,
    hasher: DefaultHashBuilder,
}

impl Default for Holders {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Holders {
    pub(crate) fn one(holder: Holder) -> Self {
        Self::One(holder)
    }

    #[inline(always)]
    fn view(&self) -> View<'_> {
        match self {
            Self::One(one) => View::Few(slice::from_ref(one)),
            Self::Few(few) => View::Few(few),
            Self::Many(trees) => View::Many(trees),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self.view() {
            View::Few(few) => few.len(),
            View::Many(trees) => trees.by_deadline.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether to free the table takes more than a moment.
    pub(crate) fn is_large(&self) -> bool {
        self.len() > 1000
    }

    /// Those with a fence above this one, oldest hold first.
    pub(crate) fn after(&self, fence: u64) -> impl DoubleEndedIterator<Item = &Holder> {
        let (few, many) = match self.view() {
            View::Few(few) => {
                let mut later: SmallVec<[&Holder; INDEX_ABOVE]> =
                    few.iter().filter(|holder| holder.fence > fence).collect();
                later.sort_unstable_by_key(|holder| holder.fence);
                (later, None)
            }
            View::Many(trees) => (SmallVec::new(), Some(trees.by_fence.range(above(fence)))),
        };
        few.into_iter().chain(many.into_iter().flatten().map(|(_, holder)| holder))
    }

    #[inline(always)]
    pub(crate) fn get(&self, token: &[u8]) -> Option<&Holder> {
        match self.view() {
            View::Few(few) => few.iter().find(|holder| holder.token() == token),
            View::Many(trees) => trees.get(token),
        }
    }

    pub(crate) fn with_fence(&self, fence: u64) -> Option<&Holder> {
        match self.view() {
            View::Few(few) => few.iter().find(|holder| holder.fence == fence),
            View::Many(trees) => trees.by_fence.get(&fence),
        }
    }

    /// The latest deadline among holders other than `but`; 0 when there is none.
    #[inline(always)]
    pub(crate) fn last_deadline_ms(&self, but: Option<&Holder>) -> u64 {
        let but = but.map(|holder| holder.fence);
        match self.view() {
            View::Few(few) => {
                let others = few.iter().filter(|holder| Some(holder.fence) != but);
                others.map(|holder| holder.deadline_ms).max().unwrap_or(0)
            }
            View::Many(trees) => trees.last_deadline_ms(but),
        }
    }

    /// How many holders have a deadline at or before `at_ms`. Costs a step for each.
    #[inline(always)]
    pub(crate) fn count_ended(&self, at_ms: u64) -> usize {
        match self.view() {
            View::Few(few) => few.iter().filter(|holder| !holder.is_live(at_ms)).count(),
            View::Many(trees) => trees.by_deadline.range(..=(at_ms, u64::MAX)).count(),
        }
    }

    /// The deadline that comes after `earlier` others, whatever their order in the table. Costs what these or the
    /// later ones are, whichever are fewer.
    pub(crate) fn deadline_after(&self, earlier: usize) -> Option<u64> {
        let later = self.len().checked_sub(earlier + 1)?;
        let mut deadlines = self.deadlines().map(|(deadline_ms, _)| deadline_ms);
        if earlier <= later { deadlines.nth(earlier) } else { deadlines.nth_back(later) }
    }

    /// 0 when there is none.
    pub(crate) fn highest_fence(&self) -> u64 {
        self.after(0).next_back().map_or(0, |holder| holder.fence)
    }

    /// The holders that [`Holders::drop_ended`] drops.
    pub(crate) fn to_drop(&self, at_ms: u64) -> impl Iterator<Item = &Holder> {
        let ended = self.deadlines().take_while(move |(deadline_ms, _)| *deadline_ms <= at_ms);
        ended.take(DROPPED_AT_ONCE).filter_map(|(_, fence)| self.with_fence(fence))
    }

    /// The deadline and the fence of each holder, the earliest deadline first.
    fn deadlines(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> {
        let (few, many) = match self.view() {
            View::Few(few) => {
                let each = few.iter().map(|holder| (holder.deadline_ms, holder.fence));
                let mut sorted: SmallVec<[(u64, u64); INDEX_ABOVE]> = each.collect();
                sorted.sort_unstable();
                (sorted, None)
            }
            View::Many(trees) => (SmallVec::new(), Some(trees.by_deadline.iter().copied())),
        };
        few.into_iter().chain(many.into_iter().flatten())
    }

    /// Adds a holder. One with the same token goes, and one with the same fence: only a damaged stream could bring
    /// another token's.
    pub(crate) fn put(&mut self, holder: Holder) {
        match self {
            Self::Few(few) if few.is_empty() => *self = Self::One(holder),
            Self::Many(trees) => trees.put(holder),
            Self::One(_) | Self::Few(_) => {
                let mut few = self.take_few();
                few.retain(|other| other.token() != holder.token() && other.fence != holder.fence);
                few.push(holder);
                *self = if few.len() <= INDEX_ABOVE {
                    Self::Few(few)
                } else {
                    let mut trees = Trees::default();
                    few.into_iter().for_each(|holder| trees.put(holder));
                    Self::Many(Box::new(trees))
                };
            }
        }
        self.shrink();
    }

    #[inline(always)]
    pub(crate) fn remove(&mut self, token: &[u8]) {
        match self {
            Self::One(one) => {
                if one.token() == token {
                    *self = Self::default();
                }
                return;
            }
            Self::Few(few) => few.retain(|holder| holder.token() != token),
            Self::Many(trees) => drop(trees.take(token)),
        }
        self.shrink();
    }

    /// Gives the holder with this token another deadline, if there is one.
    pub(crate) fn set_deadline(&mut self, token: &[u8], deadline_ms: u64) {
        let few = match self {
            Self::One(one) => slice::from_mut(one),
            Self::Few(few) => few,
            Self::Many(trees) => {
                if let Some(mut own) = trees.take(token) {
                    own.deadline_ms = deadline_ms;
                    trees.put(own);
                }
                return;
            }
        };
        if let Some(own) = few.iter_mut().find(|holder| holder.token() == token) {
            own.deadline_ms = deadline_ms;
        }
    }

    /// Drops holders with a deadline at or before `at_ms`, the earliest first, and [`DROPPED_AT_ONCE`] at most. How
    /// many.
    #[inline(always)]
    pub(crate) fn drop_ended(&mut self, at_ms: u64) -> usize {
        match self {
            Self::One(one) if one.is_live(at_ms) => 0,
            _ => self.drop_ended_of_several(at_ms),
        }
    }

    #[inline(never)]
    fn drop_ended_of_several(&mut self, at_ms: u64) -> usize {
        let before = self.len();
        match self {
            Self::One(_) => *self = Self::default(),
            Self::Few(few) => few.retain(|holder| holder.is_live(at_ms)),
            Self::Many(trees) => trees.drop_ended(at_ms),
        }
        let dropped = before - self.len();
        self.shrink();
        dropped
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let owned: usize = self.after(0).map(Holder::heap_bytes).sum();
        owned
            + match self {
                Self::One(_) => 0,
                Self::Few(few) => allocated(few.capacity() * size_of::<Holder>()),
                Self::Many(trees) => trees.heap_bytes(),
            }
    }

    /// The holders with a fence above this one, by their fences, and what they have on the heap.
    pub(crate) fn bytes_after(&mut self, fence: u64) -> impl Iterator<Item = (u64, Option<&mut Box<[u8]>>)> {
        let (few, many) = match self {
            Self::One(one) => (slice::from_mut(one), None),
            Self::Few(few) => (&mut few[..], None),
            Self::Many(trees) => {
                (&mut [][..], Some(trees.by_fence.range_mut(above(fence)).map(|(_, holder)| holder)))
            }
        };
        let few = few.iter_mut().filter(move |holder| holder.fence > fence);
        few.chain(many.into_iter().flatten()).map(|holder| (holder.fence, holder.bytes_mut()))
    }

    /// All of a table without trees; none is left.
    fn take_few(&mut self) -> Vec<Holder> {
        match mem::take(self) {
            Self::One(one) => vec![one],
            Self::Few(few) => few,
            Self::Many(_) => Vec::new(),
        }
    }

    /// A table whose crowd has gone becomes an array again, and that of one holder needs none.
    fn shrink(&mut self) {
        if let Self::Many(trees) = self
            && trees.by_deadline.len() <= INDEX_ABOVE / 2
        {
            *self = Self::Few(mem::take(&mut trees.by_fence).into_values().collect());
        }
        if let Self::Few(few) = self
            && few.len() == 1
            && let Some(one) = few.pop()
        {
            *self = Self::One(one);
        }
    }
}

impl Trees {
    fn hash(&self, token: &[u8]) -> u64 {
        self.hasher.hash_one(token)
    }

    #[inline(never)]
    fn get(&self, token: &[u8]) -> Option<&Holder> {
        let hash = self.hash(token);
        // One bound is looked up faster than two.
        let same_hash = self.by_token.range((hash, 0)..).take_while(|(other, _)| *other == hash);
        same_hash.filter_map(|(_, fence)| self.by_fence.get(fence)).find(|holder| holder.token() == token)
    }

    #[inline(never)]
    fn last_deadline_ms(&self, but: Option<u64>) -> u64 {
        let mut last_first = self.by_deadline.iter().rev();
        last_first.find(|(_, fence)| Some(*fence) != but).map_or(0, |(deadline_ms, _)| *deadline_ms)
    }

    fn drop_ended(&mut self, at_ms: u64) {
        for _ in 0..DROPPED_AT_ONCE {
            match self.by_deadline.first() {
                Some(&(deadline_ms, fence)) if deadline_ms <= at_ms => self.remove(fence),
                Some(_) | None => return,
            };
        }
    }

    fn put(&mut self, holder: Holder) {
        let same_token = self.get(holder.token()).map(|other| other.fence);
        same_token.into_iter().chain([holder.fence]).for_each(|fence| drop(self.remove(fence)));
        self.by_token.insert((self.hash(holder.token()), holder.fence));
        self.by_deadline.insert((holder.deadline_ms, holder.fence));
        self.by_fence.insert(holder.fence, holder);
    }

    fn take(&mut self, token: &[u8]) -> Option<Holder> {
        let fence = self.get(token)?.fence;
        self.remove(fence)
    }

    fn remove(&mut self, fence: u64) -> Option<Holder> {
        let gone = self.by_fence.remove(&fence)?;
        self.by_token.remove(&(self.hash(gone.token()), fence));
        self.by_deadline.remove(&(gone.deadline_ms, fence));
        Some(gone)
    }

    /// Estimated: a node of the standard library's trees has room for 11 entries, and is filled to little more than a
    /// half where what is new comes at the end, as deadlines and fences do.
    fn heap_bytes(&self) -> usize {
        const NODE_ROOM: usize = 11;
        const NODE_FILL: usize = 6;
        const NODE_HEAD_BYTES: usize = 16;
        let node = |entry: usize| allocated(NODE_ROOM * entry + NODE_HEAD_BYTES);
        let nodes = self.by_deadline.len() / NODE_FILL + 1;
        let entries = [size_of::<(u64, Holder)>(), size_of::<(u64, u64)>(), size_of::<(u64, u64)>()];
        allocated(size_of::<Self>()) + nodes * entries.map(node).iter().sum::<usize>()
    }
}

fn above(fence: u64) -> (Bound<u64>, Bound<u64>) {
    (Bound::Excluded(fence), Bound::Unbounded)
}
