//! The module's section of `INFO`.

use std::cell::Cell;
use std::ffi::CStr;

use redis_module::raw;

use super::ctx::Ctx;
use super::{api, guard};

/// The section that is being written.
pub struct Section(*mut raw::RedisModuleInfoCtx);

impl Section {
    /// Adds a field. The server puts the module's name before it.
    pub fn field(&self, name: &CStr, value: u64) {
        api!(RedisModule_InfoAddFieldULongLong(self.0, name.as_ptr(), value));
    }
}

thread_local! {
    static WRITE: Cell<Option<fn(&Section)>> = const { Cell::new(None) };
}

/// Has `write` called whenever somebody asks for the section.
pub fn register_info(ctx: Ctx<'_>, write: fn(&Section)) -> bool {
    WRITE.set(Some(write));
    api!(RedisModule_RegisterInfoFunc(ctx.pointer(), Some(on_info))) == raw::REDISMODULE_OK as i32
}

unsafe extern "C" fn on_info(ctx: *mut raw::RedisModuleInfoCtx, for_crash_report: i32) {
    if for_crash_report != 0 {
        return; // The state may be the very thing that broke.
    }
    guard("INFO", || {
        // An error here says that the client did not ask for this section.
        let is_wanted = api!(RedisModule_InfoAddSection(ctx, c"".as_ptr())) == raw::REDISMODULE_OK as i32;
        if let (true, Some(write)) = (is_wanted, WRITE.get()) {
            write(&Section(ctx));
        }
    });
}
