// SPDX-License-Identifier: MIT OR Apache-2.0

//! The data type: what the server does with a stored lock without asking a command.
//!
//! The values are `Box<Lock>`. All callbacks but [`free`] run on the main thread; that one may run on a
//! thread of the server's, and touches nothing but its value, atomic counters, `SPARE` and `background_drop`.

use std::ffi::c_void;
use std::ptr;
use std::slice;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU64, Ordering};

use redis_module::raw;
use slock_core::{Lock, LockIdRef, format, wire};

use super::api::api;
use super::background_drop::drop_in_background;
use super::compat;
use super::ctx::Ctx;
use super::guard::guard;
use super::log::log_warning;
use super::module_ctx::own_ctx;
use super::string::Str;
use super::time::{monotonic_ms, now};
use super::told::told;
use crate::state::STATE;

/// A module type's name has exactly nine characters.
const NAME: &std::ffi::CStr = c"SLOCK-RWL";

/// The RDB format of the type: one string, whose own first byte is the version of the encoding.
/// A server that meets a greater number refuses the file.
const RDB_VERSION: i32 = 1;

/// Set once, at load.
static RAW_TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(ptr::null_mut());
/// Whether this process has written the last fence to the log that it rewrites. Only a child process notes it: it
/// rewrites one log, and ends.
static FENCE_IS_LOGGED: AtomicBool = AtomicBool::new(false);

static STORED: AtomicI64 = AtomicI64::new(0);

/// How many locks this process has in memory, in all databases.
pub fn stored_locks() -> i64 {
    STORED.load(Ordering::Relaxed)
}

pub(super) fn raw_type() -> *mut raw::RedisModuleType {
    RAW_TYPE.load(Ordering::Relaxed)
}

/// A lock that was released, without holders, for the next one to take its place in memory. To have the server allocate
/// and free that costs a tenth of what the module itself does for a lock that is taken and released.
static SPARE: Mutex<Option<Box<Lock>>> = Mutex::new(None);

/// A lock where it can be given to the server.
pub fn boxed(lock: Lock) -> Box<Lock> {
    match SPARE.try_lock().ok().and_then(|mut spare| spare.take()) {
        Some(mut spare) => {
            *spare = lock;
            spare
        }
        None => Box::new(lock),
    }
}

/// Gives a lock to the server, which calls [`free`] in the end.
pub(super) fn store(lock: Box<Lock>) -> *mut c_void {
    STORED.fetch_add(1, Ordering::Relaxed);
    Box::into_raw(lock).cast()
}

/// Registers the type. False if the server refuses.
pub fn register(ctx: Ctx<'_>) -> bool {
    let mut methods = raw::RedisModuleTypeMethods {
        version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
        rdb_load: Some(rdb_load),
        rdb_save: Some(rdb_save),
        aof_rewrite: Some(aof_rewrite),
        mem_usage: Some(mem_usage),
        free: Some(free),
        digest: Some(digest),
        aux_load: Some(aux_load),
        aux_save: Some(aux_save),
        aux_save2: Some(aux_save2),
        aux_save_triggers: raw::REDISMODULE_AUX_BEFORE_RDB as i32,
        free_effort: Some(free_effort),
        unlink: None,
        copy: None,
        defrag: Some(defrag),
        mem_usage2: Some(mem_usage2),
        free_effort2: None,
        unlink2: Some(unlink2),
        copy2: Some(copy2),
    };
    let created = api!(RedisModule_CreateDataType(ctx.pointer(), NAME.as_ptr(), RDB_VERSION, &mut methods));
    RAW_TYPE.store(created, Ordering::Relaxed);
    !created.is_null()
}

/// A stored value.
///
/// # Safety
/// `value` came from [`store`] and has not been freed; nobody changes it during `'a`.
unsafe fn lock<'a>(value: *const c_void) -> &'a Lock {
    // SAFETY: the caller's promise.
    unsafe { &*value.cast::<Lock>() }
}

