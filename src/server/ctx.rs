// SPDX-License-Identifier: MIT OR Apache-2.0

//! The context of a callback: which client it serves, which database it sees, what kind of server it runs in.
//!
//! What else a context is for stands in `reply`, `announce`, `status` and `cluster`.
//!
//! To select a database on the context of a command moves the *client* there, for good. So only an
//! [`OwnCtx`], which belongs to no client, can.

use std::marker::PhantomData;

use redis_module::raw;

use super::api::api;

/// The context that the server gives to one callback.
#[derive(Clone, Copy)]
pub struct Ctx<'a> {
    pointer: *mut raw::RedisModuleCtx,
    lent: PhantomData<&'a ()>,
}

impl<'a> Ctx<'a> {
    /// Wraps what the server handed to a callback.
    ///
    /// # Safety
    /// `pointer` is the live context of a callback that lasts for `'a`.
    pub(super) unsafe fn from_raw(pointer: *mut raw::RedisModuleCtx) -> Self {
        Self { pointer, lent: PhantomData }
    }

    pub(super) fn pointer(self) -> *mut raw::RedisModuleCtx {
        self.pointer
    }

    /// The database that this context sees.
    pub fn db(self) -> i32 {
        api!(RedisModule_GetSelectedDb(self.pointer))
    }

    /// The connection that this command came from; 0 where there is none.
    pub fn client_id(self) -> u64 {
        api!(RedisModule_GetClientId(self.pointer))
    }

    pub(super) fn flags(self) -> u32 {
        api!(RedisModule_GetContextFlags(self.pointer)) as u32
    }

    /// Whether the command may leave its client without an answer for a while: not in `MULTI`,
    /// scripts, functions, another module's call, or while a log is loaded.
    pub fn may_block(self) -> bool {
        let forbidding = raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING
            | raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_REPLICATED;
        self.flags() & forbidding == 0
    }

    /// Whether a script or a function runs the command, rather than a connection.
    pub fn is_in_script(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_LUA != 0
    }

    /// Whether the command comes from the primary of this replica.
    pub fn is_replicated(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_REPLICATED != 0
    }

    /// Whether the server loads a data set, from a file or from its primary.
    pub fn is_loading(self) -> bool {
        let loading = raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
        self.flags() & loading != 0
    }

    /// Whether this process is a child of the server's, which writes a file.
    pub fn is_child(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_IS_CHILD != 0
    }

    /// Whether ordinary clients can write to this server: it is a primary, or a replica that takes writes.
    pub fn takes_writes(self) -> bool {
        !self.is_replica() || self.flags() & raw::REDISMODULE_CTX_FLAGS_READONLY == 0
    }

    /// Whether this server is a replica.
    pub fn is_replica(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_SLAVE != 0
    }

    /// Whether this server is a node of a cluster.
    pub fn is_cluster(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_CLUSTER != 0
    }

    /// Whether the server evicts keys of this kind, those with an expiry, when memory runs out.
    pub fn may_evict(self) -> bool {
        self.flags() & raw::REDISMODULE_CTX_FLAGS_EVICT != 0
    }
}

/// A context of the module's own: of a timer, or kept since the load. It belongs to no client.
#[derive(Clone, Copy)]
pub struct OwnCtx<'a>(Ctx<'a>);

impl<'a> OwnCtx<'a> {
    /// Wraps a context of the module's own.
    ///
    /// # Safety
    /// `pointer` is live for `'a`, and no client's.
    pub(super) unsafe fn from_raw(pointer: *mut raw::RedisModuleCtx) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { Ctx::from_raw(pointer) })
    }

    /// This context, as any other.
    pub fn as_ctx(self) -> Ctx<'a> {
        self.0
    }

    /// Turns to another database.
    pub fn select_db(self, db: i32) {
        if self.0.db() != db {
            api!(RedisModule_SelectDb(self.0.pointer, db));
        }
    }
}
