//! What this layer has been given at load, each once. It keeps nothing else between callbacks.

use std::cell::OnceCell;

use redis_module::raw;

use super::hooks::{DatatypeHooks, EventHooks};

/// See the module. A server runs callbacks on one thread, so there is one of it.
pub(super) struct Loaded {
    /// The context that belongs to the module rather than to a callback.
    pub(super) module_ctx: OnceCell<*mut raw::RedisModuleCtx>,
    pub(super) raw_type: OnceCell<*mut raw::RedisModuleType>,
    pub(super) datatype_hooks: OnceCell<&'static DatatypeHooks>,
    pub(super) event_hooks: OnceCell<&'static EventHooks>,
    /// Whether the server has `PERSIST` by this name.
    pub(super) knows_persist: OnceCell<bool>,
    /// Whether the server can check a command without running it.
    pub(super) can_check_only: OnceCell<bool>,
}

thread_local! {
    static LOADED: Loaded = const {
        Loaded {
            module_ctx: OnceCell::new(),
            raw_type: OnceCell::new(),
            datatype_hooks: OnceCell::new(),
            event_hooks: OnceCell::new(),
            knows_persist: OnceCell::new(),
            can_check_only: OnceCell::new(),
        }
    };
}

/// What was given, or `None` before it was.
pub(super) fn get<T: Copy>(field: impl FnOnce(&Loaded) -> &OnceCell<T>) -> Option<T> {
    LOADED.with(|loaded| field(loaded).get().copied())
}

/// Keeps it. What was given before stays.
pub(super) fn set<T>(field: impl FnOnce(&Loaded) -> &OnceCell<T>, value: T) {
    LOADED.with(|loaded| drop(field(loaded).set(value)));
}
