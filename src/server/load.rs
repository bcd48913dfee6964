// SPDX-License-Identifier: MIT OR Apache-2.0

//! The load of the module.

use redis_module::raw;

use super::ctx::Ctx;
use super::guard::guard;
use super::log::log_warning;
use super::string::Str;

const NAME: &std::ffi::CStr = c"slock";
/// MODULE LIST shows a number: 10203 is version 1.2.3.
const VERSION: i32 = number(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
    + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
    + number(env!("CARGO_PKG_VERSION_PATCH"));

const fn number(digits: &str) -> i32 {
    match i32::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => panic!("a part of the version is no number"),
    }
}

/// Finds the module API, and calls `load` with the arguments of the `loadmodule` line. An error is logged, and the
/// server does not load the module.
///
/// # Safety
/// The server lends `ctx` and the `argc` strings at `argv` until this returns.
pub unsafe fn on_load(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: i32,
    load: fn(Ctx<'_>, &[&[u8]]) -> Result<(), String>,
) -> i32 {
    let version = raw::REDISMODULE_APIVER_1 as i32;
    // SAFETY: the caller's promise; the name outlasts the call.
    let status = unsafe { raw::Export_RedisModule_Init(ctx, NAME.as_ptr(), VERSION, version) };
    if status != raw::REDISMODULE_OK as i32 {
        return status;
    }
    let loaded = guard(c"the load", || {
        // SAFETY: the caller's promise.
        let (ctx, arguments) = unsafe { (Ctx::from_raw(ctx), Str::arguments(argv, argc)) };
        let arguments: Vec<&[u8]> = arguments.iter().map(|argument| argument.bytes()).collect();
        load(ctx, &arguments).inspect_err(|reason| log_warning(&format!("not loaded: {reason}")))
    });
    let is_loaded = matches!(loaded, Some(Ok(())));
    if is_loaded { raw::REDISMODULE_OK as i32 } else { raw::REDISMODULE_ERR as i32 }
}
