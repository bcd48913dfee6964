// SPDX-License-Identifier: MIT OR Apache-2.0

//! Operations for commands, and leaving their clients waiting.

use slock_core::{AcquireOutcome, LockError, LockManager, Operation, ReplyTo, Request, RequestId};

use super::working_state::{Runtime, try_with_runtime};
use crate::errors::{error_reply, in_use};
use crate::keyspace::Keyspace;
use crate::server::{self, Ctx, Reply, Str};
use crate::state::STATE;

/// Decisions are the primary's, also where a replica takes writes from its own clients. And no log
/// decides: what it holds are effects.
///
/// # Errors
/// The error reply, elsewhere.
pub fn on_primary() -> Result<(), Reply> {
    if STATE.only_follows() {
        return Err(Reply::Error("READONLY You can't write against a read only replica.".into()));
    }
    Ok(())
}

/// Looks at the manager, and at any keys.
///
/// # Errors
/// The error reply, while an operation is under way.
pub fn look<R>(look: impl FnOnce(&LockManager, &mut Keyspace<'_>) -> R) -> Result<R, Reply> {
    let look = |keys: &mut Keyspace<'_>| try_with_runtime(|runtime| look(&runtime.manager, keys));
    Keyspace::with_all(server::own_ctx(), look).ok_or_else(in_use)
}

/// Has the manager do something with the keys of a command, sees to what follows from it, and tells subscribers.
///
/// # Errors
/// The error reply: of the manager, on a replica, or while an operation is under way.
pub fn operate<'c, R>(
    ctx: Ctx<'c>,
    keys: &'c [Str<'c>],
    work: impl FnOnce(&mut LockManager, Operation<'_, Keyspace<'c>>) -> Result<R, LockError>,
) -> Result<R, Reply> {
    on_primary()?;
    with_runtime(ctx, keys, |runtime, operation| work(&mut runtime.manager, operation))?
        .map_err(|error| error_reply(&error))
}

/// Asks for a hold of these keys, and leaves the request waiting if it has to.
///
/// # Errors
/// The error reply.
#[inline(always)]
pub fn acquire<'c>(ctx: Ctx<'c>, keys: &'c [Str<'c>], request: &Request<'_>) -> Result<Reply, Reply> {
    with_runtime(ctx, keys, |runtime, operation| match runtime.manager.acquire(operation, request) {
        Ok(AcquireOutcome::Granted(fence)) => Ok(Reply::Int(fence.cast_signed())),
        Ok(AcquireOutcome::Refused) => Ok(Reply::Int(0)),
        Ok(AcquireOutcome::Waiting(id)) => wait(runtime, ctx, id, request.reply_to),
        Err(error) => Err(error_reply(&error)),
    })?
}

#[inline(always)]
fn with_runtime<'c, R>(
    ctx: Ctx<'c>,
    keys: &'c [Str<'c>],
    work: impl FnOnce(&mut Runtime, Operation<'_, Keyspace<'c>>) -> R,
) -> Result<R, Reply> {
    let result = Keyspace::with_keys(ctx, keys, |operation| {
        try_with_runtime(|runtime| {
            let now = operation.now();
            let result = work(runtime, operation);
            runtime.reschedule(now);
            result
        })
    });
    result.ok_or_else(in_use)
}

/// Leaves this request waiting. Its client is blocked, or told at once that it waits.
fn wait(
    runtime: &mut Runtime,
    ctx: Ctx<'_>,
    request: RequestId,
    reply_to: ReplyTo<'_>,
) -> Result<Reply, Reply> {
    if reply_to != ReplyTo::Client {
        return Ok(Reply::Null);
    }
    let Some(handle) = server::block(ctx) else {
        runtime.manager.abandon(request);
        return Err(Reply::Error(
            "ERR this server does not block a client that has subscribed to channels; wait with NOTIFY, or on \
             another connection"
                .into(),
        ));
    };
    runtime.clients.blocked.insert(request, handle);
    Ok(Reply::Sent)
}
