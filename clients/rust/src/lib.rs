//! Read-write locks of the SLOCK module for Redis and Valkey.
//!
//! Any client can send the commands of the module. This library adds what a server cannot do: it renews a
//! hold while work goes on, ends the work when the hold is lost, takes one lock on several independent
//! servers, and cleans up when a future is dropped.

#![deny(missing_docs)]

mod answer;
mod attempt;
mod background;
mod backoff;
mod blocked;
mod closing;
mod cluster;
mod command;
mod error;
mod give_up;
mod given_tokens;
mod hold;
mod keys;
mod lease;
mod listening;
mod locks;
mod mode;
mod node;
mod observer;
mod on_its_way;
mod options;
mod poll;
mod quorum;
mod random;
mod renewal;
mod replicas;
mod request;
mod route;
mod servers;
mod slot;
mod turns;
mod watchdog;

pub use error::{Answer, Error, NodeAnswer, Reason};
pub use hold::{Hold, HoldView};
pub use keys::IntoKeys;
pub use locks::{Locks, LocksBuilder, Waiting};
pub use mode::Mode;
pub use observer::{Observer, Outcome};
pub use poll::Poll;
pub use quorum::{Quorum, QuorumBuilder, QuorumHold, QuorumHoldView, QuorumRequest};
pub use request::Request;
pub use servers::Server;

/// The examples of the README, compiled as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
