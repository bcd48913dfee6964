// SPDX-License-Identifier: MIT OR Apache-2.0

//! Settings, as the server's own configuration shows them.

use std::ffi::{CStr, c_char, c_void};

use redis_module::raw;

use super::api::api;
use super::ctx::Ctx;
use super::guard::guard;
use crate::shared::Number;

/// A setting.
pub struct Setting {
    /// Its name without the module's prefix.
    pub name: &'static CStr,
    /// What it can be.
    pub kind: SettingKind,
    /// What it is when nobody has set it.
    pub default: i64,
    /// Its present value; of a switch 0 or 1.
    pub value: &'static Number,
    /// Called when it has another one, at load and at `CONFIG SET`.
    pub changed: fn(),
}

/// What a setting can be.
pub enum SettingKind {
    /// An integer within bounds.
    Integer {
        /// The least it may be.
        min: i64,
        /// The most it may be.
        max: i64,
    },
    /// `yes` or `no`.
    Switch,
}

/// Registers a setting. `default` is the one from the `loadmodule` line, if that named it.
pub fn register_setting(ctx: Ctx<'_>, setting: &'static Setting, default: i64) -> bool {
    let (ctx, name, flags) = (ctx.pointer(), setting.name.as_ptr(), raw::REDISMODULE_CONFIG_DEFAULT);
    let data = std::ptr::from_ref(setting).cast_mut().cast::<c_void>();
    let status = match setting.kind {
        SettingKind::Integer { min, max } => {
            let (get, set) = (get_integer, set_integer);
            api!(RedisModule_RegisterNumericConfig(
                ctx,
                name,
                default,
                flags,
                min,
                max,
                Some(get),
                Some(set),
                None,
                data
            ))
        }
        SettingKind::Switch => {
            let (default, get, set) = (i32::from(default != 0), get_switch, set_switch);
            api!(RedisModule_RegisterBoolConfig(ctx, name, default, flags, Some(get), Some(set), None, data))
        }
    };
    status == raw::REDISMODULE_OK as i32
}

/// Applies what the configuration file says, or the defaults. False if that is not acceptable.
pub fn load_configs(ctx: Ctx<'_>) -> bool {
    api!(RedisModule_LoadConfigs(ctx.pointer())) == raw::REDISMODULE_OK as i32
}

/// # Safety
/// `setting` is what [`register_setting`] passed.
unsafe fn get(setting: *mut c_void) -> i64 {
    // SAFETY: it is a static setting.
    unsafe { &*setting.cast::<Setting>() }.value.get()
}

/// # Safety
/// `setting` is what [`register_setting`] passed.
unsafe fn set(setting: *mut c_void, value: i64) -> i32 {
    // SAFETY: it is a static setting.
    let setting = unsafe { &*setting.cast::<Setting>() };
    setting.value.set(value);
    guard(c"CONFIG SET", setting.changed).map_or(raw::REDISMODULE_ERR, |()| raw::REDISMODULE_OK) as i32
}

unsafe extern "C" fn get_integer(_: *const c_char, setting: *mut c_void) -> i64 {
    // SAFETY: the server hands back what it got.
    unsafe { get(setting) }
}

unsafe extern "C" fn get_switch(_: *const c_char, setting: *mut c_void) -> i32 {
    // SAFETY: the server hands back what it got.
    unsafe { get(setting) as i32 }
}

type Refusal = *mut *mut raw::RedisModuleString;

unsafe extern "C" fn set_integer(_: *const c_char, value: i64, setting: *mut c_void, _: Refusal) -> i32 {
    // SAFETY: the server hands back what it got.
    unsafe { set(setting, value) }
}

unsafe extern "C" fn set_switch(_: *const c_char, value: i32, setting: *mut c_void, _: Refusal) -> i32 {
    // SAFETY: the server hands back what it got.
    unsafe { set(setting, value.into()) }
}
