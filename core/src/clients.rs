//! What the core asks about the clients that wait, whom it does not know.

use std::rc::Rc;

use crate::error::LockError;
use crate::queue::Waiter;

/// The name of a user; `None` for who comes from no connection and may do everything.
pub type UserName = Option<Rc<[u8]>>;

/// Who asks, and by which command: its permissions may have changed by the time of the grant.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Caller {
    /// The user.
    pub user: UserName,
    /// The command, as it was sent but in small letters.
    pub command: Rc<[u8]>,
    /// Whether the number of keys stands before them.
    pub counts_keys: bool,
}

/// Who waits.
pub trait Clients {
    /// Whether a request that can be granted now on these names may still be. Asked right before the grant.
    ///
    /// # Errors
    /// Why not. The wait ends, and the next is served.
    fn may_be_granted(&mut self, waiter: &Waiter, names: &[&[u8]]) -> Result<(), NotGranted>;
}

/// Why a request is not granted although the lock is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotGranted {
    /// It ends with this error.
    Failed(LockError),
    /// Nobody listens to its channel any more: all requests of the channel leave, without an answer.
    Unheard,
}
