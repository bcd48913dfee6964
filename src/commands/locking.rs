// SPDX-License-Identifier: MIT OR Apache-2.0

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
//! The reply is the fence, or 0 when refused or when the wait ran out. With `NOTIFY`, a request that has to wait gets
//! null at once, and when its wait ends, one message on the channel: the fence, 0 or the code of an error, and the tag.

use std::cell::OnceCell;
use std::num::NonZeroU64;

use slock_core::{Claim, Mode, ReplyTo, Request, Terms, WaitPolicy, Want};

use super::args::{Args, Options, error};
use crate::runtime::{self, check_channel, on_primary};
use crate::server::{Ctx, OwnedString, Reply, Str};

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
    acquire(ctx, args.key()?, false, want, args)
}

fn many(ctx: Ctx<'_>, args: &[Str<'_>], want: Want) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    acquire(ctx, args.keys(2)?, true, want, args)
}

fn acquire<'a>(
    ctx: Ctx<'_>,
    keys: &'a [Str<'a>],
    counts_keys: bool,
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
    let asked = OnceCell::new();
    let user_name = || asked.get_or_init(|| ctx.user_name()).as_ref().map(OwnedString::as_str);
    if let Some((channel, _)) = notify {
        check_channel(ctx, user_name(), channel, keys)?;
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
    let fence = fence.and_then(NonZeroU64::new);
    let terms = Terms { want, fence, ttl_ms, limit, client: ctx.client_id(), is_ephemeral, counts_keys };
    let user = || user_name().map(|user| user.bytes().into());
    let request = Request { claim: Claim { token, meta, terms }, wait, reply_to, user: &user };
    runtime::acquire(ctx, keys, &request)
}
