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

/// The most requests of one token that one user may have waiting on a server. An owner who waits for more is a
/// mistake, and so is a token that many share.
pub const REQUESTS_OF_TOKEN_MAX: usize = 1024;

/// An effect drops so many of the holders that have ended, at most. What remains in the table holds nothing, and goes
/// with the effects that follow. All servers that share locks must have the same number: else copies are not equal to
/// the byte.
pub const DROPPED_AT_ONCE: usize = 500;

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
