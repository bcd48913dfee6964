// SPDX-License-Identifier: MIT OR Apache-2.0

//! One token's hold of one lock, in as few bytes as it takes: there may be millions.

use crate::alloc_size::allocated;

/// The longest token that needs no allocation: 128 random bits in base 64 have so many.
const SHORT_BYTES: usize = 22;

/// One token's hold of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    words: Words,
    /// The fencing number of this hold, unique within the lock.
    pub fence: u64,
    /// When the hold ends, in Unix milliseconds. At this very millisecond it has ended.
    pub deadline_ms: u64,
}

const _: () = assert!(size_of::<Holder>() == 40);

/// The token, and what only some holds have.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Words {
    /// A short token, and nothing else. What is behind it is zero.
    Short { token_len: u8, token: [u8; SHORT_BYTES] },
    /// The token, the metadata, and when the hold began where its fence does not say it.
    Long { token_len: u16, has_start: bool, bytes: Box<[u8]> },
}

impl Holder {
    /// A hold of the owner with this token, of 1 to 255 bytes, and the metadata of the hold; empty for none.
    #[must_use]
    #[inline(always)]
    pub fn new(token: &[u8], meta: &[u8], fence: u64, since_ms: u64, deadline_ms: u64) -> Self {
        let has_start = since_ms != start_ms(fence);
        let words = if token.len() <= SHORT_BYTES && meta.is_empty() && !has_start {
            let mut short = [0; SHORT_BYTES];
            short[..token.len()].copy_from_slice(token);
            Words::Short { token_len: token.len() as u8, token: short }
        } else {
            let start = since_ms.to_le_bytes();
            let start = if has_start { &start[..] } else { &[] };
            Words::Long {
                token_len: token.len() as u16,
                has_start,
                bytes: [token, meta, start].concat().into(),
            }
        };
        Self { words, fence, deadline_ms }
    }

    /// The owner's identity.
    #[must_use]
    #[inline(always)]
    pub fn token(&self) -> &[u8] {
        match &self.words {
            Words::Short { token_len, token } => &token[..usize::from(*token_len)],
            Words::Long { token_len, bytes, .. } => &bytes[..usize::from(*token_len)],
        }
    }

    /// The metadata of the hold; empty for none.
    #[must_use]
    pub fn meta(&self) -> &[u8] {
        match &self.words {
            Words::Short { .. } => &[],
            Words::Long { token_len, has_start, bytes } => {
                let behind = if *has_start { size_of::<u64>() } else { 0 };
                &bytes[usize::from(*token_len)..bytes.len() - behind]
            }
        }
    }

    /// When the hold began, in Unix milliseconds.
    #[must_use]
    pub fn since_ms(&self) -> u64 {
        match &self.words {
            Words::Long { has_start: true, bytes, .. } => {
                bytes.last_chunk().map_or(0, |start| u64::from_le_bytes(*start))
            }
            Words::Short { .. } | Words::Long { .. } => start_ms(self.fence),
        }
    }

    /// Whether the hold is in force at `now_ms`.
    #[must_use]
    pub fn is_live(&self, now_ms: u64) -> bool {
        self.deadline_ms > now_ms
    }

    pub(super) fn heap_bytes(&self) -> usize {
        match &self.words {
            Words::Short { .. } => 0,
            Words::Long { bytes, .. } => allocated(bytes.len()),
        }
    }

    /// What it has on the heap, if anything.
    pub(super) fn bytes_mut(&mut self) -> Option<&mut Box<[u8]>> {
        match &mut self.words {
            Words::Short { .. } => None,
            Words::Long { bytes, .. } => Some(bytes),
        }
    }
}

/// When a hold with this fence mostly began: fences are drawn from the clock, in microseconds.
fn start_ms(fence: u64) -> u64 {
    fence / 1000
}
