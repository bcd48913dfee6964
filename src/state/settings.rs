// SPDX-License-Identifier: MIT OR Apache-2.0

//! The values of the settings. Their names and bounds are in `config`.

use crate::shared::Number;

/// The longest ttl that [`Settings::max_ttl_ms`] may allow: a year.
pub const TTL_MAX_MS: i64 = 31_536_000_000;

/// See the module.
pub struct Settings {
    /// The longest ttl that a command may ask for.
    pub max_ttl_ms: Number,
    /// How many places in queues there may be, on the whole server: a request for several names has one in each.
    pub max_waiters: Number,
    /// How many of them one user may have; 0 is nine tenths of them.
    pub max_waiters_per_user: Number,
    /// For how long after a start no new hold is given.
    pub restart_grace_ms: Number,
    /// Whether ordinary clients may use `SLOCK.APPLY`, to feed a stream of changes into this server: 0 or 1.
    pub allow_apply: Number,
}
