//! Settings, as the server's own configuration shows them.

use std::ffi::{CStr, c_char, c_void};

use redis_module::raw;

use super::api::api;
use super::ctx::Ctx;
use super::guard::guard;
use crate::shared::{Flag, Number};

/// An integer setting.
pub struct IntSetting {
    /// Its name without the module's prefix.
    pub name: &'static CStr,
    /// What it is when nobody has set it.
    pub default: i64,
    /// The least it may be.
    pub min: i64,
    /// The most it may be.
    pub max: i64,
    /// Its present value, which is within the bounds.
    pub value: &'static Number,
    /// Called when it has another one, at load and at `CONFIG SET`.
    pub changed: fn(),
}

/// Registers a setting. `default` is the one from the `loadmodule` line, if that named it.
pub fn register_int(ctx: Ctx<'_>, setting: &'static IntSetting, default: i64) -> bool {
    let status = api!(RedisModule_RegisterNumericConfig(
        ctx.pointer(),
        setting.name.as_ptr(),
        default,
        raw::REDISMODULE_CONFIG_DEFAULT,
        setting.min,
        setting.max,
        Some(get),
        Some(set),
        None,
        std::ptr::from_ref(setting).cast_mut().cast::<c_void>(),
    ));
    status == raw::REDISMODULE_OK as i32
}

/// A setting that is on or off.
pub struct BoolSetting {
    /// Its name without the module's prefix.
    pub name: &'static CStr,
    /// What it is when nobody has set it.
    pub default: bool,
    /// Its present value.
    pub value: &'static Flag,
}

/// Registers a setting. `default` is the one from the `loadmodule` line, if that named it.
pub fn register_bool(ctx: Ctx<'_>, setting: &'static BoolSetting, default: bool) -> bool {
    let status = api!(RedisModule_RegisterBoolConfig(
        ctx.pointer(),
        setting.name.as_ptr(),
        default.into(),
        raw::REDISMODULE_CONFIG_DEFAULT,
        Some(get_bool),
        Some(set_bool),
        None,
        std::ptr::from_ref(setting).cast_mut().cast::<c_void>(),
    ));
    status == raw::REDISMODULE_OK as i32
}

/// Applies what the configuration file says, or the defaults. False if that is not acceptable.
pub fn load_configs(ctx: Ctx<'_>) -> bool {
    api!(RedisModule_LoadConfigs(ctx.pointer())) == raw::REDISMODULE_OK as i32
}

unsafe extern "C" fn get(_: *const c_char, setting: *mut c_void) -> i64 {
    // SAFETY: `register_int` passed a static setting.
    let setting = unsafe { &*setting.cast::<IntSetting>() };
    setting.value.get()
}

unsafe extern "C" fn set(
    _: *const c_char,
    value: i64,
    setting: *mut c_void,
    _: *mut *mut raw::RedisModuleString,
) -> i32 {
    // SAFETY: `register_int` passed a static setting.
    let setting = unsafe { &*setting.cast::<IntSetting>() };
    setting.value.set(value);
    guard(c"CONFIG SET", setting.changed).map_or(raw::REDISMODULE_ERR, |()| raw::REDISMODULE_OK) as i32
}

unsafe extern "C" fn get_bool(_: *const c_char, setting: *mut c_void) -> i32 {
    // SAFETY: `register_bool` passed a static setting.
    let setting = unsafe { &*setting.cast::<BoolSetting>() };
    setting.value.get().into()
}

unsafe extern "C" fn set_bool(
    _: *const c_char,
    value: i32,
    setting: *mut c_void,
    _: *mut *mut raw::RedisModuleString,
) -> i32 {
    // SAFETY: `register_bool` passed a static setting.
    let setting = unsafe { &*setting.cast::<BoolSetting>() };
    setting.value.set(value != 0);
    raw::REDISMODULE_OK as i32
}
