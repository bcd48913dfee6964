//! Owners who have given a lock up: what they ask for from then on is refused for a while.

use super::lock_manager::LockManager;
use super::operation::Open;
use crate::error::LockError;
use crate::ids::LockIdRef;
use crate::refused_tokens::RefusedTokens;
use crate::store::LockStore;
use crate::time::Timestamp;

/// As many that have ended are forgotten at a time: a moment's work.
const FORGOTTEN_AT_ONCE: usize = 500;

impl LockManager {
    /// For so many milliseconds no request gives the token this lock anew, upgrades it or waits for it. What
    /// waits already goes by [`LockManager::cancel`].
    pub fn refuse(&mut self, now: Timestamp, lock: LockIdRef<'_>, token: &[u8], ms: u64) {
        let now_ms = now.monotonic_ms();
        let is_one_forgotten = self.refused_tokens.insert(lock, token, now_ms, now_ms.saturating_add(ms));
        self.counters.refused_tokens_dropped += u64::from(is_one_forgotten);
    }

    /// Who is refused.
    #[must_use]
    pub fn refused_tokens(&self) -> &RefusedTokens {
        &self.refused_tokens
    }

    /// Forgets some of those whose time is up. To be called now and then; nothing depends on it but memory.
    pub fn forget_ended_refusals(&mut self, now: Timestamp) {
        self.refused_tokens.drop_ended(now.monotonic_ms(), FORGOTTEN_AT_ONCE);
    }

    /// Whether a request that is no refresh is refused at one of its names.
    pub(super) fn check_not_refused(
        &mut self,
        open: &Open<'_, impl LockStore>,
        token: &[u8],
    ) -> Result<(), LockError> {
        if self.refused_tokens.is_empty() {
            return Ok(());
        }
        let left_ms = |lock| self.refused_tokens.left_ms(lock, token, open.now().monotonic_ms());
        let Some(left_ms) = open.ids().filter_map(left_ms).max() else { return Ok(()) };
        self.counters.cancelled += 1;
        Err(LockError::Cancelled(left_ms))
    }
}
