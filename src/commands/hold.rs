//! What a holder does with what it holds: `UNLOCK`, `RUNLOCK`, `EXTEND`, `DOWNGRADE`, `MUNLOCK`,
//! `MEXTEND`.
//!
//! ```text
//! SLOCK.UNLOCK    key token [FENCE n]                    1 released, 0 does not hold it for write
//! SLOCK.RUNLOCK   key token [FENCE n]                    1 released, 0 does not hold it for read
//! SLOCK.EXTEND    key token ttl-ms [GT] [FENCE n]        1 the deadline is now + ttl, 0 not a holder
//! SLOCK.DOWNGRADE key token ttl-ms [FENCE n]             the new fence
//! SLOCK.MUNLOCK   numkeys key [key ...] token [FENCE n]  how many were released
//! SLOCK.MEXTEND   numkeys key [key ...] token ttl-ms [GT] [FENCE n]
//!                                                        1 all extended, 0 one or more lost, none changed
//! ```
//!
//! With `FENCE` only the hold with this fence is meant: where the token holds by another one, it is as if it held
//! nothing.

use slock_core::{Extension, HoldRef, Mode};

use super::args::Args;
use crate::runtime::operate;
use crate::server::{Ctx, Reply, Str};

pub fn unlock(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    release(ctx, args.key()?, args, Some(Mode::Write))
}

pub fn runlock(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    release(ctx, args.key()?, args, Some(Mode::Read))
}

pub fn munlock(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    release(ctx, args.keys(1)?, args, None)
}

fn release<'a>(
    ctx: Ctx<'a>,
    keys: &'a [Str<'a>],
    mut args: Args<'_>,
    mode: Option<Mode>,
) -> Result<Reply, Reply> {
    let hold = HoldRef { token: args.token()?, fence: args.options(&["FENCE"])?.fence };
    let released = operate(ctx, keys, |manager, operation| manager.release(operation, hold, mode))?;
    Ok(Reply::Int(i64::try_from(released).unwrap_or(i64::MAX)))
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
