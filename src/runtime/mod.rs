// SPDX-License-Identifier: MIT OR Apache-2.0

//! What runs while the module is loaded, and what it works with.
//!
//! | file | owns |
//! |---|---|
//! | `operate` | an operation for a command; leaving its client waiting |
//! | `working_state` | the `Runtime`: what operations work with, when the timer is due |
//! | `end_of_turn` | the timer function, in which waiting requests are granted |
//! | `notify` | channels: who listens, and the messages |
//! | `server_events` | what the server tells us: keys, flushes, connections, roles, configuration |
//! | `schedule` | the timers; looks at all of a crowd, in slices |
//! | `waiting_clients` | those who wait, and who asked |
//! | `write_gate` | whether the timer may write now |
//!
//! Commands and the timer borrow the [`Runtime`] for one operation. The server may call us back in the
//! middle of it: a key that is opened expires, and a subscriber of another module runs commands. What such
//! a callback has to say is a [`notice`]; it is taken note of at once where the runtime is free, else when
//! it is. What a callback must be able to read at any time is in `state`.
//!
//! The clock is nobody's: it is read once for each decision, by `server::now`.

mod end_of_turn;
mod notify;
mod operate;
mod schedule;
mod server_events;
mod waiting_clients;
mod working_state;
mod write_gate;

pub use notify::check_channel;
pub use operate::{acquire, look, on_primary, operate};
pub use server_events::{ServerEvents, start};
pub use working_state::{Runtime, key_changed, notice, try_with_runtime};
