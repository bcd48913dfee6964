// SPDX-License-Identifier: MIT OR Apache-2.0

//! The clocks and the timers.
//!
//! Deadlines and fences go by the wall clock, durations by the monotonic one.

use std::ffi::c_void;
use std::ptr;

use redis_module::raw;
use slock_core::Timestamp;

use super::api::api;
use super::ctx::OwnCtx;
use super::guard::guard;
use super::module_ctx::module_ctx;

/// The time now by both clocks. Read once for each decision.
pub fn now() -> Timestamp {
    let (wall, monotonic) = (read(libc::CLOCK_REALTIME), read(libc::CLOCK_MONOTONIC));
    let unix_us = wall.0 * 1_000_000 + wall.1 / 1000;
    Timestamp::new(unix_us, milliseconds(monotonic))
}

/// The time now by the monotonic clock alone, in milliseconds.
pub fn monotonic_ms() -> u64 {
    milliseconds(read(libc::CLOCK_MONOTONIC))
}

/// So that no moment is 0.
fn milliseconds((seconds, nanoseconds): (u64, u64)) -> u64 {
    1 + seconds * 1000 + nanoseconds / 1_000_000
}

/// Seconds and nanoseconds. (A wall clock before 1970 reads as 1970.)
fn read(clock: libc::clockid_t) -> (u64, u64) {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time`, which outlives it. It cannot fail: both clocks exist.
    unsafe { libc::clock_gettime(clock, &mut time) };
    (u64::try_from(time.tv_sec).unwrap_or(0), time.tv_nsec as u64)
}

/// Names a running timer.
pub type TimerId = u64;

/// Calls `callback` once, `after_ms` from now, at the end of a turn of the event loop. Not for more than half an hour:
/// Redis 7.0 multiplies the milliseconds until its next module timer by 1000 in 32 bits, and from 36 minutes on does
/// not sleep until then. (The same happens after the wall clock was set back that far, until `Schedule::watch_clock`
/// finds the timer late.)
pub fn start_timer(after_ms: u64, callback: fn(OwnCtx<'_>)) -> TimerId {
    debug_assert!(after_ms < 1_800_000);
    api!(RedisModule_CreateTimer(
        module_ctx(),
        after_ms.cast_signed(),
        Some(on_timer),
        callback as *mut c_void
    ))
}

/// Stops a timer that has not fired yet.
pub fn stop_timer(timer: TimerId) {
    api!(RedisModule_StopTimer(module_ctx(), timer, ptr::null_mut()));
}

/// Makes the server look at its timers again. A timer started while the server is about to sleep
/// is seen by Redis 7.0 only after the sleep it had already decided on.
pub fn wake_event_loop() {
    api!(RedisModule_EventLoopAddOneShot(Some(on_wake), ptr::null_mut()));
}

/// After a panic a timer fires again so much later: what it had to do is not done.
const AFTER_PANIC_MS: u64 = 1000;

unsafe extern "C" fn on_timer(ctx: *mut raw::RedisModuleCtx, callback: *mut c_void) {
    // SAFETY: `start_timer` made this pointer from such a function.
    let callback: fn(OwnCtx<'_>) = unsafe { std::mem::transmute(callback) };
    // SAFETY: the server lends the context until this callback returns, and its client is no user's.
    let done = guard(c"a timer", || callback(unsafe { OwnCtx::from_raw(ctx) }));
    if done.is_none() {
        start_timer(AFTER_PANIC_MS, callback);
    }
}

unsafe extern "C" fn on_wake(_: *mut c_void) {}
