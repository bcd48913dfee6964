// SPDX-License-Identifier: MIT OR Apache-2.0

//! Locks of the SLOCK module for Redis and Valkey.
//!
//! Any client can send the commands of the module. This library adds what a server cannot do: it renews a lock while work
//! goes on, ends the work if the lock is lost, takes one lock on several independent servers, and cleans up when a future is
//! dropped.
//!
//! Begin with [`Locks`]. Programs without async use [`blocking`].

mod acquisition;
#[cfg(feature = "blocking")]
pub mod blocking;
mod client;
mod clock;
#[cfg(feature = "cluster")]
mod cluster;
mod errors;
mod hold;
mod hooks;
mod info;
mod link;
mod listener;
mod locks;
#[cfg(feature = "testing")]
mod memory;
mod node;
mod options;
mod protocol;
mod quorum;
mod request;
#[cfg(feature = "sentinel")]
mod sentinel;
mod server;
mod shared;
mod slot;
#[cfg(feature = "testing")]
pub mod testing;
mod transport;
mod watchdog;

pub use errors::{Details, Error, NodeReply, Reason};
pub use hold::Hold;
pub use hooks::Hooks;
pub use info::{Holder, Info, Mode, Queue, Waiter};
pub use locks::{Locks, LocksBuilder};
pub use options::Poll;
/// The version of the redis crate whose clients [`Locks`] takes.
pub use redis;
pub use request::Request;
pub use server::{Quorum, Server};

/// Shows the name of a type and what its methods say, and so no owner token and no password.
macro_rules! debug {
    ($($type:ty: $($shown:ident)*;)*) => { $(
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($type))
                    $(.field(stringify!($shown), &self.$shown()))*
                    .finish_non_exhaustive()
            }
        }
    )* };
}

debug! { Hold: keys mode; Locks:; LocksBuilder:; Quorum:; Request:; Server:; }
#[cfg(feature = "testing")]
debug! { testing::MemoryServer:; }

#[cfg(test)]
#[path = "../tests/unit/parts.rs"]
mod parts;

/// The examples of the README, compiled as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
