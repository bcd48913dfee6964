//! How the core reaches locks that it does not keep.

use crate::desk::Refusal;
use crate::effect::{Effect, Event};
use crate::fence::Moment;
use crate::lock::{Holder, Lock, Mode};
use crate::queue::PlaceRef;

/// Where the locks are.
pub trait Space {
    /// What stands under this name.
    fn look(&mut self, place: PlaceRef<'_>) -> Seen<'_>;

    /// Makes an effect on a lock last, and makes it known. A `Hold` makes the lock if there is none;
    /// a lock that is left without holders goes.
    fn apply(&mut self, place: PlaceRef<'_>, effect: &Effect<'_>, event: Event);

    /// When the lock under this name goes by itself, in Unix milliseconds, if that is known to be
    /// before its last deadline: somebody has set the key's expiry.
    fn collected_ms(&mut self, _place: PlaceRef<'_>) -> Option<u64> {
        None
    }

    /// The token has a new hold here, which ends with this connection too, or with none. An upgrade,
    /// a downgrade and a refresh are the same hold in this respect: the connection that acquired it
    /// is the one that counts.
    fn bind(&mut self, _place: PlaceRef<'_>, _token: &[u8], _connection: Option<u64>) {}

    /// The connection that the token's hold here ends with, if with any.
    fn bound(&self, _place: PlaceRef<'_>, _token: &[u8]) -> Option<u64> {
        None
    }

    /// Whether this connection is still there.
    fn is_connected(&self, _connection: u64) -> bool {
        true
    }
}

/// What a name leads to.
#[derive(Debug)]
pub enum Seen<'a> {
    /// A lock, or nothing, which is as good as a free lock.
    Lock(Option<&'a Lock>),
    /// A value of another type.
    OtherType,
    /// Another node of the cluster has the name now.
    Elsewhere,
}

/// The lock under this name, if the name can have one.
pub(crate) fn lock_at<'s>(
    space: &'s mut impl Space,
    place: PlaceRef<'_>,
) -> Result<Option<&'s Lock>, Refusal> {
    match space.look(place) {
        Seen::Lock(lock) => Ok(lock),
        Seen::OtherType => Err(Refusal::WrongType),
        Seen::Elsewhere => Err(Refusal::Elsewhere),
    }
}

/// The hold that the token has in force here, and its mode.
pub(crate) fn hold_at(
    space: &mut impl Space,
    place: PlaceRef<'_>,
    token: &[u8],
    now: Moment,
) -> Option<(Mode, Holder)> {
    let lock = lock_at(space, place).ok()??;
    lock.holder(token, now.ms()).map(|own| (lock.mode(), own.clone()))
}
