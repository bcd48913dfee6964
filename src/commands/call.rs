//! What the commands share: they are the primary's, run one operation, and answer errors.

use smallvec::{SmallVec, smallvec};

use slock_core::{LockError, LockManager, Timestamp};

use crate::errors::{error_reply, in_use};
use crate::keyspace::Keyspace;
use crate::runtime;
use crate::server::{Reply, Str};
use crate::state::{self, State};

/// Decisions are the primary's, also where a replica takes writes from its own clients. And no log
/// decides: what it holds are effects.
pub fn on_primary() -> Result<(), Reply> {
    if state::with(State::only_follows) {
        return Err(Reply::Error("READONLY You can't write against a read only replica.".into()));
    }
    Ok(())
}

/// Runs an operation of the manager. Its result, or the error reply.
pub fn operate<'c, R>(
    store: Keyspace<'c>,
    operation: impl FnOnce(&mut LockManager, &mut Keyspace<'c>, Timestamp) -> Result<R, LockError>,
) -> Result<R, Reply> {
    runtime::operate(store, operation).ok_or_else(in_use)?.map_err(|error| error_reply(&error))
}

/// The names of these keys.
pub fn names<'a>(keys: &[Str<'a>]) -> SmallVec<[&'a [u8]; 1]> {
    match keys {
        [key] => smallvec![key.bytes()],
        _ => keys.iter().map(|key| key.bytes()).collect(),
    }
}
