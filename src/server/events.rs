//! What the server tells about itself and its keys.
//!
//! Nothing may be written or replicated from here: a change made inside a notification is logged
//! before the command that caused it. The hooks only take note.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};

use redis_module::raw;

use super::ctx::Ctx;
use super::text::Text;
use super::{abilities, api, audience, guard};

/// What the module wants to be told.
pub struct Hooks {
    /// A key appeared, or its expiry was changed.
    pub key_touched: fn(i32, &[u8]),
    /// A key was evicted, after its value was removed.
    pub key_evicted: fn(i32, &[u8]),
    /// All keys of a database have gone, or of every database.
    pub flushed: fn(Option<i32>),
    /// Two databases have changed places.
    pub swapped: fn(i32, i32),
    /// The server has become a replica (true) or a primary (false).
    pub role_changed: fn(bool),
    /// The server begins to load a data set (true), or has ended (false).
    pub loading: fn(Ctx<'_>, bool),
    /// `CONFIG SET` has changed something.
    pub configured: fn(Ctx<'_>),
    /// A connection closes; the server still knows it.
    pub disconnected: fn(Ctx<'_>, u64),
    /// What was answered before has been sent, and the connections that could not be sent it have closed.
    pub sent: fn(),
}

thread_local! {
    static HOOKS: Cell<Option<&'static Hooks>> = const { Cell::new(None) };
}

/// Subscribes to what has to be known always. False if the server refuses.
pub fn subscribe(ctx: Ctx<'_>, hooks: &'static Hooks) -> bool {
    HOOKS.set(Some(hooks));
    let ok = raw::REDISMODULE_OK as i32;
    let keys = raw::REDISMODULE_NOTIFY_EVICTED;
    let server_events = [
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        raw::REDISMODULE_EVENT_FLUSHDB,
        raw::REDISMODULE_EVENT_LOADING,
        raw::REDISMODULE_EVENT_CLIENT_CHANGE,
        raw::REDISMODULE_EVENT_SWAPDB,
    ];
    api!(RedisModule_SubscribeToKeyspaceEvents(ctx.pointer(), keys, Some(on_key))) == ok
        && server_events.into_iter().chain(audience::EVENTS).all(|id| {
            let event = raw::RedisModuleEvent { id, dataver: 1 };
            api!(RedisModule_SubscribeToServerEvent(ctx.pointer(), event, Some(on_server_event))) == ok
        })
}

/// Subscribes to [`Hooks::key_touched`]. A server where nobody ever waits for a lock is spared the
/// calls: every new key and every `EXPIRE` makes one.
///
/// Not on Valkey from 8.1 on, up to a release that cannot be told from the others: there a client
/// that runs `MOVE` or `COPY ... DB` is left in the other database when a module has subscribed to
/// these events (valkey-io/valkey pull request 4024). Those servers announce only removals to us.
pub fn subscribe_to_keys() {
    if !abilities::is_recent_valkey() {
        let keys = raw::REDISMODULE_NOTIFY_NEW | raw::REDISMODULE_NOTIFY_GENERIC;
        api!(RedisModule_SubscribeToKeyspaceEvents(super::timer::module_ctx(), keys, Some(on_key)));
    }
}

/// Subscribes to [`Hooks::sent`], which is called in every turn of the event loop.
pub fn subscribe_to_sending() {
    let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_EVENTLOOP, dataver: 1 };
    api!(RedisModule_SubscribeToServerEvent(super::timer::module_ctx(), event, Some(on_turn)));
}

unsafe extern "C" fn on_turn(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    // Between this and the sleep before, no command has run and no connection was read.
    if sub == raw::REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP {
        guard("a turn of the event loop", || {
            if let Some(hooks) = HOOKS.get() {
                (hooks.sent)();
            }
        });
    }
}

unsafe extern "C" fn on_key(
    ctx: *mut raw::RedisModuleCtx,
    class: i32,
    event: *const c_char,
    name: *mut raw::RedisModuleString,
) -> i32 {
    guard("a keyspace event", || {
        let Some(hooks) = HOOKS.get() else { return };
        // SAFETY: the server lends all three until this callback returns.
        let (ctx, name, event) = unsafe { (Ctx::from_raw(ctx), Text::from_raw(name), CStr::from_ptr(event)) };
        match class {
            raw::REDISMODULE_NOTIFY_EVICTED => (hooks.key_evicted)(ctx.db(), name.bytes()),
            // Of the generic events only these change a key that stays; removals come through `unlink`.
            raw::REDISMODULE_NOTIFY_GENERIC if event != c"expire" && event != c"persist" => {}
            _ => (hooks.key_touched)(ctx.db(), name.bytes()),
        }
    });
    raw::REDISMODULE_OK as i32
}

unsafe extern "C" fn on_server_event(
    ctx: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    sub: u64,
    data: *mut c_void,
) {
    guard("a server event", || {
        let Some(hooks) = HOOKS.get() else { return };
        if event.id != raw::REDISMODULE_EVENT_CLIENT_CHANGE {
            audience::look_again();
        }
        match (event.id, sub) {
            (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, sub) => {
                (hooks.role_changed)(sub == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_REPLICA);
            }
            (raw::REDISMODULE_EVENT_FLUSHDB, raw::REDISMODULE_SUBEVENT_FLUSHDB_END) => {
                // SAFETY: the data of this event is of this type, in its first version.
                let db = unsafe { (*data.cast::<raw::RedisModuleFlushInfo>()).dbnum };
                (hooks.flushed)((db >= 0).then_some(db));
            }
            (raw::REDISMODULE_EVENT_LOADING, sub) => {
                let ends =
                    [raw::REDISMODULE_SUBEVENT_LOADING_ENDED, raw::REDISMODULE_SUBEVENT_LOADING_FAILED];
                // SAFETY: the server lends the context until this callback returns.
                (hooks.loading)(unsafe { Ctx::from_raw(ctx) }, !ends.contains(&sub));
            }
            (raw::REDISMODULE_EVENT_CONFIG, _) => {
                // SAFETY: the server lends the context until this callback returns.
                (hooks.configured)(unsafe { Ctx::from_raw(ctx) });
            }
            (raw::REDISMODULE_EVENT_SWAPDB, _) => {
                // SAFETY: the data of this event is of this type, in its first version.
                let swap = unsafe { &*data.cast::<raw::RedisModuleSwapDbInfo>() };
                (hooks.swapped)(swap.dbnum_first, swap.dbnum_second);
            }
            (raw::REDISMODULE_EVENT_CLIENT_CHANGE, raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED) => {
                // SAFETY: the data of this event is of this type, in its first version; the server lends
                // the context until this callback returns.
                let (ctx, id) =
                    unsafe { (Ctx::from_raw(ctx), (*data.cast::<raw::RedisModuleClientInfo>()).id) };
                (hooks.disconnected)(ctx, id);
            }
            _ => {}
        }
    });
}
