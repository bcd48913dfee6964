//! What the table says of a token; for tests.

use super::*;

impl RevokedTokens {
    /// For how many milliseconds from now the token is revoked for this lock, if it is, and whether it has lost a hold
    /// of it by that.
    pub(crate) fn described(&self, lock: LockIdRef<'_>, token: &[u8], now: Timestamp) -> Option<(u64, bool)> {
        Some((self.left_ms(lock, token, now)?, self.entry(lock, token)?.is_released))
    }
}
