//! A module for tests that measures the turns of the server's event loop: the CPU time of its thread from one sleep
//! to the next. Other processes of the machine and other threads of the server do not count. It knows nothing of
//! locks.
//!
//! ```text
//! TURNS.RESET   begins anew, in the middle of this turn
//! TURNS.READ    since then, of the turns that have ended: how many, nanoseconds in all, nanoseconds of the longest
//! ```

use std::cell::Cell;
use std::ffi::c_void;

use redis_module::{Context, RedisError, RedisResult, RedisString, RedisValue, Status, raw, redis_module};

thread_local! {
    static METER: Meter = const { Meter { began_ns: Cell::new(0), turns: Cell::new(0), all_ns: Cell::new(0), longest_ns: Cell::new(0) } };
}

struct Meter {
    /// When this turn began, by the CPU time of the thread.
    began_ns: Cell<i64>,
    turns: Cell<i64>,
    all_ns: Cell<i64>,
    longest_ns: Cell<i64>,
}

/// The CPU time of this thread.
fn used_ns() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the time where the pointer says, which lives until the call has returned.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn reset(_: &Context, _: Vec<RedisString>) -> RedisResult {
    METER.with(|meter| {
        meter.turns.set(0);
        meter.all_ns.set(0);
        meter.longest_ns.set(0);
        meter.began_ns.set(used_ns());
    });
    Ok(RedisValue::SimpleStringStatic("OK"))
}

fn read(_: &Context, args: Vec<RedisString>) -> RedisResult {
    if args.len() != 1 {
        return Err(RedisError::WrongArity);
    }
    let figures = METER.with(|meter| [meter.turns.get(), meter.all_ns.get(), meter.longest_ns.get()]);
    Ok(RedisValue::Array(figures.map(RedisValue::Integer).into()))
}

unsafe extern "C" fn on_sleep(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    _: *mut c_void,
) {
    METER.with(|meter| {
        if sub == raw::REDISMODULE_SUBEVENT_EVENTLOOP_BEFORE_SLEEP {
            let took_ns = used_ns() - meter.began_ns.get();
            meter.turns.set(meter.turns.get() + 1);
            meter.all_ns.set(meter.all_ns.get() + took_ns);
            meter.longest_ns.set(meter.longest_ns.get().max(took_ns));
        } else {
            meter.began_ns.set(used_ns());
        }
    });
}

fn start(ctx: &Context, _: &[RedisString]) -> Status {
    let event = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_EVENTLOOP, dataver: 1 };
    // SAFETY: the server gave the context for this call and set the function before; the callback is a static function.
    let subscribed = unsafe {
        raw::RedisModule_SubscribeToServerEvent.map(|subscribe| subscribe(ctx.ctx, event, Some(on_sleep)))
    };
    if subscribed == Some(raw::REDISMODULE_OK as i32) { Status::Ok } else { Status::Err }
}

redis_module! {
    name: "turns",
    version: 1,
    allocator: (redis_module::alloc::RedisAlloc, redis_module::alloc::RedisAlloc),
    data_types: [],
    init: start,
    commands: [
        ["turns.reset", reset, "", 0, 0, 0, ""],
        ["turns.read", read, "", 0, 0, 0, ""],
    ],
}
