//! One token's hold of one lock.

use smallvec::SmallVec;

use crate::alloc_size::allocated;

/// One token's hold of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The owner's identity, 1 to 255 bytes. The usual ones, such as UUIDs, need no allocation.
    pub token: SmallVec<[u8; 40]>,
    /// The fencing number of this hold, unique within the lock.
    pub fence: u64,
    /// When the hold began, in Unix milliseconds.
    pub since_ms: u64,
    /// When the hold ends, in Unix milliseconds. At this very millisecond it has ended.
    pub deadline_ms: u64,
    /// The owner's note to whoever looks; empty for none.
    pub meta: Box<[u8]>,
}

impl Holder {
    /// Whether the hold is in force at `now_ms`.
    #[must_use]
    pub fn is_live(&self, now_ms: u64) -> bool {
        self.deadline_ms > now_ms
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        let token = if self.token.spilled() { allocated(self.token.capacity()) } else { 0 };
        allocated(self.meta.len()) + token
    }
}
