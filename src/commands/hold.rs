//! What a holder does with what it holds: `UNLOCK`, `RUNLOCK`, `EXTEND`, `DOWNGRADE`, `MUNLOCK`,
//! `MEXTEND`.
//!
//! ```text
//! SLOCK.UNLOCK    key token                              1 released, 0 does not hold it for write
//! SLOCK.RUNLOCK   key token                              1 released, 0 does not hold it for read
//! SLOCK.EXTEND    key token ttl-ms                       1 the deadline is now + ttl, 0 not a holder
//! SLOCK.DOWNGRADE key token ttl-ms                       the new fence
//! SLOCK.MUNLOCK   numkeys key [key ...] token            how many were released
//! SLOCK.MEXTEND   numkeys key [key ...] token ttl-ms     1 all extended, 0 one or more lost, none changed
//! ```

use slock_core::{LockIdRef, Mode};

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
    let (key, token) = (args.key()?, args.token()?);
    on_primary()?;
    let lock = LockIdRef { db: ctx.db(), name: key[0].bytes() };
    let store = Keyspace::of_command(ctx, key);
    let released =
        operate(store, |manager, store, now| manager.release(store, now, lock, token, Some(mode)))?;
    Ok(Reply::Int(released.into()))
}

pub fn extend(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let key = args.key()?;
    extend_all(ctx, key, &[key[0].bytes()], args.token()?, args.ttl_ms()?)
}

pub fn mextend(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let keys = args.keys(2)?;
    let (token, ttl_ms) = (args.token()?, args.ttl_ms()?);
    args.end()?;
    extend_all(ctx, keys, &names(keys), token, ttl_ms)
}

fn extend_all(
    ctx: Ctx<'_>,
    keys: &[Str<'_>],
    names: &[&[u8]],
    token: &[u8],
    ttl_ms: u64,
) -> Result<Reply, Reply> {
    on_primary()?;
    let db = ctx.db();
    let store = Keyspace::of_command(ctx, keys);
    let extended =
        operate(store, |manager, store, now| manager.extend(store, now, db, names, token, ttl_ms))?;
    Ok(Reply::Int(extended.into()))
}

pub fn downgrade(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let (key, token, ttl_ms) = (args.key()?, args.token()?, args.ttl_ms()?);
    on_primary()?;
    let lock = LockIdRef { db: ctx.db(), name: key[0].bytes() };
    let store = Keyspace::of_command(ctx, key);
    let fence = operate(store, |manager, store, now| manager.downgrade(store, now, lock, token, ttl_ms))?;
    Ok(Reply::Int(fence.cast_signed()))
}

pub fn munlock(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let (keys, token) = (args.keys(1)?, args.token()?);
    args.end()?;
    on_primary()?;
    let (db, names) = (ctx.db(), names(keys));
    let store = Keyspace::of_command(ctx, keys);
    let released = operate(store, |manager, store, now| manager.release_all(store, now, db, &names, token))?;
    Ok(Reply::Int(i64::try_from(released).unwrap_or(i64::MAX)))
}
