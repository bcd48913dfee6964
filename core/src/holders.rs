//! The table of a lock's holders.
//!
//! A handful of holders is a plain array, searched from end to end: most locks have one. Above
//! [`INDEX_ABOVE`] an index is kept beside the array, so that a lock with 100,000 readers is joined
//! and left at nearly the cost of one with ten. The table knows nothing of modes or of time.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;
use std::mem::size_of;

use hashbrown::{DefaultHashBuilder, HashTable};
use smallvec::{SmallVec, smallvec};

use crate::footprint::allocated;
use crate::lock::Holder;

/// Up to this many holders a linear search beats three indexes.
const INDEX_ABOVE: usize = 16;

/// Holders by token, by fence and by deadline. Tokens and fences are unique.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holders {
    /// In no particular order: leaving moves the last holder into the gap. Most locks have one holder,
    /// which needs no allocation of its own.
    slots: SmallVec<[Holder; 1]>,
    index: Option<Box<Index>>,
}

/// Finds slots. Every entry names a slot of the array; the deadline order goes by way of the fence,
/// which does not change when a holder moves to another slot.
#[derive(Clone, Debug, Default)]
struct Index {
    hasher: DefaultHashBuilder,
    by_token: HashTable<u32>,
    by_fence: BTreeMap<u64, u32>,
    by_deadline: BTreeSet<(u64, u64)>,
}

impl Holders {
    pub(crate) fn one(holder: Holder) -> Self {
        Self { slots: smallvec![holder], index: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// In no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Holder> {
        self.slots.iter()
    }

    /// Oldest hold first.
    pub(crate) fn by_fence(&self) -> Box<dyn DoubleEndedIterator<Item = &Holder> + '_> {
        match &self.index {
            Some(index) => Box::new(index.by_fence.values().map(|&slot| &self.slots[slot as usize])),
            None => {
                let mut all: Vec<&Holder> = self.slots.iter().collect();
                all.sort_unstable_by_key(|holder| holder.fence);
                Box::new(all.into_iter())
            }
        }
    }

    pub(crate) fn get(&self, token: &[u8]) -> Option<&Holder> {
        self.slot_of(token).map(|slot| &self.slots[slot])
    }

    pub(crate) fn with_fence(&self, fence: u64) -> Option<&Holder> {
        match &self.index {
            Some(index) => index.by_fence.get(&fence).map(|&slot| &self.slots[slot as usize]),
            None => self.slots.iter().find(|holder| holder.fence == fence),
        }
    }

    /// The latest deadline among holders other than `but`; 0 when there is none.
    pub(crate) fn last_deadline_ms(&self, but: Option<&Holder>) -> u64 {
        let but = but.map(|holder| holder.fence);
        match &self.index {
            Some(index) => index
                .by_deadline
                .iter()
                .rev()
                .find(|(_, fence)| Some(*fence) != but)
                .map_or(0, |(deadline_ms, _)| *deadline_ms),
            None => self
                .slots
                .iter()
                .filter(|holder| Some(holder.fence) != but)
                .map(|holder| holder.deadline_ms)
                .max()
                .unwrap_or(0),
        }
    }

    /// How many holders have a deadline at or before `at_ms`.
    pub(crate) fn count_ended(&self, at_ms: u64) -> usize {
        match &self.index {
            Some(index) => index.by_deadline.range(..=(at_ms, u64::MAX)).count(),
            None => self.slots.iter().filter(|holder| holder.deadline_ms <= at_ms).count(),
        }
    }

