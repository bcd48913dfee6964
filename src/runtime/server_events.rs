// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the server tells us, and what becomes of those who wait.
//!
//! | event | who waits |
//! |---|---|
//! | a lock is removed in any way (`DEL`, expiry, eviction, `SET`, `RENAME`, `MOVE`, ...) | goes on waiting; the first is granted at the end of this turn, or gets `WRONGTYPE` |
//! | a lock appears by `RESTORE` or `COPY` | is looked at again |
//! | anything else happens to a key | the server does not report it: see `LOOK_EVERY_MS` in `working_state` |
//! | `FLUSHALL`, `FLUSHDB` | goes on waiting; the first at each name is granted from the end of this turn on, in slices |
//! | `SWAPDB` | is looked at again, at each name of both databases, beside the locks that are there now |
//! | a connection closes | its own request leaves the queue; its EPHEMERAL holds end, and the next is granted |
//! | this server becomes a replica | fails with `UNBLOCKED` |
//! | `CONFIG SET` | what forbids a grant (too few replicas, a failing disk) is checked again |
//!
//! Nothing may be written from here: a change made inside a notification is logged before the command that
//! caused it. So these functions take note, and the timer does the work.

use slock_core::{Lock, LockError, LockId, LockIdRef, LockManager};

use super::end_of_turn;
use super::schedule::Schedule;
use super::working_state::{Runtime, databases_changed, key_changed, notice, try_with_runtime};
use super::write_gate::WriteGate;
use crate::replication::{deadline_is_plausible, fence_is_plausible};
use crate::report;
use crate::server::{self, Ctx, HandleKey, Section, Told, drop_in_background, own_ctx};
use crate::state::STATE;

/// Takes note of what the server tells us.
pub struct ServerEvents;

impl Told for ServerEvents {
    fn fence_seen(&self, fence: u64) {
        notice(move |runtime| runtime.manager.fences.see(fence));
    }

    fn is_plausible(&self, lock: &Lock) -> bool {
        let ctx = own_ctx().as_ctx();
        let is_trusted = ctx.is_loading() || !ctx.takes_writes();
        is_trusted
            || (fence_is_plausible(lock.highest_fence()) && deadline_is_plausible(lock.last_deadline_ms()))
    }

    fn lock_appears(&self, lock: LockIdRef<'_>) {
        if !STATE.only_follows() {
            key_changed(lock);
            let lock = LockId::from(lock);
            notice(|runtime| {
                runtime.restored.insert(lock);
            });
        }
    }

    fn lock_removed(&self, lock: LockIdRef<'_>) {
        STATE.metrics.note_removal(lock);
        key_changed(lock);
    }

    fn key_evicted(&self, key: LockIdRef<'_>) {
        STATE.metrics.count_eviction(key);
    }

    fn flushed(&self) {
        databases_changed(LockManager::databases_changed);
    }

    fn swapped(&self) {
        databases_changed(|manager| manager.databases_swapped().into_iter().for_each(drop_in_background));
    }

    fn role_changed(&self, is_replica: bool) {
        STATE.is_replica.set(is_replica);
        if is_replica {
            notice(|runtime| drop_in_background(runtime.manager.fail_waiters(LockError::NotPrimary)));
        }
        notice(heed_eviction);
    }

    fn loading(&self, ctx: Ctx<'_>, has_begun: bool) {
        STATE.is_loading.set(has_begun);
        // A long load must not use up the grace period.
        if !has_begun && !ctx.is_replica() {
            notice(Runtime::begin_grace);
        }
    }

    fn configured(&self) {
        notice(|runtime| {
            runtime.write_gate = WriteGate::default();
            heed_eviction(runtime);
        });
    }

    fn disconnected(&self, connection: u64) {
        notice(move |runtime| runtime.manager.connection_closed(connection));
    }

    fn wait_ended(&self, client: HandleKey, is_unblocked: bool) {
        notice(move |runtime| match runtime.clients.blocked.remove(client) {
            Some(request) if is_unblocked => _ = runtime.manager.time_out(request),
            Some(request) => _ = runtime.manager.abandon(request),
            None => {}
        });
    }

    fn cron(&self) {
        try_with_runtime(|runtime| runtime.schedule.watch_clock());
    }

    fn write_info(&self, section: &Section) {
        try_with_runtime(|runtime| report::write(section, &runtime.manager));
    }
}

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
