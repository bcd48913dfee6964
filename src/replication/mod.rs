//! What replicas and the log see.
//!
//! Every change of a lock, also the grant to a request that has waited, is one effect. If anybody listens, it is sent
//! as one `SLOCK.APPLY` by `keyspace::Keyspace::commit`, before its owner is told; as the server's own `DEL`, which is
//! shorter, where it has left nobody who holds the lock. (`Keyspace::give_expiry`
//! sends one that changes nothing but the key's expiry.) A server that applies it runs `commands::apply`; its
//! form is the core's, `slock_core::wire`. Waiting itself is
//! never replicated.
//!
//! | file | owns |
//! |---|---|
//! | `listeners` | whether anybody listens: what nobody hears is not sent |
//! | `plausible` | which fences and deadlines are believed that come from outside |

mod listeners;
mod plausible;

pub use listeners::{has_listeners, look_again};
pub use plausible::{deadline_is_plausible, fence_is_plausible};
use slock_core::{Effect, wire};

use crate::server::{Ctx, Str};

/// Sends an effect to replicas and the log.
pub fn send(ctx: Ctx<'_>, name: Str<'_>, effect: &Effect<'_>) {
    let (line, meta) = wire::write(effect);
    ctx.replicate(name, &line, meta);
}
