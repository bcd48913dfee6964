//! Whatever may have to wait: `LOCK`, `RLOCK`, `UPGRADE`, `MLOCK`, `MRLOCK`.
//!
//! ```text
//! SLOCK.LOCK    key token ttl-ms [WAIT ms] [META data] [EPHEMERAL]
//! SLOCK.RLOCK   key token ttl-ms [WAIT ms] [META data] [LIMIT n] [EPHEMERAL]
//! SLOCK.UPGRADE key token ttl-ms [WAIT ms]
//! SLOCK.MLOCK   numkeys key [key ...] token ttl-ms [WAIT ms] [META data] [EPHEMERAL]
//! SLOCK.MRLOCK  numkeys key [key ...] token ttl-ms [WAIT ms] [META data] [LIMIT n] [EPHEMERAL]
//! ```
//!
//! The reply is the fence, or 0 when refused or when the wait ran out.

use slock_core::{AcquireOutcome, AcquireRequest, Mode, WaitPolicy, Want};

use super::args::{Args, OptionSet, Options, error};
use super::call::{names, on_primary};
use crate::errors::{error_reply, in_use};
use crate::keyspace::Keyspace;
use crate::runtime;
use crate::server::{Ctx, Reply, Str};
use crate::state::WaitingCommand;

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
    let command = WaitingCommand { name: args[0], counts_keys: false };
    let mut args = Args::new(args);
    acquire(ctx, command, args.key()?, want, args)
}

fn many(ctx: Ctx<'_>, args: &[Str<'_>], want: Want) -> Result<Reply, Reply> {
    let command = WaitingCommand { name: args[0], counts_keys: true };
    let mut args = Args::new(args);
    acquire(ctx, command, args.keys(2)?, want, args)
}

fn acquire<'a>(
    ctx: Ctx<'_>,
    command: WaitingCommand<'_>,
    keys: &'a [Str<'a>],
    want: Want,
    mut args: Args<'a>,
) -> Result<Reply, Reply> {
    let (token, ttl_ms) = (args.token()?, args.ttl_ms()?);
    let Options { wait, meta, limit, is_ephemeral } = args.options(match want {
        Want::Hold(Mode::Write) => OptionSet::Write,
        Want::Hold(Mode::Read) => OptionSet::Read,
        Want::Upgrade => OptionSet::Upgrade,
    })?;
    on_primary()?;
    if is_ephemeral && ctx.is_in_script() {
        return error("ERR EPHEMERAL is not possible in a script, which has no connection of its own");
    }
    // Where nothing may block, `WAIT` is as good as absent, as it is for `BLPOP`.
    let wait = if wait != WaitPolicy::NoWait && ctx.may_block() { wait } else { WaitPolicy::NoWait };
    let (db, names, client) = (ctx.db(), &*names(keys), ctx.client_id());
    let request = AcquireRequest { db, names, token, want, ttl_ms, meta, wait, limit, client, is_ephemeral };
    let store = Keyspace::of_command(ctx, keys);
    match runtime::acquire(ctx, store, &request, command) {
        Some(Ok(AcquireOutcome::Granted(fence))) => Ok(Reply::Int(fence.cast_signed())),
        Some(Ok(AcquireOutcome::Refused)) => Ok(Reply::Int(0)),
        Some(Ok(AcquireOutcome::Waiting(_))) => Ok(Reply::Sent),
        Some(Err(error)) => Err(error_reply(&error)),
        None => Err(in_use()),
    }
}