/// The lock of this name.
///
/// # Safety
/// `name` is a live string of the server's during `'a`.
unsafe fn lock_id<'a>(db: i32, name: *const raw::RedisModuleString) -> LockIdRef<'a> {
    // SAFETY: the caller's promise.
    LockIdRef { db, name: unsafe { Str::from_raw(name.cast_mut()) }.bytes() }
}

unsafe extern "C" fn rdb_load(io: *mut raw::RedisModuleIO, version: i32) -> *mut c_void {
    // A null answer is "Bad data format" to RESTORE, and ends the loading of a file.
    guard(c"loading a lock", || match load(io, version) {
        Ok(lock) => {
            if !told().is_plausible(&lock) {
                log_refusal(
                    "its fence or a deadline lies more than an hour beyond what this server could give",
                );
                return ptr::null_mut();
            }
            told().fence_seen(lock.highest_fence());
            let (db, name) = (api!(RedisModule_GetDbIdFromIO(io)), api!(RedisModule_GetKeyNameFromIO(io)));
            if !name.is_null() {
                // SAFETY: the server lends the name until this returns.
                told().lock_appears(unsafe { lock_id(db, name) });
            }
            store(Box::new(lock))
        }
        Err(reason) => {
            log_refusal(&reason);
            ptr::null_mut()
        }
    })
    .unwrap_or(ptr::null_mut())
}

/// Logs that a payload is refused: once a minute, since a client can send many.
fn log_refusal(reason: &str) {
    const EVERY_MS: u64 = 60_000;
    static NEXT_MS: AtomicU64 = AtomicU64::new(0);
    let now_ms = monotonic_ms();
    if NEXT_MS.load(Ordering::Relaxed) <= now_ms {
        NEXT_MS.store(now_ms + EVERY_MS, Ordering::Relaxed);
        log_warning(&format!("a stored lock was refused (logged once a minute): {reason}"));
    }
}

fn load(io: *mut raw::RedisModuleIO, version: i32) -> Result<Lock, String> {
    if version != RDB_VERSION {
        return Err(format!("RDB format {version}, this build reads {RDB_VERSION}"));
    }
    let mut length = 0;
    let start = api!(RedisModule_LoadStringBuffer(io, &mut length));
    if start.is_null() || api!(RedisModule_IsIOError(io)) != 0 {
        return Err("truncated".into());
    }
    // SAFETY: the server allocated this many bytes for us and says where.
    let bytes = unsafe { slice::from_raw_parts(start.cast::<u8>(), length) };
    let decoded = format::decode(bytes).map_err(|malformed| malformed.to_string());
    api!(RedisModule_Free(start.cast()));
    decoded
}

unsafe extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    guard(c"saving a lock", || {
        // SAFETY: the server passes a stored value.
        let bytes = format::encode(unsafe { lock(value) });
        api!(RedisModule_SaveStringBuffer(io, bytes.as_ptr().cast(), bytes.len()));
    });
}

/// The last fence goes with the file, so that fences rise even when no lock is left to tell. In this
/// older form something must always be written.
unsafe extern "C" fn aux_save(io: *mut raw::RedisModuleIO, _: i32) {
    guard(c"saving the fence", || api!(RedisModule_SaveUnsigned(io, STATE.last_fence.get())));
}

/// Servers that know this form prefer it. Before the first fence it writes nothing, and a file
/// without locks loads where the module is not.
unsafe extern "C" fn aux_save2(io: *mut raw::RedisModuleIO, _: i32) {
    guard(c"saving the fence", || {
        if STATE.last_fence.get() > 0 {
            api!(RedisModule_SaveUnsigned(io, STATE.last_fence.get()));
        }
    });
}

