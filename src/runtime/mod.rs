//! What runs while the module is loaded: operations for commands, the timer that serves the queues, and what
//! the server tells us.
//!
//! | file | owns |
//! |---|---|
//! | `state` | the module's state and the one way to reach it |
//! | `operate` | an operation for a command; leaving its client waiting |
//! | `tick` | the timer function: the one place where waiting requests are granted |
//! | `hooks` | what the server tells us: keys, flushes, connections, roles, configuration |
//! | `waiters` | blocked clients, by request |
//! | `timer` | when the timer function runs next |
//! | `write_gate` | whether the timer may write now |

mod hooks;
mod operate;
pub mod state;
mod tick;
mod timer;
mod waiters;
mod write_gate;

pub use hooks::{DATATYPE_HOOKS, EVENT_HOOKS, deadline_is_plausible, fence_is_plausible, open};
pub use operate::{acquire, consult, operate};
