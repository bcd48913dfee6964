// SPDX-License-Identifier: MIT OR Apache-2.0

//! The context that belongs to the module rather than to a callback: for timers, for looks into other databases, and
//! for the log.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;

use super::api::api;
use super::ctx::{Ctx, OwnCtx};

static MODULE_CTX: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

/// Makes it. Called once, at load.
pub(super) fn keep_module_ctx(ctx: Ctx<'_>) {
    let own = api!(RedisModule_GetDetachedThreadSafeContext(ctx.pointer()));
    MODULE_CTX.store(own, Ordering::Relaxed);
}

/// Null before it was made.
pub(super) fn module_ctx() -> *mut raw::RedisModuleCtx {
    MODULE_CTX.load(Ordering::Relaxed)
}

/// The context that belongs to no client, for the server's thread.
pub fn own_ctx() -> OwnCtx<'static> {
    // SAFETY: the context was made at load and lives as long as the process.
    unsafe { OwnCtx::from_raw(module_ctx()) }
}