    /// The holders with a deadline at or before `at_ms`.
    pub(crate) fn ended(&self, at_ms: u64) -> Box<dyn Iterator<Item = &Holder> + '_> {
        match &self.index {
            Some(index) => {
                let ended = index.by_deadline.range(..=(at_ms, u64::MAX));
                Box::new(ended.map(|(_, fence)| &self.slots[index.by_fence[fence] as usize]))
            }
            None => Box::new(self.slots.iter().filter(move |holder| holder.deadline_ms <= at_ms)),
        }
    }

    /// Adds a holder whose token and fence the table does not have.
    pub(crate) fn insert(&mut self, holder: Holder) {
        debug_assert!(self.get(&holder.token).is_none() && self.with_fence(holder.fence).is_none());
        self.slots.push(holder);
        let slot = self.slots.len() - 1;
        match &mut self.index {
            Some(index) => index.add(&self.slots, slot),
            None if self.slots.len() > INDEX_ABOVE => {
                let mut index = Box::<Index>::default();
                (0..self.slots.len()).for_each(|slot| index.add(&self.slots, slot));
                self.index = Some(index);
            }
            None => {}
        }
    }

    pub(crate) fn remove(&mut self, token: &[u8]) -> Option<Holder> {
        self.slot_of(token).map(|slot| self.remove_slot(slot))
    }

    /// Gives the holder with this token another deadline. False when there is no such holder.
    pub(crate) fn set_deadline(&mut self, token: &[u8], deadline_ms: u64) -> bool {
        let Some(slot) = self.slot_of(token) else { return false };
        let holder = &mut self.slots[slot];
        if let Some(index) = &mut self.index {
            index.by_deadline.remove(&(holder.deadline_ms, holder.fence));
            index.by_deadline.insert((deadline_ms, holder.fence));
        }
        holder.deadline_ms = deadline_ms;
        true
    }

    /// Drops every holder with a deadline at or before `at_ms`.
    pub(crate) fn remove_ended(&mut self, at_ms: u64) {
        while let Some(slot) = self.first_ended(at_ms) {
            self.remove_slot(slot);
        }
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        let spilled = if self.slots.spilled() { self.slots.capacity() * size_of::<Holder>() } else { 0 };
        let owned: usize = self.slots.iter().map(Holder::heap_bytes).sum();
        allocated(spilled) + owned + self.index.as_ref().map_or(0, |index| index.heap_bytes())
    }

    pub(crate) fn metas_mut(&mut self) -> impl Iterator<Item = &mut Box<[u8]>> {
        self.slots.iter_mut().map(|holder| &mut holder.meta)
    }

    fn first_ended(&self, at_ms: u64) -> Option<usize> {
        let Some(index) = &self.index else {
            return self.slots.iter().position(|holder| holder.deadline_ms <= at_ms);
        };
        let &(deadline_ms, fence) = index.by_deadline.first()?;
        (deadline_ms <= at_ms).then(|| index.by_fence[&fence] as usize)
    }

    fn slot_of(&self, token: &[u8]) -> Option<usize> {
        match &self.index {
            Some(index) => index.find(&self.slots, token),
            None => self.slots.iter().position(|holder| *holder.token == *token),
        }
    }

    fn remove_slot(&mut self, slot: usize) -> Holder {
        if let Some(index) = &mut self.index {
            index.remove(&self.slots, slot);
        }
        let gone = self.slots.swap_remove(slot);
        if self.slots.len() * 4 < self.slots.capacity() {
            self.slots.shrink_to_fit();
        }
        if self.slots.len() <= INDEX_ABOVE / 2 {
            self.index = None;
        }
        gone
    }
}

impl Index {
    fn find(&self, slots: &[Holder], token: &[u8]) -> Option<usize> {
        let hash = self.hasher.hash_one(token);
        self.by_token.find(hash, |&slot| *slots[slot as usize].token == *token).map(|&slot| slot as usize)
    }

    fn add(&mut self, slots: &[Holder], slot: usize) {
        let holder = &slots[slot];
        let number = u32::try_from(slot).expect("a lock has fewer than 2^32 holders");
        let hash = self.hasher.hash_one(&*holder.token);
        self.by_token
            .insert_unique(hash, number, |&other| self.hasher.hash_one(&*slots[other as usize].token));
        self.by_fence.insert(holder.fence, number);
        self.by_deadline.insert((holder.deadline_ms, holder.fence));
    }

    /// Forgets the holder in `slot` and expects the one in the last slot to move there.
    fn remove(&mut self, slots: &[Holder], slot: usize) {
        let (gone, last) = (&slots[slot], slots.len() - 1);
        let number = slot as u32;
        if let Ok(entry) = self.by_token.find_entry(self.hasher.hash_one(&*gone.token), |&at| at == number) {
            entry.remove();
        }
        self.by_fence.remove(&gone.fence);
        self.by_deadline.remove(&(gone.deadline_ms, gone.fence));
        if slot != last {
            let moved = &slots[last];
            let hash = self.hasher.hash_one(&*moved.token);
            if let Some(at) = self.by_token.find_mut(hash, |&at| at as usize == last) {
                *at = number;
            }
            self.by_fence.insert(moved.fence, number);
        }
    }

    /// The hash table is exact. The trees are estimated: a node of the standard library's has room for
    /// 11 entries, and is filled to two thirds where entries come in order, as they do here.
    fn heap_bytes(&self) -> usize {
        const NODE_ROOM: usize = 11;
        const NODE_FILL: usize = 7;
        const NODE_HEAD_BYTES: usize = 16;
        let by_fence = allocated(NODE_ROOM * size_of::<(u64, u32)>() + NODE_HEAD_BYTES);
        let by_deadline = allocated(NODE_ROOM * size_of::<(u64, u64)>() + NODE_HEAD_BYTES);
        let nodes = self.by_fence.len() / NODE_FILL + 1;
        allocated(size_of::<Self>())
            + allocated(self.by_token.allocation_size())
            + nodes * (by_fence + by_deadline)
    }
}
