// SPDX-License-Identifier: MIT OR Apache-2.0

//! Clients that wait for their answer.
//!
//! The server wants `RM_UnblockClient` exactly once for every client that was blocked, also for one
//! that has gone. A [`Handle`] stands for that duty: it is consumed by [`Handle::answer`].
//!
//! Clients are blocked without a time limit of the server's. On Redis 7.0 a client that the server
//! times out between `RM_UnblockClient` and the reply gets no reply at all, and on 7.2 the server
//! asserts; the manager keeps the time instead.

use std::ffi::c_void;
use std::ptr;

use redis_module::raw;

use super::api::api;
use super::ctx::Ctx;
use super::guard::guard;
use super::reply::Reply;
use super::told::{HandleKey, told};

/// A blocked client, and the duty to unblock it.
pub struct Handle {
    pointer: *mut raw::RedisModuleBlockedClient,
    client_id: u64,
}

/// An answer on its way to the client.
struct Delivery {
    reply: Option<Reply>,
    client_id: u64,
}

/// Leaves the client of this command without an answer until [`Handle::answer`]. `None` where this
/// client cannot wait: Valkey from 8.1 on blocks none that has subscribed to channels.
pub fn block(ctx: Ctx<'_>) -> Option<Handle> {
    let (reply, timeout, free) = (on_reply, on_timeout, on_free);
    let client = api!(RedisModule_BlockClient(ctx.pointer(), Some(reply), Some(timeout), Some(free), 0));
    if client.is_null() {
        return None;
    }
    api!(RedisModule_SetDisconnectCallback(client, Some(on_disconnect)));
    Some(Handle { pointer: client, client_id: ctx.client_id() })
}

impl Handle {
    /// What the callbacks know this client by.
    pub fn key(&self) -> HandleKey {
        HandleKey(self.pointer.addr())
    }

    /// Ends the wait. Only from a timer: between here and the reply the server must not serve
    /// another command that unblocks the same client. `None` only frees what the server keeps, for
    /// a client that has gone or has been answered by a callback.
    pub fn answer(self, reply: Option<Reply>) {
        let delivery =
            reply.map(|reply| Box::new(Delivery { reply: Some(reply), client_id: self.client_id }));
        let data = delivery.map_or(ptr::null_mut(), |delivery| Box::into_raw(delivery).cast::<c_void>());
        api!(RedisModule_UnblockClient(self.pointer, data));
    }
}

unsafe extern "C" fn on_reply(
    ctx: *mut raw::RedisModuleCtx,
    _: *mut *mut raw::RedisModuleString,
    _: i32,
) -> i32 {
    guard(c"the reply to a waiting client", || {
        let delivery = api!(RedisModule_GetBlockedClientPrivateData(ctx)).cast::<Delivery>();
        // SAFETY: the data is the `Delivery` of `answer`, which `on_free` frees after this.
        if let Some(reply) = unsafe { delivery.as_mut() }.and_then(|delivery| delivery.reply.take()) {
            // SAFETY: the server lends the context until this callback returns.
            unsafe { Ctx::from_raw(ctx) }.send(reply);
        }
    });
    0
}

/// A reply that was not sent had a client that has gone, or one that `CLIENT UNBLOCK` has met after
/// `RM_UnblockClient`: Redis 7.0 with threaded reads runs commands in between, and leaves that client without
/// any answer. Its connection is closed, so that it asks again.
unsafe extern "C" fn on_free(ctx: *mut raw::RedisModuleCtx, data: *mut c_void) {
    guard(c"the end of a waiting client", || {
        // SAFETY: the data is the `Delivery` that `answer` let go of, and the server hands it back once.
        let delivery = unsafe { Box::from_raw(data.cast::<Delivery>()) };
        if delivery.reply.is_some() {
            api!(RedisModule_DeauthenticateAndCloseClient(ctx, delivery.client_id));
        }
    });
}

/// `CLIENT UNBLOCK id [TIMEOUT]`, and nothing else, since the server knows no time limit.
unsafe extern "C" fn on_timeout(
    ctx: *mut raw::RedisModuleCtx,
    _: *mut *mut raw::RedisModuleString,
    _: i32,
) -> i32 {
    guard(c"CLIENT UNBLOCK", || {
        told().wait_ended(HandleKey(api!(RedisModule_GetBlockedClientHandle(ctx)).addr()), true);
        // SAFETY: the server lends the context until this callback returns.
        unsafe { Ctx::from_raw(ctx) }.send(Reply::Int(0));
    });
    0
}

unsafe extern "C" fn on_disconnect(_: *mut raw::RedisModuleCtx, client: *mut raw::RedisModuleBlockedClient) {
    guard(c"a disconnect", || told().wait_ended(HandleKey(client.addr()), false));
}
