//! What the server tells us.
//!
//! Nothing may be written from here: a change made inside a notification is logged before the command that
//! caused it. So these functions take note, and the timer does the work.

use slock_core::{LockError, LockIdRef};

use super::state::{self, Notice, Runtime, State, notice, set_grace, try_with_runtime};
use super::tick;
use super::timer::Timer;
use crate::config;
use crate::replication::wire;
use crate::server::{self, Ctx, DatatypeHooks, EventHooks, drop_in_background, now, own_ctx};

/// How far ahead of the clock a fence or a deadline may be that comes from outside: ten years. All
/// further fences are given above such a fence, and must not run out of numbers; a lock that has it must
/// stay loadable.
const AHEAD_MAX_MS: u64 = 10 * 365 * 24 * 3600 * 1000;

/// A replica that takes writes cannot tell a `RESTORE` of its primary from one of a client. So much further
/// ahead may its numbers be, since the primary has judged them by another clock.
const OTHER_CLOCK_MS: u64 = 24 * 3600 * 1000;

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
    arriving: |lock| {
        if !state::with(State::only_follows) {
            notice(Notice::LockArrived(lock.into()));
        }
    },
    last_fence,
    rewrite: |lock, emit| wire::rewrite(lock, last_fence(), emit),
    removed: |id| {
        // A lock that an effect has emptied is nothing new to us.
        if !state::with(|state| state.is_own_change(id)) {
            state::with(|state| state.metrics.note_removal(id));
            state::key_changed(id);
        }
    },
};

/// What the server tells us of itself.
pub static EVENT_HOOKS: EventHooks = EventHooks {
    key_touched: |db, name| state::key_changed(LockIdRef { db, name }),
    key_evicted: |db, name| state::with(|state| state.metrics.count_eviction(LockIdRef { db, name })),
    flushed: |db| notice(Notice::DatabaseChanged(db)),
    swapped: |first, second| notice(Notice::DatabasesSwapped(first, second)),
    role_changed: on_role_changed,
    loading: |ctx, is_loading| {
        state::with(|state| state.is_loading.set(is_loading));
        role_is_known();
        // A long load must not use up the grace period.
        if !is_loading && !ctx.is_replica() {
            change_server(|runtime| set_grace(runtime, config::restart_grace_ms(), true));
        }
    },
    configured: || change_server(read_configuration),
    disconnected: |connection| notice(Notice::ConnectionClosed(connection)),
    cron: || {
        try_with_runtime(|runtime| runtime.timer.as_mut().map(Timer::watch_clock));
    },
};

/// Begins: called once, at load.
pub fn open(ctx: Ctx<'_>) {
    state::with(|state| state.is_replica.set(ctx.is_replica()));
    role_is_known();
    change_server(|runtime| {
        runtime.timer = Some(Timer::new(tick::on_soon, tick::on_due));
        runtime.is_cluster = own_ctx().as_ctx().is_cluster();
        runtime.started_ms = now().monotonic_ms();
        apply_settings(runtime);
        read_configuration(runtime);
    });
    config::when_changed(|| change_server(apply_settings));
}

/// Takes note of something that concerns the whole server.
fn change_server(change: fn(&mut Runtime)) {
    notice(Notice::ServerChanged(change));
}

fn apply_settings(runtime: &mut Runtime) {
    runtime.manager.max_waiters = config::max_waiters();
    set_grace(runtime, config::restart_grace_ms(), false);
}

/// Takes note of what the server's configuration means for locks.
fn read_configuration(runtime: &mut Runtime) {
    let ctx = own_ctx().as_ctx();
    runtime.write_gate.read_configuration(ctx);
    let may_evict = ctx.may_evict();
    // Once for each time that it becomes so.
    if may_evict && !runtime.may_evict {
        server::log_warning(
            "maxmemory-policy lets this server evict locks when memory runs out, and an evicted lock is \
             free for the next who asks; use noeviction for locks",
        );
    }
    runtime.may_evict = may_evict;
}

fn on_role_changed(is_replica: bool) {
    state::with(|state| state.is_replica.set(is_replica));
    role_is_known();
    if is_replica {
        change_server(|runtime| drop_in_background(runtime.manager.resign(LockError::NotPrimary)));
    }
}

fn role_is_known() {
    state::with(|state| state.metrics.set_follows(state.only_follows()));
}

fn last_fence() -> u64 {
    state::with(State::last_fence)
}

/// Whether a fence that comes from outside can be a real one.
pub fn fence_is_plausible(fence: u64) -> bool {
    fence <= latest_ms().saturating_mul(1000)
}

/// Whether a deadline that comes from outside can be a real one: no lock lives for ever.
pub fn deadline_is_plausible(deadline_ms: u64) -> bool {
    deadline_ms <= latest_ms()
}

fn latest_ms() -> u64 {
    let now_ms = now().unix_ms();
    if state::with(|state| state.is_replica.get()) {
        // The primary's fences tell its clock.
        now_ms.max(last_fence() / 1000) + AHEAD_MAX_MS + OTHER_CLOCK_MS
    } else {
        now_ms + AHEAD_MAX_MS
    }
}
