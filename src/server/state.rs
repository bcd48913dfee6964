//! What this layer keeps between callbacks. All of it is set at load, but for what says otherwise.

use std::cell::Cell;

use redis_module::raw;

use super::hooks::{DatatypeHooks, EventHooks};

/// See the module. A server runs callbacks on one thread, so there is one of it.
pub(super) struct ServerState {
    /// The context that belongs to the module rather than to a callback.
    pub(super) module_ctx: Cell<*mut raw::RedisModuleCtx>,
    pub(super) raw_type: Cell<*mut raw::RedisModuleType>,
    pub(super) datatype_hooks: Cell<Option<&'static DatatypeHooks>>,
    pub(super) event_hooks: Cell<Option<&'static EventHooks>>,
    /// What the server keeps for a lock beside the value, in bytes.
    pub(super) bytes_beside_value: Cell<usize>,
    /// Whether the server has `PERSIST` by this name.
    pub(super) knows_persist: Cell<bool>,
    /// Whether anybody listens to what is replicated; `None` when it has to be looked at again.
    pub(super) has_listeners: Cell<Option<bool>>,
}

thread_local! {
    static STATE: ServerState = const {
        ServerState {
            module_ctx: Cell::new(std::ptr::null_mut()),
            raw_type: Cell::new(std::ptr::null_mut()),
            datatype_hooks: Cell::new(None),
            event_hooks: Cell::new(None),
            bytes_beside_value: Cell::new(0),
            knows_persist: Cell::new(false),
            has_listeners: Cell::new(None),
        }
    };
}

pub(super) fn with<R>(look: impl FnOnce(&ServerState) -> R) -> R {
    STATE.with(look)
}
