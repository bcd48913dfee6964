// SPDX-License-Identifier: MIT OR Apache-2.0

//! The bytes of a stored lock: in an RDB file, in a `DUMP` payload, in a full sync, in a digest.
//!
//! # Format, version 1
//!
//! ```text
//! offset  bytes  what
//! 0       1      version: 1
//! 1       1      whether it is held for write: 0 read, 1 write
//! 2       v      number of holders, 1 or more; exactly 1 if held for write
//! then for each holder, in strictly rising order of its fence:
//!         v      length of the token in bytes, 1 to 255
//!         n      the token
//!         v      fence, 1 to 2^53 - 1
//!         v      since: start of the hold, Unix milliseconds, up to 2^53 - 1
//!         v      deadline: end of the hold, Unix milliseconds, up to 2^53 - 1
//!         v      length of the metadata in bytes, 0 to 1024
//!         n      the metadata
//! and nothing after the last holder.
//! ```
//!
//! `v` is bincode's variable-length integer: one byte for 0 to 250; else the byte 251, 252 or 253
//! and then the value in 2, 4 or 8 bytes, little-endian, always in the shortest form. No token
//! occurs twice.
//!
//! The order and the shortest form make the encoding canonical: equal locks have equal bytes, which
//! is what a digest needs, and [`decode`] refuses all others.
//!
//! The last fence is stored beside the locks: as auxiliary data of an RDB file, see `datatype` in the module.
//!
//! # Changing it
//!
//! A new version gets a new number and a new `StoredV2` beside the old one; [`decode`] goes by the
//! first byte and never stops reading the old ones. The golden bytes in the tests do not change.

use bincode::config::{Configuration, standard};
use serde::{Deserialize, Serialize};

use crate::limits::{META_MAX_BYTES, NUMBER_MAX, is_fence, is_token};
use crate::lock::{Holder, Lock};
use crate::mode::Mode;

/// The version this code writes, and the first byte of what it writes.
pub const VERSION: u8 = 1;

const CONFIG: Configuration = standard();

/// No holder takes fewer bytes: two lengths, one byte of token, three numbers.
const LEAST_HOLDER_BYTES: u64 = 6;

#[derive(Serialize, Deserialize)]
struct StoredV1<'a> {
    writer: bool,
    #[serde(borrow)]
    holders: Vec<StoredHolderV1<'a>>,
}

#[derive(Serialize, Deserialize)]
struct StoredHolderV1<'a> {
    token: &'a [u8],
    fence: u64,
    since_ms: u64,
    deadline_ms: u64,
    meta: &'a [u8],
}

/// Why bytes are not a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Nothing at all.
    Empty,
    /// A version that this code does not know.
    Version(u8),
    /// The bytes end early, go on too long, or are no encoding at all.
    Syntax,
    /// The parts contradict each other or break a limit.
    Inconsistent,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Empty => out.write_str("no bytes"),
            Self::Version(version) => write!(out, "format version {version}, this build reads {VERSION}"),
            Self::Syntax => out.write_str("truncated or damaged"),
            Self::Inconsistent => out.write_str("inconsistent holders"),
        }
    }
}

impl std::error::Error for Malformed {}

/// The bytes of a lock. Equal locks have equal bytes.
#[must_use]
pub fn encode(lock: &Lock) -> Vec<u8> {
    let stored = StoredV1 {
        writer: lock.mode() == Mode::Write,
        holders: lock
            .holders()
            .map(|holder| StoredHolderV1 {
                token: holder.token(),
                fence: holder.fence,
                since_ms: holder.since_ms(),
                deadline_ms: holder.deadline_ms,
                meta: holder.meta(),
            })
            .collect(),
    };
    stored.to_bytes()
}

impl StoredV1<'_> {
    fn to_bytes(&self) -> Vec<u8> {
        // Enough for a lock with one holder and no long metadata.
        let mut bytes = Vec::with_capacity(128);
        bytes.push(1);
        bincode::serde::encode_into_std_write(self, &mut bytes, CONFIG)
            .expect("writing to memory cannot fail");
        bytes
    }
}

/// The lock that these bytes describe. Never panics and never allocates more than a small multiple
/// of what it was given.
///
/// # Errors
/// [`Malformed`] for anything but the exact bytes of a lock that obeys every limit.
pub fn decode(bytes: &[u8]) -> Result<Lock, Malformed> {
    match bytes.split_first() {
        None => Err(Malformed::Empty),
        Some((1, body)) => decode_v1(body),
        Some((version, _)) => Err(Malformed::Version(*version)),
    }
}

fn decode_v1(body: &[u8]) -> Result<Lock, Malformed> {
    // Before anything is reserved for them: there cannot be more holders than bytes.
    let ((_, count), _) =
        bincode::decode_from_slice::<(bool, u64), _>(body, CONFIG).map_err(|_| Malformed::Syntax)?;
    if count > body.len() as u64 / LEAST_HOLDER_BYTES {
        return Err(Malformed::Syntax);
    }
    let (stored, _) = bincode::serde::borrow_decode_from_slice::<StoredV1<'_>, _>(body, CONFIG)
        .map_err(|_| Malformed::Syntax)?;
    let within_limits = |holder: &StoredHolderV1<'_>| {
        is_token(holder.token)
            && is_fence(holder.fence)
            && holder.since_ms <= NUMBER_MAX
            && holder.deadline_ms <= NUMBER_MAX
            && holder.meta.len() <= META_MAX_BYTES
    };
    // The decoder accepts integers that are longer than necessary, and bytes behind the last holder.
    if stored.to_bytes()[1..] != *body {
        return Err(Malformed::Syntax);
    }
    let rising = stored.holders.windows(2).all(|pair| pair[0].fence < pair[1].fence);
    if !rising || !stored.holders.iter().all(within_limits) {
        return Err(Malformed::Inconsistent);
    }
    let mode = if stored.writer { Mode::Write } else { Mode::Read };
    let holders = stored
        .holders
        .iter()
        .map(|holder| {
            Holder::new(holder.token, holder.meta, holder.fence, holder.since_ms, holder.deadline_ms)
        })
        .collect();
    Lock::from_parts(mode, holders).ok_or(Malformed::Inconsistent)
}