unsafe extern "C" fn aux_load(io: *mut raw::RedisModuleIO, version: i32, _: i32) -> i32 {
    guard(c"loading the fence", || {
        if version != RDB_VERSION {
            return raw::REDISMODULE_ERR;
        }
        let last = api!(RedisModule_LoadUnsigned(io));
        if api!(RedisModule_IsIOError(io)) != 0 || last > slock_core::limits::NUMBER_MAX {
            return raw::REDISMODULE_ERR;
        }
        told().fence_seen(last);
        raw::REDISMODULE_OK
    })
    .unwrap_or(raw::REDISMODULE_ERR) as i32
}

/// The lock as the commands that make it. The server adds the expiry that the key has, if it has one: a user may have
/// taken it away.
unsafe extern "C" fn aof_rewrite(
    io: *mut raw::RedisModuleIO,
    name: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    guard(c"rewriting a lock", || {
        // SAFETY: the server passes a stored value.
        let lock = unsafe { lock(value) };
        let is_first = !FENCE_IS_LOGGED.load(Ordering::Relaxed);
        if is_first {
            FENCE_IS_LOGGED.store(own_ctx().as_ctx().is_child(), Ordering::Relaxed);
        }
        wire::rewrite(lock, is_first.then(|| STATE.last_fence.get()), &mut |change, meta| {
            let (command, change, length) = (c"SLOCK.APPLY".as_ptr(), change.as_ptr(), change.len());
            if meta.is_empty() {
                api!(RedisModule_EmitAOF(io, command, c"sb".as_ptr(), name, change, length));
            } else {
                let (form, meta, meta_length) = (c"sbb".as_ptr(), meta.as_ptr(), meta.len());
                api!(RedisModule_EmitAOF(io, command, form, name, change, length, meta, meta_length));
            }
        });
    });
}

unsafe extern "C" fn free(value: *mut c_void) {
    guard(c"freeing a lock", || {
        // SAFETY: the value came from `store`, and the server lets go of it here.
        let lock = unsafe { Box::from_raw(value.cast::<Lock>()) };
        STORED.fetch_sub(1, Ordering::Relaxed);
        if lock.is_empty() {
            // It was released. The server may free others in the background meanwhile: nobody waits here.
            if let Ok(mut spare) = SPARE.try_lock() {
                *spare = Some(lock);
            }
            return;
        }
        // It was not a release that emptied it. (Also one that `DEBUG RELOAD` drops and loads again.)
        STATE.count_expirations(lock.count_ended(now().unix_ms()));
        if lock.is_large() {
            drop_in_background(lock);
        }
    });
}

unsafe extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    guard(c"the digest of a lock", || {
        // SAFETY: the server passes a stored value.
        let bytes = format::encode(unsafe { lock(value) });
        api!(RedisModule_DigestAddStringBuffer(digest, bytes.as_ptr().cast(), bytes.len()));
        api!(RedisModule_DigestEndSequence(digest));
    });
}

/// What the server keeps for a lock beside the value and does not count itself: what wraps a value of a
/// module's (the module's value and the object around it, some 24 bytes), and the key's expiry, which
/// every lock has: an entry of 32 bytes and its share of two tables that are half to wholly full.
/// Valkey 9 keeps the expiry with the key and counts most of this. By `tests/test_memory.py`.
const SERVER_BYTES_APART: usize = 24 + 64;
const SERVER_BYTES_EMBEDDED: usize = 24 + 16;

unsafe extern "C" fn mem_usage(value: *const c_void) -> usize {
    let beside_value = if compat::embeds_expiries() { SERVER_BYTES_EMBEDDED } else { SERVER_BYTES_APART };
    // SAFETY: the server passes a stored value.
    beside_value + unsafe { lock(value) }.heap_bytes()
}

unsafe extern "C" fn mem_usage2(_: *mut raw::RedisModuleKeyOptCtx, value: *const c_void, _: usize) -> usize {
    // SAFETY: the server passes a stored value.
    unsafe { mem_usage(value) }
}

