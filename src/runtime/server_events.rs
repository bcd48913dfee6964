// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the server tells us, and what becomes of those who wait.
//!
//! | event | who waits |
//! |---|---|
//! | a lock is removed in any way (`DEL`, expiry, eviction, `SET`, `RENAME`, `MOVE`, ...) | goes on waiting; the first is granted at the end of this turn, or gets `WRONGTYPE` if another type is there |
//! | a lock appears by `RESTORE` or `COPY` | is looked at again |
//! | anything else happens to a key | the server does not report it: see `LOOK_EVERY_MS` in `working_state` |
//! | `FLUSHALL`, `FLUSHDB` | goes on waiting: the locks are free, and the first at each name is granted at the end of this turn |
//! | `SWAPDB` | is looked at again, at each name of both databases, beside the locks that are there now |
//! | a connection closes | its own request leaves the queue; its EPHEMERAL holds end, and the next is granted |
//! | this server becomes a replica | fails with `UNBLOCKED` |
//! | `CONFIG SET` | what forbids a grant (too few replicas, a failing disk) is checked again |
//!
//! Nothing may be written from here: a change made inside a notification is logged before the command that
//! caused it. So these functions take note, and the timer does the work.

use slock_core::{LockError, LockId, LockIdRef, wire};

use super::end_of_turn;
use super::schedule::Schedule;
use super::working_state::{Runtime, databases_changed, key_changed, notice, try_with_runtime};
use super::write_gate::WriteGate;
use crate::replication::{self, deadline_is_plausible, fence_is_plausible};
use crate::server::{self, Ctx, DatatypeHooks, EventHooks, Loading, Role, drop_in_background, own_ctx};
use crate::state::STATE;

/// What the data type tells us.
pub static DATATYPE_HOOKS: DatatypeHooks = DatatypeHooks {
    fence_seen: |fence| {
        notice(move |runtime| runtime.manager.fences.see(fence));
    },
    is_plausible: |lock| {
        let is_trusted = {
            let ctx = own_ctx().as_ctx();
            ctx.is_loading() || !ctx.takes_writes()
        };
        is_trusted
            || (fence_is_plausible(lock.highest_fence()) && deadline_is_plausible(lock.last_deadline_ms()))
    },
    restored: |lock| {
        if !STATE.only_follows() {
            key_changed(lock);
            let lock = LockId::from(lock);
            notice(|runtime| {
                runtime.restored.insert(lock);
            });
        }
    },
    copied: key_changed,
    last_fence: || STATE.last_fence.get(),
    rewrite: |lock, last_fence, emit| wire::rewrite(lock, last_fence, emit),
    freed: |lock| STATE.count_expirations(lock.count_ended(server::now().unix_ms())),
    removed: |id| {
        STATE.metrics.note_removal(id);
        key_changed(id);
    },
};

/// What the server tells us of itself.
pub static EVENT_HOOKS: EventHooks = EventHooks {
    key_evicted: |db, name| STATE.metrics.count_eviction(LockIdRef { db, name }),
    flushed: |db| databases_changed(move |manager| manager.database_changed(db)),
    swapped: |first, second| databases_changed(move |manager| manager.databases_swapped(first, second)),
    role_changed: on_role_changed,
    loading: |ctx, phase| {
        STATE.is_loading.set(phase == Loading::Began);
        // A long load must not use up the grace period.
        if phase == Loading::Ended && !ctx.is_replica() {
            notice(Runtime::begin_grace);
        }
    },
    configured: |changed| {
        // Where an operation is under way, all that was known is forgotten.
        if try_with_runtime(|runtime| runtime.write_gate.forget_settings(changed)).is_none() {
            notice(|runtime| runtime.write_gate = WriteGate::default());
        }
        notice(heed_eviction);
    },
    disconnected: |connection| {
        notice(move |runtime| runtime.manager.connection_closed(connection));
    },
    cron: || {
        try_with_runtime(|runtime| runtime.schedule.watch_clock());
    },
    listeners_may_change: replication::look_again,
};

/// Begins: called once, at load.
pub fn start(ctx: Ctx<'_>) {
    STATE.is_replica.set(ctx.is_replica());
    notice(|runtime| {
        runtime.schedule = Schedule::new(end_of_turn::on_soon, end_of_turn::on_due);
        runtime.begin_grace();
        heed_eviction(runtime);
    });
}

/// Looks whether the server may evict locks, for a warning and to count those that it evicts.
fn heed_eviction(runtime: &mut Runtime) {
    let may_evict = own_ctx().as_ctx().may_evict();
    // Once for each time that it becomes so.
    if may_evict && !runtime.may_evict {
        server::subscribe_to_evictions();
        server::log_warning(
            "maxmemory-policy lets this server evict locks when memory runs out, and an evicted lock is \
             free for the next who asks; use noeviction for locks",
        );
    }
    runtime.may_evict = may_evict;
}

fn on_role_changed(role: Role) {
    STATE.is_replica.set(role == Role::Replica);
    if role == Role::Replica {
        notice(|runtime| drop_in_background(runtime.manager.fail_waiters(LockError::NotPrimary)));
    }
    notice(heed_eviction);
}
