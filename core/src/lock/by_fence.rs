//! Many holders in the order of their fences.
//!
//! They stand in pieces, of which a tree leads to the right one. New holds have the greatest fences, so nearly all pieces
//! are full, and a holder takes little more than its own bytes.

use std::collections::BTreeMap;

use super::holder::Holder;

/// So many stand in a piece at most.
const PIECE: usize = 32;

/// See the file.
#[derive(Clone, Debug, Default)]
pub(super) struct ByFence {
    /// Each by a number that none of its fences is below: of the first piece 0.
    pieces: BTreeMap<u64, Vec<Holder>>,
}

impl ByFence {
    pub(super) fn get(&self, fence: u64) -> Option<&Holder> {
        let piece = self.pieces.get(&self.piece_of(fence))?;
        Some(&piece[position(piece, fence).ok()?])
    }

    /// 0 when there is none.
    pub(super) fn highest(&self) -> u64 {
        let last = self.pieces.last_key_value().and_then(|(_, piece)| piece.last());
        last.map_or(0, |holder| holder.fence)
    }

    /// Those with a fence above this one.
    pub(super) fn after_mut(&mut self, fence: u64) -> impl Iterator<Item = &mut Holder> {
        let from = self.piece_of(fence);
        self.pieces.range_mut(from..).flat_map(|(_, piece)| piece).filter(move |holder| holder.fence > fence)
    }

    /// Those with a fence above this one.
    pub(super) fn after(&self, fence: u64) -> impl DoubleEndedIterator<Item = &Holder> {
        let mut pieces = self.pieces.range(self.piece_of(fence)..);
        let first = pieces.next().map_or(&[][..], |(_, piece)| piece);
        let passed = first.partition_point(|holder| holder.fence <= fence);
        first[passed..].iter().chain(pieces.flat_map(|(_, piece)| piece))
    }

    /// Adds a holder whose fence nobody has.
    pub(super) fn insert(&mut self, holder: Holder) {
        let piece = self.pieces.entry(self.piece_of(holder.fence)).or_default();
        let (Ok(at) | Err(at)) = position(piece, holder.fence);
        if piece.len() < PIECE {
            return piece.insert(at, holder);
        }
        // Behind all others a new piece begins. Else this one is divided.
        let later = piece.split_off(if at == PIECE { PIECE } else { PIECE / 2 });
        self.pieces.insert(later.first().map_or(holder.fence, |first| first.fence), later);
        self.insert(holder);
    }

    pub(super) fn remove(&mut self, fence: u64) -> Option<Holder> {
        let key = self.piece_of(fence);
        let piece = self.pieces.get_mut(&key)?;
        let gone = piece.remove(position(piece, fence).ok()?);
        // A piece that is still more than half full is not put together with another.
        if piece.is_empty() && key > 0 {
            self.pieces.remove(&key);
        } else if piece.len() <= PIECE / 2 {
            self.join(key);
            if let Some((&before, _)) = self.pieces.range(..key).next_back() {
                self.join(before);
            }
        }
        Some(gone)
    }

    /// Most are asked about soon after they came, and stand in the last piece: that is found faster.
    fn piece_of(&self, fence: u64) -> u64 {
        match self.pieces.last_key_value() {
            Some((key, _)) if *key <= fence => *key,
            Some(_) => self.pieces.range(..=fence).next_back().map_or(0, |(key, _)| *key),
            None => 0,
        }
    }

    /// Puts this piece and the next one together, if there is room in one.
    fn join(&mut self, key: u64) {
        let mut rest = self.pieces.range_mut(key..);
        if let (Some((_, piece)), Some((&next, later))) = (rest.next(), rest.next())
            && piece.len() + later.len() <= PIECE
        {
            piece.append(later);
            self.pieces.remove(&next);
        }
    }

    /// How many bytes each piece has on the heap.
    pub(super) fn piece_bytes(&self) -> impl Iterator<Item = usize> {
        self.pieces.values().map(|piece| piece.capacity() * size_of::<Holder>())
    }
}

fn position(piece: &[Holder], fence: u64) -> Result<usize, usize> {
    piece.binary_search_by_key(&fence, |holder| holder.fence)
}
