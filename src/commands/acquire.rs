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

use slock_core::{Mode, ReplyTo, Request, WaitPolicy, Want, WhoAsks};

use super::args::{Args, Options, error};
use crate::runtime::{self, WaitingCommand, check_channel, on_primary};
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
    Args::check_names(keys)?;
    let (token, ttl_ms) = (args.token()?, args.ttl_ms()?);
    let options = args.options(match want {
        Want::Hold(Mode::Write) => &["WAIT", "NOTIFY", "META", "EPHEMERAL", "XX"],
        Want::Hold(Mode::Read) => &["WAIT", "NOTIFY", "META", "LIMIT", "EPHEMERAL", "XX"],
        Want::Upgrade => &["WAIT", "NOTIFY", "FENCE"],
    })?;
    let wait = options.wait_policy()?;
    let Options { notify, meta, limit, is_ephemeral, fence, .. } = options;
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
    let reply_to = match notify {
        None => ReplyTo::Client,
        Some((channel, tag)) => ReplyTo::Channel { channel: channel.bytes(), tag },
    };
    let caller = || command.caller(ctx);
    let request = Request {
        token,
        want,
        fence,
        ttl_ms,
        meta,
        wait,
        limit,
        client: ctx.client_id(),
        is_ephemeral,
        reply_to,
        caller: WhoAsks::LookUp(&caller),
    };
    runtime::acquire(ctx, keys, &request)
}
