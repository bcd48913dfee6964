//! The values of the settings. Their names and bounds are in `config`.

use std::cell::Cell;

/// The longest ttl that [`Settings::max_ttl_ms`] may allow: a year.
pub const TTL_MAX_MS: i64 = 31_536_000_000;

/// See the module.
pub struct Settings {
    /// The longest ttl that a command may ask for.
    pub max_ttl_ms: Cell<i64>,
    /// How many requests may wait at a time, on the whole server.
    pub max_waiters: Cell<i64>,
    /// For how long after a start no new hold is given.
    pub restart_grace_ms: Cell<i64>,
    /// Whether ordinary clients may use `SLOCK.APPLY`, to feed a stream of changes into this server.
    pub allow_apply: Cell<bool>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_ttl_ms: Cell::new(86_400_000),
            max_waiters: Cell::new(100_000),
            restart_grace_ms: Cell::new(0),
            allow_apply: Cell::new(false),
        }
    }
}
