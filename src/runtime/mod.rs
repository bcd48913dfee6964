//! What runs while the module is loaded.
//!
//! | file | owns |
//! |---|---|
//! | `for_commands` | an operation for a command; leaving its client waiting |
//! | `end_of_turn` | the timer function, in which waiting requests are granted |
//! | `server_events` | what the server tells us: keys, flushes, connections, roles, configuration |
//!
//! Its state (queue, timer, blocked clients) is in `state`.

mod end_of_turn;
mod for_commands;
mod server_events;

pub use for_commands::{Acquired, acquire, consult_with_keys, operate};
pub use server_events::{DATATYPE_HOOKS, EVENT_HOOKS, start};
