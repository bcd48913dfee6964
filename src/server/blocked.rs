//! Clients that wait for their answer.
//!
//! The server wants `RM_UnblockClient` exactly once for every client that was blocked, also for one
//! that has gone. A [`Handle`] stands for that duty: it is consumed by [`Handle::answer`].
//!
//! Clients are blocked without a time limit of the server's. On Redis 7.0 a client that the server
//! times out between `RM_UnblockClient` and the reply gets no reply at all, and on 7.2 the server
//! asserts; the desk keeps the time instead.

use std::ffi::c_void;
use std::ptr;

use redis_module::raw;

use super::ctx::{Ctx, Reply};
use super::{api, guard};

/// A blocked client, by the server's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(*mut raw::RedisModuleBlockedClient);

/// What happens to blocked clients.
#[derive(Clone, Copy)]
pub struct Callbacks {
    /// The client must be answered at once: somebody unblocked it.
    pub unblocked: fn(Ctx<'_>, Handle) -> Reply,
    /// The client has gone, or the server has answered it itself.
    pub gone: fn(Handle),
    /// The client of an answer is given it (true) or has gone before (false).
    pub delivered: fn(Ctx<'_>, Handle, bool),
}

/// An answer on its way to the client.
struct Delivery {
    handle: Handle,
    reply: Option<Reply>,
    callbacks: &'static Callbacks,
}

thread_local! {
    static CALLBACKS: std::cell::Cell<Option<&'static Callbacks>> = const { std::cell::Cell::new(None) };
}

/// Leaves the client of this command without an answer until [`Handle::answer`]. `None` where this
/// client cannot wait: Valkey from 8.1 on blocks none that has subscribed to channels.
pub fn block(ctx: Ctx<'_>, callbacks: &'static Callbacks) -> Option<Handle> {
    CALLBACKS.set(Some(callbacks));
    let client =
        api!(RedisModule_BlockClient(ctx.pointer(), Some(on_reply), Some(on_timeout), Some(on_free), 0));
    if client.is_null() {
        return None;
    }
    api!(RedisModule_SetDisconnectCallback(client, Some(on_disconnect)));
    Some(Handle(client))
}

impl Handle {
    /// Ends the wait. Only from a timer: between here and the reply the server must not serve
    /// another command that unblocks the same client. `None` only frees what the server keeps, for
    /// a client that has gone or has been answered by a callback.
    pub fn answer(self, reply: Option<Reply>) {
        let delivery = reply.and_then(|reply| {
            let callbacks = CALLBACKS.get()?;
            Some(Box::new(Delivery { handle: self, reply: Some(reply), callbacks }))
        });
        let data = delivery.map_or(ptr::null_mut(), |delivery| Box::into_raw(delivery).cast::<c_void>());
        api!(RedisModule_UnblockClient(self.0, data));
    }
}

unsafe extern "C" fn on_reply(
    ctx: *mut raw::RedisModuleCtx,
    _: *mut *mut raw::RedisModuleString,
    _: i32,
) -> i32 {
    guard("the reply to a waiting client", || {
        let delivery = api!(RedisModule_GetBlockedClientPrivateData(ctx)).cast::<Delivery>();
        // SAFETY: the data is the `Delivery` of `answer`, which `on_free` frees after this.
        let Some(delivery) = (unsafe { delivery.as_mut() }) else { return };
        if let Some(reply) = delivery.reply.take() {
            // SAFETY: the server lends the context until this callback returns.
            let ctx = unsafe { Ctx::from_raw(ctx) };
            ctx.send(reply);
            (delivery.callbacks.delivered)(ctx, delivery.handle, true);
        }
    });
    0
}

unsafe extern "C" fn on_free(ctx: *mut raw::RedisModuleCtx, data: *mut c_void) {
    guard("the end of a waiting client", || {
        // SAFETY: the data is the `Delivery` that `answer` let go of, and the server hands it back once.
        let delivery = unsafe { Box::from_raw(data.cast::<Delivery>()) };
        if delivery.reply.is_some() {
            // SAFETY: the server lends the context until this callback returns.
            (delivery.callbacks.delivered)(unsafe { Ctx::from_raw(ctx) }, delivery.handle, false);
        }
    });
}

/// `CLIENT UNBLOCK id [TIMEOUT]`, and nothing else, since the server knows no time limit.
unsafe extern "C" fn on_timeout(
    ctx: *mut raw::RedisModuleCtx,
    _: *mut *mut raw::RedisModuleString,
    _: i32,
) -> i32 {
    guard("CLIENT UNBLOCK", || {
        let handle = Handle(api!(RedisModule_GetBlockedClientHandle(ctx)));
        let Some(callbacks) = CALLBACKS.get() else { return };
        // SAFETY: the server lends the context until this callback returns.
        let ctx = unsafe { Ctx::from_raw(ctx) };
        ctx.send((callbacks.unblocked)(ctx, handle));
    });
    0
}

unsafe extern "C" fn on_disconnect(_: *mut raw::RedisModuleCtx, client: *mut raw::RedisModuleBlockedClient) {
    guard("a disconnect", || {
        if let Some(callbacks) = CALLBACKS.get() {
            (callbacks.gone)(Handle(client));
        }
    });
}
