//! Read-write locks of the SLOCK module for Redis and Valkey.
//!
//! Any client can send the commands of the module. This library adds what a server cannot do: it renews a
//! hold while work goes on, ends the work when the hold is lost, takes one lock on several independent
//! servers, and cleans up when a future is dropped.

#![deny(missing_docs)]

mod acquisition;
mod answers;
mod blocking;
mod cached;
mod clock;
mod cluster;
mod commands;
mod connection;
mod errors;
mod hold;
mod hooks;
mod lease;
mod locks;
mod mode;
mod node;
mod options;
mod polling;
mod quorum;
mod request;
mod servers;
mod shared;
mod single;
mod slot;
mod status;
mod watchdog;

pub use errors::{Answer, Error, NodeAnswer, Reason};
pub use hold::{HoldOf, HoldViewOf, Site};
pub use hooks::{Hooks, Outcome};
pub use locks::{BuilderOf, Locks, LocksBuilder, LocksOf};
pub use options::{Mode, Waiting};
pub use polling::Poll;
pub use quorum::{Majority, Quorum, QuorumBuilder, QuorumHold, QuorumHoldView};
/// The version of the base library whose clients [`Locks`] takes.
pub use redis;
pub use request::Request;
pub use servers::Server;
pub use shared::Single;
pub use single::{Hold, HoldView};
pub use status::{Holder, Info, Queue, Waiter};

/// The examples of the README, compiled as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