/// From some 64 holders on, the server frees the lock in the background. Never 0, which would mean
/// "always in the background": a released lock is empty by the time it is freed.
unsafe extern "C" fn free_effort(_: *mut raw::RedisModuleString, value: *const c_void) -> usize {
    // SAFETY: the server passes a stored value.
    unsafe { lock(value) }.len().max(1)
}

/// A lock without holders is one that an effect has emptied and that we remove: nothing new to us.
unsafe extern "C" fn unlink2(ctx: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    guard(c"the removal of a lock", || {
        // SAFETY: the server passes a stored value.
        if unsafe { lock(value) }.is_empty() {
            return;
        }
        let (db, name) =
            (api!(RedisModule_GetDbIdFromOptCtx(ctx)), api!(RedisModule_GetKeyNameFromOptCtx(ctx)));
        // SAFETY: the server lends the name until this returns.
        told().lock_removed(unsafe { lock_id(db, name) });
    });
}

unsafe extern "C" fn copy2(ctx: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) -> *mut c_void {
    guard(c"copying a lock", || {
        let (db, name) =
            (api!(RedisModule_GetToDbIdFromOptCtx(ctx)), api!(RedisModule_GetToKeyNameFromOptCtx(ctx)));
        // SAFETY: the server lends the name until this returns.
        told().lock_appears(unsafe { lock_id(db, name) });
        // SAFETY: the server passes a stored value.
        store(Box::new(unsafe { lock(value) }.clone()))
    })
    .unwrap_or(ptr::null_mut())
}

/// So many holders are moved before the server is asked whether that is enough for now.
const MOVED_AT_ONCE: usize = 64;

/// Moves the lock and what its holders have on the heap; its tables stay where they are. Of a lock with many holders it
/// goes on, in the next call, behind the fence that the cursor says.
unsafe extern "C" fn defrag(
    ctx: *mut raw::RedisModuleDefragCtx,
    _: *mut raw::RedisModuleString,
    value: *mut *mut c_void,
) -> i32 {
    // SAFETY: entries of the API table are written once, at load.
    let calls = unsafe {
        let cursor = raw::RedisModule_DefragCursorGet.zip(raw::RedisModule_DefragCursorSet);
        raw::RedisModule_DefragAlloc.zip(raw::RedisModule_DefragShouldStop).zip(cursor)
    };
    let Some(((relocate, should_stop), (cursor_get, cursor_set))) = calls else { return 0 };
    let is_unfinished = guard(c"defragmenting a lock", || {
        let mut done_up_to = 0;
        // SAFETY: the server lends the context until this callback returns.
        unsafe { cursor_get(ctx, &mut done_up_to) };
        // SAFETY: `value` points to the server's pointer to a stored value. `relocate` answers null, or has moved the
        // bytes to a new allocation of the same size and freed the old one. So has it below.
        let lock = unsafe {
            let moved = if done_up_to == 0 { relocate(ctx, *value) } else { ptr::null_mut() };
            if !moved.is_null() {
                *value = moved;
            }
            &mut **value.cast::<*mut Lock>()
        };
        for (number, (fence, string)) in (1..).zip(lock.bytes_after(done_up_to)) {
            // SAFETY: as above.
            let stops = || unsafe {
                should_stop(ctx) != 0 && cursor_set(ctx, fence - 1) == raw::REDISMODULE_OK as i32
            };
            if number % MOVED_AT_ONCE == 0 && stops() {
                return true;
            }
            let Some(string) = string else { continue };
            let length = string.len();
            // SAFETY: see `value` above.
            let moved = unsafe { relocate(ctx, string.as_mut_ptr().cast()) }.cast::<u8>();
            if !moved.is_null() {
                // SAFETY: these are the bytes, where they are now.
                let new = unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(moved, length)) };
                std::mem::forget(std::mem::replace(string, new));
            }
        }
        false
    });
    i32::from(is_unfinished == Some(true))
}
