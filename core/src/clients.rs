//! What the core asks about the clients that wait, whom it does not know.

use crate::error::LockError;
use crate::ids::RequestId;
use crate::queue::Waiter;

/// Who waits.
pub trait Clients {
    /// Whether a request that can be granted now on these names may still be. Asked right before the grant.
    ///
    /// # Errors
    /// Why not. The wait ends with this error, and the next is served.
    fn may_be_granted(
        &mut self,
        request: RequestId,
        waiter: &Waiter,
        names: &[&[u8]],
    ) -> Result<(), LockError>;
}
