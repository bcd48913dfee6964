// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the server tells about itself and its keys.
//!
//! Nothing may be written or replicated from here: a change made inside a notification is logged
//! before the command that caused it. What [`told`] calls only takes note.

use std::ffi::{c_char, c_void};
use std::sync::Once;

use redis_module::raw;
use slock_core::LockIdRef;

use super::api::api;
use super::ctx::Ctx;
use super::guard::guard;
use super::module_ctx::module_ctx;
use super::string::Str;
use super::told::told;
use crate::state::STATE;

/// Subscribes to what has to be known always. False if the server refuses.
pub fn subscribe(ctx: Ctx<'_>) -> bool {
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

/// Subscribes to evictions of keys. A server that evicts nothing is spared the call: with any subscription,
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
        // SAFETY: the server lends both until this callback returns.
        let (ctx, name) = unsafe { (Ctx::from_raw(ctx), Str::from_raw(name)) };
        told().key_evicted(LockIdRef { db: ctx.db(), name: name.bytes() });
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
        if !matches!(event.id, raw::REDISMODULE_EVENT_CLIENT_CHANGE | raw::REDISMODULE_EVENT_CRON_LOOP) {
            STATE.knows_listeners.set(false);
        }
        match (event.id, sub) {
            (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, sub) => {
                told().role_changed(sub == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_REPLICA);
            }
            (raw::REDISMODULE_EVENT_FLUSHDB, raw::REDISMODULE_SUBEVENT_FLUSHDB_END) => told().flushed(),
            (raw::REDISMODULE_EVENT_SWAPDB, _) => told().swapped(),
            (raw::REDISMODULE_EVENT_LOADING, sub) => {
                let ends =
                    [raw::REDISMODULE_SUBEVENT_LOADING_ENDED, raw::REDISMODULE_SUBEVENT_LOADING_FAILED];
                // SAFETY: the server lends the context until this callback returns.
                told().loading(unsafe { Ctx::from_raw(ctx) }, !ends.contains(&sub));
            }
            (raw::REDISMODULE_EVENT_CRON_LOOP, _) => told().cron(),
            (raw::REDISMODULE_EVENT_CONFIG, _) => told().configured(),
            (raw::REDISMODULE_EVENT_CLIENT_CHANGE, raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED) => {
                // SAFETY: the data of this event is of this type, in its first version.
                told().disconnected(unsafe { (*data.cast::<raw::RedisModuleClientInfo>()).id });
            }
            _ => {}
        }
    });
}
