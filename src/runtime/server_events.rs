//! What the server tells us, and what becomes of those who wait.
//!
//! | event | who waits |
//! |---|---|
//! | a key is removed, whoever did it (`DEL`, expiry, eviction, `RENAME`, `MOVE`, ...) | goes on waiting; the first is granted at the end of this turn |
//! | a key appears (`RESTORE`, `RENAME`, ...), or its expiry changes | is looked at again; under another type: `WRONGTYPE` |
//! | `FLUSHALL`, `FLUSHDB` | goes on waiting: the locks are free, and the first at each name is granted at the end of this turn |
//! | `SWAPDB` | is looked at again, at each name of both databases, beside the locks that are there now |
//! | a connection closes | its own request leaves the queue; its EPHEMERAL holds end, and the next is granted |
//! | this server becomes a replica | is sent away with `UNBLOCKED` |
//! | `CONFIG SET` | what forbids a grant (too few replicas, a failing disk) is looked at anew |
//!
//! Nothing may be written from here: a change made inside a notification is logged before the command that
//! caused it. So these functions take note, and the timer does the work.

use slock_core::{LockError, LockIdRef, wire};

use super::end_of_turn;
use super::schedule::Schedule;
use super::working_state::{Notice, Runtime, key_changed, notice, try_with_runtime};
use super::write_gate::WriteGate;
use crate::replication::{self, deadline_is_plausible, fence_is_plausible};
use crate::server::{self, Ctx, DatatypeHooks, EventHooks, Loading, Role, drop_in_background, own_ctx};
use crate::state::{STATE, SleepWatch, with_sleep_watch};

/// What the data type tells us.
pub static DATATYPE_HOOKS: DatatypeHooks = DatatypeHooks {
    fence_seen: |fence| notice(Notice::FenceSeen(fence)),
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
            notice(Notice::LockRestored(lock.into()));
        }
    },
    last_fence,
    rewrite: |lock, last_fence, emit| wire::rewrite(lock, last_fence, emit),
    removed: |id| {
        STATE.metrics.note_removal(id);
        key_changed(id);
    },
};

/// What the server tells us of itself.
pub static EVENT_HOOKS: EventHooks = EventHooks {
    key_touched: |db, name| key_changed(LockIdRef { db, name }),
    key_evicted: |db, name| STATE.metrics.count_eviction(LockIdRef { db, name }),
    flushed: |db| notice(Notice::DatabaseChanged(db)),
    swapped: |first, second| notice(Notice::DatabasesSwapped(first, second)),
    role_changed: on_role_changed,
    loading: |ctx, phase| {
        STATE.is_loading.set(phase == Loading::Began);
        role_is_known();
        // A long load must not use up the grace period.
        if phase == Loading::Ended && !ctx.is_replica() {
            change_server(Runtime::begin_grace);
        }
    },
    configured: |changed| {
        // Where an operation is under way, all that was known is forgotten.
        if try_with_runtime(|runtime| runtime.write_gate.forget_settings(changed)).is_none() {
            change_server(|runtime| runtime.write_gate = WriteGate::default());
        }
        change_server(warn_of_eviction);
    },
    disconnected: |connection| notice(Notice::ConnectionClosed(connection)),
    cron: || {
        try_with_runtime(|runtime| {
            if runtime.reset_watch.is_due() {
                runtime.follow_reset(own_ctx().as_ctx());
            }
            if !runtime.manager.refused_tokens().is_empty() {
                runtime.manager.forget_ended_refusals(server::now());
            }
            runtime.schedule.as_mut().map(Schedule::watch_clock)
        });
    },
    before_sleep: || with_sleep_watch(SleepWatch::before_sleep),
    after_sleep: || with_sleep_watch(SleepWatch::after_sleep),
    listeners_may_change: replication::look_again,
};

/// Begins: called once, at load.
pub fn start(ctx: Ctx<'_>) {
    STATE.is_replica.set(ctx.is_replica());
    role_is_known();
    change_server(|runtime| {
        runtime.schedule = Some(Schedule::new(end_of_turn::on_soon, end_of_turn::on_due));
        runtime.is_cluster = own_ctx().as_ctx().is_cluster();
        runtime.begin_grace();
        warn_of_eviction(runtime);
    });
}

/// Takes note of something that concerns the whole server.
fn change_server(change: fn(&mut Runtime)) {
    notice(Notice::ServerChanged(change));
}

fn warn_of_eviction(runtime: &mut Runtime) {
    let may_evict = own_ctx().as_ctx().may_evict();
    // Once for each time that it becomes so.
    if may_evict && !runtime.may_evict {
        server::log_warning(
            "maxmemory-policy lets this server evict locks when memory runs out, and an evicted lock is \
             free for the next who asks; use noeviction for locks",
        );
    }
    runtime.may_evict = may_evict;
}

fn on_role_changed(role: Role) {
    STATE.is_replica.set(role == Role::Replica);
    role_is_known();
    if role == Role::Replica {
        change_server(|runtime| drop_in_background(runtime.manager.send_all_away(LockError::NotPrimary)));
    }
}

fn role_is_known() {
    STATE.metrics.set_follows(STATE.only_follows());
}

fn last_fence() -> u64 {
    STATE.last_fence.get()
}
