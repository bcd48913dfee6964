//! The requests of a token: mostly one, which needs no allocation.

use std::collections::BTreeSet;

use crate::ids::RequestId;

/// Requests, the oldest first. Never empty.
#[derive(Debug)]
pub(super) enum RequestSet {
    One(RequestId),
    /// Several. In a box, because nearly all sets have one.
    #[allow(clippy::box_collection)]
    Many(Box<BTreeSet<RequestId>>),
}

/// One more or one less.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    Up,
    Down,
}

impl RequestSet {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(many) => many.len(),
        }
    }

    pub(super) fn first(&self) -> Option<RequestId> {
        self.iter().next()
    }

    /// The first one after `after`.
    pub(super) fn next(&self, after: Option<RequestId>) -> Option<RequestId> {
        let from = after.map_or(RequestId::FIRST, RequestId::next);
        match self {
            Self::One(one) => Some(*one).filter(|one| *one >= from),
            Self::Many(many) => many.range(from..).next().copied(),
        }
    }

    #[cfg(test)]
    pub(super) fn contains(&self, request: RequestId) -> bool {
        match self {
            Self::One(one) => *one == request,
            Self::Many(many) => many.contains(&request),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = RequestId> {
        let (one, many) = match self {
            Self::One(one) => (Some(*one), None),
            Self::Many(many) => (None, Some(many.iter().copied())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    pub(super) fn insert(&mut self, request: RequestId) {
        match self {
            Self::One(one) => *self = Self::Many(Box::new(BTreeSet::from([*one, request]))),
            Self::Many(many) => drop(many.insert(request)),
        }
    }

    /// Removes one of several. False if it is the only one: then the set has to go.
    pub(super) fn remove(&mut self, request: RequestId) -> bool {
        match self {
            Self::One(one) => *one != request,
            Self::Many(many) => {
                many.remove(&request);
                if let (1, Some(last)) = (many.len(), many.first().copied()) {
                    *self = Self::One(last);
                }
                true
            }
        }
    }
}
