//! The rules of the SLOCK read-write lock.
//!
//! This crate owns every decision: who may hold a lock, until when, with which fence, and who is
//! next. It knows no server, reads no clock and does no I/O: time is passed in as a [`Moment`], and
//! whatever is stored lies behind the [`Space`] trait. What a decision changes is a value, an
//! [`Effect`], which the caller stores, replicates and announces; where there is no effect there is
//! nothing to replicate.
//!
//! | module | owns |
//! |---|---|
//! | [`lock`] | one lock: its mode, its holders, what may be granted, how an effect changes it |
//! | [`effect`] | the changes a lock can undergo, in absolute time |
//! | [`fence`] | the server-wide fencing counter and the moment a decision is made at |
//! | [`queue`] | the requests that wait, in order, over any number of names |
//! | [`desk`] | every operation from request to answer: decides, applies, hands on to the next |
//! | `deadlock` | the search for owners that would wait for each other |
//! | `space` | how the core reaches locks that it does not keep |
//! | [`encoding`] | the bytes of a stored lock |
//! | [`limits`] | the bounds on tokens, metadata, times and fences |

mod deadlock;
pub mod desk;
pub mod effect;
pub mod encoding;
pub mod fence;
mod footprint;
mod holders;
pub mod limits;
pub mod lock;
pub mod queue;
mod space;

pub use deadlock::Step;
pub use desk::{Answer, Ask, Desk, Outcome, Parting, Patience, Refusal};
pub use effect::{Change, Effect, Event};
pub use fence::{Fences, Moment};
pub use lock::{Holder, Lock, Mode, Want};
pub use queue::{Place, PlaceRef, Ticket, Waiter};
pub use space::{Seen, Space};

#[cfg(test)]
mod tests;
