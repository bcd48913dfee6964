// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the server tells about itself and its keys.
//!
//! Nothing may be written or replicated from here: a change made inside a notification is logged
//! before the command that caused it. The hooks only take note.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Once, OnceLock};

use redis_module::raw;

use super::api::api;
use super::ctx::Ctx;
use super::guard::guard;
use super::hooks::{EventHooks, Loading, Role};
use super::module_ctx::module_ctx;
use super::string::Str;

/// Set once, at load.
static HOOKS: OnceLock<&EventHooks> = OnceLock::new();

/// Subscribes to what has to be known always. False if the server refuses.
pub fn subscribe(ctx: Ctx<'_>, hooks: &'static EventHooks) -> bool {
    HOOKS.get_or_init(|| hooks);
    let ok = raw::REDISMODULE_OK as i32;
    let server_events = [
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        raw::REDISMODULE_EVENT_FLUSHDB,
        raw::REDISMODULE_EVENT_LOADING,
        raw::REDISMODULE_EVENT_CLIENT_CHANGE,
        raw::REDISMODULE_EVENT_SWAPDB,
        raw::REDISMODULE_EVENT_CRON_LOOP,
        raw::REDISMODULE_EVENT_PERSISTENCE,
        raw::REDISMODULE_EVENT_FORK_CHILD,
        raw::REDISMODULE_EVENT_REPLICA_CHANGE,
        raw::REDISMODULE_EVENT_CONFIG,
        raw::REDISMODULE_EVENT_MASTER_LINK_CHANGE,
    ];
    server_events.into_iter().all(|id| {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        api!(RedisModule_SubscribeToServerEvent(ctx.pointer(), event, Some(on_server_event))) == ok
    })
}

/// Subscribes to [`EventHooks::key_evicted`]. A server that evicts nothing is spared the call: with any subscription,
/// each event of a key has it look who has subscribed to that.
pub fn subscribe_to_evictions() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let evicted = raw::REDISMODULE_NOTIFY_EVICTED;
        api!(RedisModule_SubscribeToKeyspaceEvents(module_ctx(), evicted, Some(on_evicted)));
    });
}

unsafe extern "C" fn on_evicted(
    ctx: *mut raw::RedisModuleCtx,
    _: i32,
    _: *const c_char,
    name: *mut raw::RedisModuleString,
) -> i32 {
    guard(c"a keyspace event", || {
        let Some(hooks) = HOOKS.get() else { return };
        // SAFETY: the server lends both until this callback returns.
        let (ctx, name) = unsafe { (Ctx::from_raw(ctx), Str::from_raw(name)) };
        (hooks.key_evicted)(ctx.db(), name.bytes());
    });
    raw::REDISMODULE_OK as i32
}

unsafe extern "C" fn on_server_event(
    ctx: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    sub: u64,
    data: *mut c_void,
) {
    guard(c"a server event", || {
        let Some(hooks) = HOOKS.get() else { return };
        if !matches!(event.id, raw::REDISMODULE_EVENT_CLIENT_CHANGE | raw::REDISMODULE_EVENT_CRON_LOOP) {
            (hooks.listeners_may_change)();
        }
        match (event.id, sub) {
            (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, sub) => {
                let is_replica = sub == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_REPLICA;
                (hooks.role_changed)(if is_replica { Role::Replica } else { Role::Primary });
            }
            (raw::REDISMODULE_EVENT_FLUSHDB, raw::REDISMODULE_SUBEVENT_FLUSHDB_END) => {
                // SAFETY: the data of this event is of this type, in its first version.
                let db = unsafe { (*data.cast::<raw::RedisModuleFlushInfo>()).dbnum };
                (hooks.flushed)((db >= 0).then_some(db));
            }
            (raw::REDISMODULE_EVENT_LOADING, sub) => {
                let ends =
                    [raw::REDISMODULE_SUBEVENT_LOADING_ENDED, raw::REDISMODULE_SUBEVENT_LOADING_FAILED];
                let phase = if ends.contains(&sub) { Loading::Ended } else { Loading::Began };
                // SAFETY: the server lends the context until this callback returns.
                (hooks.loading)(unsafe { Ctx::from_raw(ctx) }, phase);
            }
            (raw::REDISMODULE_EVENT_CRON_LOOP, _) => (hooks.cron)(),
            (raw::REDISMODULE_EVENT_CONFIG, _) => {
                // SAFETY: the data of this event is of this type, in its first version; the names are strings.
                let names: Vec<&CStr> = unsafe {
                    let change = &*data.cast::<raw::RedisModuleConfigChange>();
                    let names = (0..change.num_changes as usize).map(|at| *change.config_names.add(at));
                    names.map(|name| CStr::from_ptr(name)).collect()
                };
                (hooks.configured)(&names);
            }
            (raw::REDISMODULE_EVENT_SWAPDB, _) => {
                // SAFETY: the data of this event is of this type, in its first version.
                let swap = unsafe { &*data.cast::<raw::RedisModuleSwapDbInfo>() };
                (hooks.swapped)(swap.dbnum_first, swap.dbnum_second);
            }
            (raw::REDISMODULE_EVENT_CLIENT_CHANGE, raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED) => {
                // SAFETY: the data of this event is of this type, in its first version.
                (hooks.disconnected)(unsafe { (*data.cast::<raw::RedisModuleClientInfo>()).id });
            }
            _ => {}
        }
    });
}
