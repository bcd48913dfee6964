// SPDX-License-Identifier: MIT OR Apache-2.0

//! The bounds that hold for every lock, however it came into being.

/// The longest token, in bytes. The shortest has one.
pub const TOKEN_MAX_BYTES: usize = 255;

/// The longest metadata of a hold, in bytes. None at all is the same as zero bytes.
pub const META_MAX_BYTES: usize = 1024;

/// The greatest instant and the greatest fence that a stored lock may carry: 2^53 - 1, the greatest
/// integer that JSON, Lua and JavaScript represent exactly. Instants in milliseconds and fences in
/// microseconds reach it after the year 2255; a payload that carries more is not one of ours.
pub const NUMBER_MAX: u64 = (1 << 53) - 1;

/// The most names that one request may ask for.
pub const NAMES_MAX: usize = 1024;

/// The longest name of a lock that a request may ask for, in bytes. The shortest has one. What came under another name
/// (by `RENAME`, say) can still be released.
pub const NAME_MAX_BYTES: usize = 1024;

/// The most places in queues that the waiting requests of one token by one user may have. An owner who waits for more
/// is a mistake, and so is a token that many share. It is as many as one request may need, and so few that all of them
/// can be left in one step.
pub const PLACES_OF_TOKEN_MAX: usize = NAMES_MAX;

/// An effect drops so many of the holders that have ended, at most. What remains in the table holds nothing, and goes
/// with the effects that follow. All servers that share locks must have the same number: else copies are not equal to
/// the byte.
pub const DROPPED_AT_ONCE: usize = 500;

/// Whether a request may ask for a lock of this name.
#[must_use]
pub fn is_name(bytes: &[u8]) -> bool {
    (1..=NAME_MAX_BYTES).contains(&bytes.len())
}

/// Whether these bytes can be a token.
#[must_use]
pub fn is_token(bytes: &[u8]) -> bool {
    (1..=TOKEN_MAX_BYTES).contains(&bytes.len())
}

/// Whether this number can be a fence.
#[must_use]
pub fn is_fence(number: u64) -> bool {
    (1..=NUMBER_MAX).contains(&number)
}
