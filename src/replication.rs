// SPDX-License-Identifier: MIT OR Apache-2.0

//! What replicas and the log see.
//!
//! Every change of a lock, also the grant to a request that has waited, is one effect. If anybody listens, it is sent
//! as one `SLOCK.APPLY` by `keyspace::Keyspace::commit`, before its owner is told; as the server's own `DEL`, which is
//! shorter, where it has left nobody who holds the lock. (`Keyspace::give_expiry` sends one that changes nothing but
//! the key's expiry.) A server that applies it runs `commands::apply`; its form is the core's, `slock_core::wire`.
//! Waiting itself is never replicated.
//!
//! # Who listens
//!
//! A replica, a backlog kept for one, or the append-only file. `RM_Replicate` looks its command up and makes an object
//! of every argument before it finds that there is nobody to send it to. On a server alone that was a quarter of the
//! cost of a fresh lock. The API does not say who listens, `INFO` does; but asking it costs much, so the answer is kept
//! until something happens that can change it.
//!
//! # Why this is safe
//!
//! A listener begins with a copy of the data set, or with a backlog of what came after
//! one. A full sync, an append-only file that is turned on and a slot that is exported begin at a fork;
//! a partial sync begins at an offset that a fork, a file that was saved, or a time as a replica gave
//! away. The server announces each of these (forks, saving, loading, changes of role, `CONFIG SET`)
//! before it runs another command, and then we look again; and where we look, a backlog counts as a
//! listener. A backlog may have been there a little longer, since the first replica asked for its copy,
//! but nobody can hold an offset in it from before the announcement. In a cluster, where slots are
//! streamed to other nodes in ways of their own, somebody always listens.
//!
//! Were the answer ever wrong, [`Ctx::count_change`] would let the deciding command itself through. No
//! replica and no log ever runs one: both refuse it with an error.

use slock_core::{Effect, wire};

use crate::server::{Ctx, Str, now};
use crate::state::{STATE, TTL_MAX_MS};

/// How far beyond what this server could give now a fence or a deadline may be that comes from outside: another
/// server's clock may be ahead so much. All further fences are given above such a fence; so a fence years ahead would
/// have storage refuse every owner after a failover to a server that has not seen it.
const AHEAD_MAX_MS: u64 = 3_600_000;

/// A replica that takes writes cannot tell a `RESTORE` of its primary from one of a client. So much further
/// ahead may its numbers be, since the primary has judged them by another clock.
const OTHER_CLOCK_MS: u64 = 24 * 3600 * 1000;

/// Sends an effect to replicas and the log.
pub fn send(ctx: Ctx<'_>, name: Str<'_>, effect: &Effect<'_>) {
    let (line, meta) = wire::write(effect);
    ctx.replicate(name, &line, meta);
}

/// Whether anybody listens to what is replicated now.
#[inline(always)]
pub fn has_listeners(ctx: Ctx<'_>) -> bool {
    if !STATE.knows_listeners.get() {
        STATE.has_listeners.set(ctx.is_cluster() || ctx.info_shows_listeners());
        STATE.knows_listeners.set(true);
    }
    STATE.has_listeners.get()
}

/// Whether a fence that comes from outside can be a real one: this server has given or seen a later one, or its clock
/// comes to it soon. (Not the last fence and an hour more: then each would let in one that is later by an hour.)
pub fn fence_is_plausible(fence: u64) -> bool {
    fence <= STATE.last_fence.get() || fence <= soon_ms().saturating_mul(1000)
}

/// Whether a deadline that comes from outside can be a real one.
pub fn deadline_is_plausible(deadline_ms: u64) -> bool {
    // A primary may allow more than its replica.
    let max_ttl_ms = if STATE.is_replica.get() { TTL_MAX_MS } else { STATE.settings.max_ttl_ms.get() };
    deadline_ms <= soon_ms() + max_ttl_ms.unsigned_abs()
}

fn soon_ms() -> u64 {
    let now_ms = now().unix_ms();
    if STATE.is_replica.get() {
        // The primary's fences tell its clock.
        now_ms.max(STATE.last_fence.get() / 1000) + AHEAD_MAX_MS + OTHER_CLOCK_MS
    } else {
        now_ms + AHEAD_MAX_MS
    }
}
