//! Whatever may have to wait: `LOCK`, `RLOCK`, `UPGRADE`, `MLOCK`, `MRLOCK`.
//!
//! ```text
//! SLOCK.LOCK    key token ttl-ms [WAIT ms] [META data] [EPHEMERAL]
//! SLOCK.RLOCK   key token ttl-ms [WAIT ms] [META data] [EPHEMERAL]
//! SLOCK.UPGRADE key token ttl-ms [WAIT ms]
//! SLOCK.MLOCK   numkeys key [key ...] token ttl-ms [WAIT ms] [META data] [EPHEMERAL]
//! SLOCK.MRLOCK  numkeys key [key ...] token ttl-ms [WAIT ms] [META data] [EPHEMERAL]
//! ```
//!
//! The reply is the fence, or 0 when refused or when the wait ran out.

use slock_core::{AcquireOutcome, AcquireRequest, Mode, WaitPolicy, Want};

use super::args::{Args, Options, error};
use super::call::{names, on_primary};
use crate::errors::{error_reply, in_use};
use crate::keyspace::Keyspace;
use crate::runtime;
use crate::server::{Ctx, Reply, Str};

pub fn lock(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    one(ctx, args, Want::Hold(Mode::Write))
}

pub fn rlock(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    one(ctx, args, Want::Hold(Mode::Read))
}

pub fn upgrade(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    one(ctx, args, Want::Upgrade)
}

pub fn mlock(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    many(ctx, args, Want::Hold(Mode::Write))
}

pub fn mrlock(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    many(ctx, args, Want::Hold(Mode::Read))
}

fn one(ctx: Ctx<'_>, args: &[Str<'_>], want: Want) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let key = args.key()?;
    let (token, ttl_ms) = (args.token()?, args.ttl_ms()?);
    let options = args.options(want != Want::Upgrade)?;
    acquire(ctx, key, &[key[0].bytes()], token, ttl_ms, want, options)
}

fn many(ctx: Ctx<'_>, args: &[Str<'_>], want: Want) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let keys = args.keys(2)?;
    let (token, ttl_ms) = (args.token()?, args.ttl_ms()?);
    let options = args.options(true)?;
    acquire(ctx, keys, &names(keys), token, ttl_ms, want, options)
}

fn acquire(
    ctx: Ctx<'_>,
    keys: &[Str<'_>],
    names: &[&[u8]],
    token: &[u8],
    ttl_ms: u64,
    want: Want,
    options: Options<'_>,
) -> Result<Reply, Reply> {
    on_primary()?;
    if options.is_ephemeral && ctx.is_in_script() {
        return error("ERR EPHEMERAL is not possible in a script, which has no connection of its own");
    }
    let db = ctx.db();
    let connection = options.is_ephemeral.then(|| ctx.client_id()).filter(|id| *id != 0);
    // Where nothing may block, `WAIT` is as good as absent, as it is for `BLPOP`.
    let wait =
        if options.wait != WaitPolicy::NoWait && ctx.may_block() { options.wait } else { WaitPolicy::NoWait };
    let request = AcquireRequest { db, names, token, want, ttl_ms, meta: options.meta, wait, connection };
    let store = Keyspace::of_command(ctx, keys);
    match runtime::acquire(ctx, store, &request) {
        Some(Ok(AcquireOutcome::Granted(fence))) => Ok(Reply::Int(fence.cast_signed())),
        Some(Ok(AcquireOutcome::Refused)) => Ok(Reply::Int(0)),
        Some(Ok(AcquireOutcome::Waiting(_))) => Ok(Reply::Sent),
        Some(Err(error)) => Err(error_reply(&error)),
        None => Err(in_use()),
    }
}
