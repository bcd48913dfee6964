//! Whatever may have to wait: `LOCK`, `RLOCK`, `UPGRADE`, `MLOCK`, `MRLOCK`.
//!
//! ```text
//! SLOCK.LOCK    key token ttl-ms [WAIT ms [NOTIFY channel tag]] [META data] [EPHEMERAL] [XX]
//! SLOCK.RLOCK   key token ttl-ms [WAIT ms [NOTIFY channel tag]] [META data] [LIMIT n] [EPHEMERAL] [XX]
//! SLOCK.UPGRADE key token ttl-ms [WAIT ms [NOTIFY channel tag]] [FENCE n]
//! SLOCK.MLOCK   numkeys key [key ...] token ttl-ms, and the options of LOCK
//! SLOCK.MRLOCK  numkeys key [key ...] token ttl-ms, and the options of RLOCK
//! ```
//!
//! The reply is the fence, or 0 when refused or when the wait ran out. With `NOTIFY`, a request that has to wait gets null at
//! once, and when its wait ends, one message on the channel: the fence, 0 or the code of an error, and the tag.

use slock_core::{AcquireRequest, Mode, ReplyTo, WaitPolicy, Want, WhoAsks};

use super::args::{Args, OptionSet, Options, error};
use super::call::{names, on_primary};
use crate::errors::{error_reply, in_use};
use crate::keyspace::Keyspace;
use crate::runtime::{self, Acquired};
use crate::server::{Ctx, Reply, Str, User, same_slot};
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
    let Options { wait, notify, meta, limit, is_ephemeral, fence } = args.options(match want {
        Want::Hold(Mode::Write) => OptionSet::Write,
        Want::Hold(Mode::Read) => OptionSet::Read,
        Want::Upgrade => OptionSet::Upgrade,
    })?;
    on_primary()?;
    if is_ephemeral && ctx.is_in_script() {
        return error("ERR EPHEMERAL is not possible in a script, which has no connection of its own");
    }
    // A script neither waits nor subscribes.
    let notify = notify.filter(|_| !ctx.is_in_script());
    if let Some((channel, _)) = notify {
        check_channel(ctx, channel, keys)?;
    }
    // Where nothing may block, `WAIT` is as good as absent, as it is for `BLPOP`.
    let wait = match wait {
        WaitPolicy::Timeout(_) | WaitPolicy::Forever if notify.is_none() && !ctx.may_block() => {
            WaitPolicy::NoWait
        }
        wait => wait,
    };
    let (db, names, client) = (ctx.db(), &*names(keys), ctx.client_id());
    let reply_to =
        notify.map_or(ReplyTo::Client, |(channel, tag)| ReplyTo::Channel { channel: channel.bytes(), tag });
    let caller = || command.caller(ctx);
    let request = AcquireRequest {
        db,
        names,
        token,
        want,
        fence,
        ttl_ms,
        meta,
        wait,
        limit,
        client,
        is_ephemeral,
        reply_to,
        caller: WhoAsks(&caller),
    };
    let store = Keyspace::of_command(ctx, keys);
    match runtime::acquire(ctx, store, &request) {
        Some(Ok(Acquired::Granted(fence))) => Ok(Reply::Int(fence.cast_signed())),
        Some(Ok(Acquired::Refused)) => Ok(Reply::Int(0)),
        Some(Ok(Acquired::Blocked)) => Ok(Reply::Sent),
        Some(Ok(Acquired::Waiting)) => Ok(Reply::Null),
        Some(Ok(Acquired::CannotBlock)) => error(
            "ERR this server does not block a client that has subscribed to channels; wait with NOTIFY, or on \
             another connection",
        ),
        Some(Err(error)) => Err(error_reply(&error)),
        None => Err(in_use()),
    }
}

/// Whether a request for these keys may be answered on this channel.
fn check_channel(ctx: Ctx<'_>, channel: Str<'_>, keys: &[Str<'_>]) -> Result<(), Reply> {
    if ctx.is_cluster() && !same_slot(channel.bytes(), keys[0].bytes()) {
        return error("CROSSSLOT The channel is not in the slot of the keys");
    }
    let user = ctx.user_name();
    let may_subscribe =
        user.is_none_or(|name| User::named(name.as_str()).is_some_and(|user| user.may_subscribe(channel)));
    if !may_subscribe {
        return error("NOPERM The user may not subscribe to this channel");
    }
    if !ctx.has_shard_subscriber(channel) {
        return error("NOSUBSCRIBER Nobody has subscribed to this channel by SSUBSCRIBE on this server");
    }
    Ok(())
}
