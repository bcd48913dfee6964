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

use slock_core::{HoldRef, LockIdRef, Mode};

use super::args::Args;
use super::call::{names, on_primary, operate};
use crate::keyspace::Keyspace;
use crate::server::{Ctx, Reply, Str};

pub fn unlock(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    release(ctx, args, Mode::Write)
}

pub fn runlock(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    release(ctx, args, Mode::Read)
}

fn release(ctx: Ctx<'_>, args: &[Str<'_>], mode: Mode) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let key = args.key()?;
    let hold = HoldRef { token: args.token()?, fence: args.fence_option()? };
    on_primary()?;
    let lock = LockIdRef { db: ctx.db(), name: key[0].bytes() };
    let store = Keyspace::of_command(ctx, key);
    let released = operate(store, |manager, store, now| manager.release(store, now, lock, hold, Some(mode)))?;
    Ok(Reply::Int(released.into()))
}

pub fn extend(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let key = args.key()?;
    extend_all(ctx, key, &[key[0].bytes()], args)
}

pub fn mextend(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let keys = args.keys(2)?;
    extend_all(ctx, keys, &names(keys), args)
}

fn extend_all(ctx: Ctx<'_>, keys: &[Str<'_>], names: &[&[u8]], mut args: Args<'_>) -> Result<Reply, Reply> {
    let token = args.token()?;
    let (extension, fence) = args.extension()?;
    on_primary()?;
    let (db, hold) = (ctx.db(), HoldRef { token, fence });
    let store = Keyspace::of_command(ctx, keys);
    let extended =
        operate(store, |manager, store, now| manager.extend(store, now, db, names, hold, extension))?;
    Ok(Reply::Int(extended.into()))
}

pub fn downgrade(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let (key, token, ttl_ms) = (args.key()?, args.token()?, args.ttl_ms()?);
    let hold = HoldRef { token, fence: args.fence_option()? };
    on_primary()?;
    let lock = LockIdRef { db: ctx.db(), name: key[0].bytes() };
    let store = Keyspace::of_command(ctx, key);
    let fence = operate(store, |manager, store, now| manager.downgrade(store, now, lock, hold, ttl_ms))?;
    Ok(Reply::Int(fence.cast_signed()))
}

pub fn munlock(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let keys = args.keys(1)?;
    let hold = HoldRef { token: args.token()?, fence: args.fence_option()? };
    on_primary()?;
    let (db, names) = (ctx.db(), names(keys));
    let store = Keyspace::of_command(ctx, keys);
    let released = operate(store, |manager, store, now| manager.release_all(store, now, db, &names, hold))?;
    Ok(Reply::Int(i64::try_from(released).unwrap_or(i64::MAX)))
}
