// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a holder does with what it holds: `UNLOCK`, `RUNLOCK`, `EXTEND`, `DOWNGRADE`, `MUNLOCK`,
//! `MEXTEND`.
//!
//! ```text
//! SLOCK.UNLOCK    key token [FENCE n]              1 released, 0 does not hold it for write
//! SLOCK.RUNLOCK   key token [FENCE n]              1 released, 0 does not hold it for read
//! SLOCK.EXTEND    key token ttl-ms [GT] [FENCE n]  1 the deadline is now + ttl, 0 not a holder
//! SLOCK.DOWNGRADE key token ttl-ms [FENCE n]       the new fence
//! SLOCK.MUNLOCK   numkeys key [key ...] token [FENCE n] [REFUSE ms] [REASON text]
//!                                                  how many were released
//! SLOCK.MEXTEND   numkeys key [key ...] token ttl-ms [GT] [FENCE n]
//!                                                  1 all extended, 0 one or more lost, none changed
//! ```
//!
//! With `FENCE` only the hold with this fence is meant: where the token holds by another one, it is as if it held
//! nothing. With `REFUSE` the acquisition ends as a whole: see `LockManager::end`. With `REASON` a release goes into
//! the server's log.

use slock_core::{Extension, HoldRef, Mode};

use super::args::{Args, error};
use crate::runtime::operate;
use crate::server::{Ctx, Reply, Str, log_notice, loggable};

pub fn unlock(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    one(ctx, args, Mode::Write)
}

pub fn runlock(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    one(ctx, args, Mode::Read)
}

fn one(ctx: Ctx<'_>, args: &[Str<'_>], mode: Mode) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let (keys, token, options) = (args.key()?, args.token()?, args.options(&["FENCE"])?);
    release(ctx, keys, HoldRef { token, fence: options.fence }, Some(mode))
}

pub fn munlock(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let (keys, token, options) =
        (args.keys(1)?, args.token()?, args.options(&["FENCE", "REFUSE", "REASON"])?);
    match (options.fence, options.refuse_ms, options.reason) {
        (Some(_), Some(_), _) => error("ERR option REFUSE does not go with FENCE"),
        (None, Some(ms), None) => {
            operate(ctx, keys, |manager, operation| manager.end(operation, token, ms)).map(number)
        }
        (fence, None, None) => release(ctx, keys, HoldRef { token, fence }, None),
        (Some(fence), None, Some(reason)) if keys.len() == 1 => {
            let reply = release(ctx, keys, HoldRef { token, fence: Some(fence) }, None)?;
            if matches!(reply, Reply::Int(1)) {
                log_end(ctx, keys[0], fence, reason);
            }
            Ok(reply)
        }
        _ => error("ERR option REASON needs FENCE and a single key"),
    }
}

/// Logs that a user has ended a lease, and why. Other lines of the log say nothing of locks, so this takes no more than
/// a line for each release that asks for it.
fn log_end(ctx: Ctx<'_>, key: Str<'_>, fence: u64, reason: &[u8]) {
    let user = ctx.user_name().map_or_else(|| "unknown".to_owned(), |user| loggable(user.as_str().bytes()));
    let (key, reason) = (loggable(key.bytes()), loggable(reason));
    log_notice(&format!("user {user} ended the lease of {key} with fencing token {fence}: {reason}"));
}

fn release<'a>(
    ctx: Ctx<'a>,
    keys: &'a [Str<'a>],
    hold: HoldRef<'_>,
    mode: Option<Mode>,
) -> Result<Reply, Reply> {
    operate(ctx, keys, |manager, operation| manager.release(operation, hold, mode)).map(number)
}

fn number(released: usize) -> Reply {
    Reply::Int(i64::try_from(released).unwrap_or(i64::MAX))
}

pub fn extend(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    extend_all(ctx, args.key()?, args)
}

pub fn mextend(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    extend_all(ctx, args.keys(2)?, args)
}

fn extend_all<'a>(ctx: Ctx<'a>, keys: &'a [Str<'a>], mut args: Args<'_>) -> Result<Reply, Reply> {
    let token = args.token()?;
    let ttl_ms = args.ttl_ms()?;
    let options = args.options(&["GT", "FENCE"])?;
    let extension = if options.is_at_least { Extension::AtLeastTo(ttl_ms) } else { Extension::To(ttl_ms) };
    let hold = HoldRef { token, fence: options.fence };
    let extended = operate(ctx, keys, |manager, operation| manager.extend(operation, hold, extension))?;
    Ok(Reply::Int(extended.into()))
}

pub fn downgrade(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let (keys, token, ttl_ms) = (args.key()?, args.token()?, args.ttl_ms()?);
    let hold = HoldRef { token, fence: args.options(&["FENCE"])?.fence };
    let fence = operate(ctx, keys, |manager, operation| manager.downgrade(operation, hold, ttl_ms))?;
    Ok(Reply::Int(fence.cast_signed()))
}
