//! Which hold ends with which connection; for tests.

use super::*;

impl EphemeralHolds {
    /// Of each hold on each of its locks: fence, token, lock, whether its connection has closed, and when it is looked at
    /// next.
    pub(in crate::manager) fn describe(&self) -> impl Iterator<Item = (u64, &[u8], &[u8], bool, u64)> {
        self.by_fence.iter().flat_map(|(fence, hold)| {
            let has_closed = self.closed.contains(&hold.connection);
            hold.names.iter().map(move |name| (*fence, &*hold.token, &**name, has_closed, hold.check_ms))
        })
    }
}
