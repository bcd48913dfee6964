// SPDX-License-Identifier: MIT OR Apache-2.0

//! Keys of the server's keyspace, seen as locks.

use std::marker::PhantomData;

use redis_module::raw;
use slock_core::Lock;

use super::api::api;
use super::ctx::Ctx;
use super::datatype;
use super::string::Str;

/// A key that is open. If anything may have run other commands since, [`LockKey::let_go`] of it.
pub struct LockKey<'a> {
    /// Null if the value is of another type, which is not kept open: the server would use a value that other commands
    /// may have removed. Also null if there is no key, and it was opened to read.
    pointer: *mut raw::RedisModuleKey,
    /// What is stored here. The server is asked once: only we change it while it is open.
    value: Opened<*mut Lock>,
    lent: PhantomData<&'a ()>,
}

/// What is stored at a key.
#[derive(Clone, Copy)]
pub enum Opened<L> {
    /// Nothing.
    Empty,
    /// A lock.
    Lock(L),
    /// A value of another type.
    OtherType,
}

impl<L> Opened<L> {
    fn map<M>(self, change: impl FnOnce(L) -> M) -> Opened<M> {
        match self {
            Self::Empty => Opened::Empty,
            Self::Lock(lock) => Opened::Lock(change(lock)),
            Self::OtherType => Opened::OtherType,
        }
    }
}

impl<'a> LockKey<'a> {
    /// Opens a key to change it. It is not an access that `WATCH` would see; see
    /// [`Ctx::signal_modified`].
    #[inline(always)]
    pub fn open(ctx: Ctx<'a>, name: Str<'_>) -> Self {
        Self::open_as(ctx, name, (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE) as i32)
    }

    /// Opens a key to look at it.
    pub fn open_to_read(ctx: Ctx<'a>, name: Str<'_>) -> Self {
        Self::open_as(ctx, name, raw::REDISMODULE_READ as i32)
    }

    #[inline(always)]
    fn open_as(ctx: Ctx<'a>, name: Str<'_>, mode: i32) -> Self {
        let pointer = api!(RedisModule_OpenKey(ctx.pointer(), name.pointer(), mode));
        let mut key = Self { pointer, value: stored_at(pointer), lent: PhantomData };
        if let Opened::OtherType = key.value {
            key.close();
        }
        key
    }

    fn close(&mut self) {
        if !self.pointer.is_null() {
            api!(RedisModule_CloseKey(self.pointer));
            self.pointer = std::ptr::null_mut();
        }
    }

    /// Gives the key up without touching its lock, which may have been removed.
    pub fn let_go(self) {
        if let Opened::Lock(_) = self.value {
            std::mem::forget(self);
        }
    }

    /// What is stored here, to look at.
    pub fn get(&self) -> Opened<&Lock> {
        // SAFETY: values of our type are locks made by `datatype::store`. This borrow of `self` keeps `set`,
        // `delete` and `get_mut` away while it lives; other commands do not run meanwhile.
        self.value.map(|value| unsafe { &*value })
    }

    /// What is stored here, to change.
    pub fn get_mut(&mut self) -> Opened<&mut Lock> {
        // SAFETY: as above, and it keeps `get` away too.
        self.value.map(|value| unsafe { &mut *value })
    }

    /// Stores a lock where there was nothing.
    #[inline(always)]
    pub fn set(&mut self, lock: Box<Lock>) {
        let value = datatype::store(lock);
        api!(RedisModule_ModuleTypeSetValue(self.pointer, datatype::raw_type(), value));
        self.value = Opened::Lock(value.cast());
    }

    /// Sets when the server may collect the key.
    pub fn expire_at_ms(&mut self, at_ms: u64) {
        api!(RedisModule_SetAbsExpire(self.pointer, i64::try_from(at_ms).unwrap_or(i64::MAX)));
    }

    /// When the server may collect the key, if ever.
    pub fn expires_ms(&self) -> Option<u64> {
        u64::try_from(api!(RedisModule_GetAbsExpire(self.pointer))).ok()
    }

    /// Removes the key.
    pub fn delete(&mut self) {
        api!(RedisModule_DeleteKey(self.pointer));
        self.value = Opened::Empty;
    }
}

fn stored_at(pointer: *mut raw::RedisModuleKey) -> Opened<*mut Lock> {
    // No type is that of no key (one opened to read that does not exist), of an empty key and of a built-in type.
    let its_type = api!(RedisModule_ModuleTypeGetType(pointer));
    if !its_type.is_null() && its_type == datatype::raw_type() {
        Opened::Lock(api!(RedisModule_ModuleTypeGetValue(pointer)).cast::<Lock>())
    } else if api!(RedisModule_KeyType(pointer)) == raw::REDISMODULE_KEYTYPE_EMPTY as i32 {
        Opened::Empty
    } else {
        Opened::OtherType
    }
}

impl Drop for LockKey<'_> {
    fn drop(&mut self) {
        self.close();
    }
}
