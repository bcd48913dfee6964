// SPDX-License-Identifier: MIT OR Apache-2.0

//! The module's section of `INFO`.

use redis_module::raw;

use super::api::api;
use super::ctx::Ctx;
use super::guard::guard;
use super::reply::Section;
use super::told::told;

/// Registers the section. False if the server refuses.
pub fn register_info(ctx: Ctx<'_>) -> bool {
    api!(RedisModule_RegisterInfoFunc(ctx.pointer(), Some(on_info))) == raw::REDISMODULE_OK as i32
}

unsafe extern "C" fn on_info(ctx: *mut raw::RedisModuleInfoCtx, for_crash_report: i32) {
    if for_crash_report != 0 {
        return; // The state may be the very thing that broke.
    }
    guard(c"INFO", || {
        // An error here says that the client did not ask for this section.
        if api!(RedisModule_InfoAddSection(ctx, c"".as_ptr())) == raw::REDISMODULE_OK as i32 {
            told().write_info(&Section(ctx));
        }
    });
}
