// SPDX-License-Identifier: MIT OR Apache-2.0

//! The module's section of `INFO`.

use std::ffi::CStr;

use redis_module::raw;

use super::api::api;
use super::ctx::Ctx;
use super::guard::guard;
use crate::info;
use crate::runtime::try_with_runtime;

/// The section that is being written.
pub struct Section(*mut raw::RedisModuleInfoCtx);

impl Section {
    /// Adds a field. The server puts the module's name before it.
    pub fn field(&self, name: &CStr, value: u64) {
        api!(RedisModule_InfoAddFieldULongLong(self.0, name.as_ptr(), value));
    }

    /// Adds a field with parts, as `name:part=value,part=value`.
    pub fn field_of_parts(&self, name: &CStr, parts: &[(&CStr, u64)]) {
        api!(RedisModule_InfoBeginDictField(self.0, name.as_ptr()));
        parts.iter().for_each(|(part, value)| self.field(part, *value));
        api!(RedisModule_InfoEndDictField(self.0));
    }
}

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
            try_with_runtime(|runtime| info::write(&Section(ctx), &runtime.manager));
        }
    });
}
