//! A map whose keys are bytes: names, tokens.
//!
//! A tree in the order of hashes, so that no comparison on the way down follows a pointer to the bytes: among
//! 100,000 keys that is what a look-up costs. It grows by a node at a time. Keys with one hash are told apart by a
//! number.

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::ops::Bound;
use std::rc::Rc;

use hashbrown::DefaultHashBuilder;

/// Where a key stands in the order of the map: 48 bits of its hash, and its number among the keys with the same. It
/// stays there while it is in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(u64);

impl Place {
    const NUMBERS: u64 = 0xFFFF;

    /// The last one with the same hash.
    fn last(self) -> Self {
        Self(self.0 | Self::NUMBERS)
    }
}

/// See the file.
#[derive(Debug)]
pub(super) struct ByteMap<V> {
    tree: BTreeMap<Place, (Rc<[u8]>, V)>,
    /// How many keys are not the first with their hash: mostly none.
    later_len: usize,
    hasher: DefaultHashBuilder,
}

impl<V> Default for ByteMap<V> {
    fn default() -> Self {
        Self { tree: BTreeMap::new(), later_len: 0, hasher: DefaultHashBuilder::default() }
    }
}

impl<V> ByteMap<V> {
    pub(super) fn len(&self) -> usize {
        self.tree.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    /// Where a key stands, as it is kept here, and its value.
    fn entry(&self, key: &[u8]) -> Option<(Place, &Rc<[u8]>, &V)> {
        let first = self.first_place(key);
        if self.later_len == 0 {
            let (own, value) = self.tree.get(&first)?;
            return (**own == *key).then_some((first, own, value));
        }
        let mut same_hash = self.tree.range(first..=first.last());
        let (place, (own, value)) = same_hash.find(|(_, (own, _))| **own == *key)?;
        Some((*place, own, value))
    }

    /// The key as it is kept here, and its value.
    pub(super) fn get(&self, key: &[u8]) -> Option<(&Rc<[u8]>, &V)> {
        self.entry(key).map(|(_, own, value)| (own, value))
    }

    /// Adds a key that is not there.
    pub(super) fn insert(&mut self, key: Rc<[u8]>, value: V) {
        let mut place = self.first_place(&key);
        // That the numbers do not suffice cannot be: the seed of the hash is drawn by chance.
        while self.tree.contains_key(&place) && place != place.last() {
            place.0 += 1;
        }
        self.later_len += usize::from(place != self.first_place(&key));
        self.tree.insert(place, (key, value));
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        if let Some((place, ..)) = self.entry(key) {
            self.later_len -= usize::from(place != self.first_place(key));
            self.tree.remove(&place);
        }
    }

    /// All keys after a place, from the first on if none is given.
    pub(super) fn after(&self, place: Option<Place>) -> impl Iterator<Item = (Place, &Rc<[u8]>)> {
        let from = place.map_or(Bound::Unbounded, Bound::Excluded);
        self.tree.range((from, Bound::Unbounded)).map(|(place, (key, _))| (*place, key))
    }

    fn first_place(&self, key: &[u8]) -> Place {
        Place(self.hasher.hash_one(key) & !Place::NUMBERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_one_hash_are_told_apart() {
        let mut map = ByteMap::default();
        let first = map.first_place(b"a");
        // Another key stands where `a` belongs, as if it had the same hash.
        map.tree.insert(first, (b"b".as_slice().into(), 1));
        assert!(map.get(b"a").is_none());
        map.insert(b"a".as_slice().into(), 2);
        assert_eq!(map.get(b"a").unwrap().1, &2);
        assert_eq!(map.after(None).count(), 2);
        map.tree.remove(&first);
        assert_eq!(map.get(b"a").unwrap().1, &2);
        assert_eq!(map.after(Some(first)).count(), 1);
        map.remove(b"a");
        assert!(map.is_empty());
    }
}
