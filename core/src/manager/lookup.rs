//! What an operation sees of the locks that it has opened.

use crate::error::LockError;
use crate::ids::HoldRef;
use crate::lock::{Holder, Lock};
use crate::store::{LockStore, Lookup};
use crate::time::Timestamp;

/// The lock at this position, if the name can have one.
pub(super) fn lock_at(store: &impl LockStore, at: usize) -> Result<Option<&Lock>, LockError> {
    match store.get(at) {
        Lookup::Lock(lock) => Ok(lock),
        Lookup::OtherType => Err(LockError::WrongType),
        Lookup::NotServed => Err(LockError::NotServed),
    }
}

/// The hold that is meant, if it is in force at this position.
pub(super) fn hold_at<'s>(
    store: &'s impl LockStore,
    at: usize,
    hold: HoldRef<'_>,
    now: Timestamp,
) -> Result<Option<&'s Holder>, LockError> {
    let own = lock_at(store, at)?.and_then(|lock| lock.holder(hold.token, now.unix_ms()));
    Ok(own.filter(|own| hold.means(own.fence)))
}
