// SPDX-License-Identifier: MIT OR Apache-2.0

//! What only looks: `PTTL`, `MPTTL`, `CHECK`, `INFO`. They work on replicas too, and never show a
//! hold whose deadline has passed.
//!
//! ```text
//! SLOCK.PTTL  key token                    milliseconds left, -2 not a holder
//! SLOCK.MPTTL numkeys key [key ...] token  the least of them, -2 if any is not held
//! SLOCK.CHECK key fence                    1 a live holder has this fence, 0 otherwise
//! SLOCK.INFO  key [FULL [COUNT n]]         a map, null when nobody holds or waits
//! ```

use slock_core::{
    ConnectionId, Holder, Lock, LockError, LockIdRef, LockManager, Mode, Timestamp, Waiter, Want,
};

use super::args::Args;
use crate::errors::{error_reply, in_use};
use crate::runtime;
use crate::server::{self, Ctx, LockKey, Opened, Reply, Str};

const NOT_A_HOLDER: i64 = -2;

/// As many holders and requests `FULL` lists unless it is said.
const LISTED: usize = 100;

/// Looks at the lock of a key, if it has one.
fn look<R>(ctx: Ctx<'_>, key: Str<'_>, at: impl FnOnce(Option<&Lock>) -> R) -> Result<R, Reply> {
    match LockKey::open_to_read(ctx, key).get() {
        Opened::Empty => Ok(at(None)),
        Opened::Lock(lock) => Ok(at(Some(lock))),
        Opened::OtherType => Err(error_reply(&LockError::WrongType)),
    }
}

pub fn pttl(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let (key, token) = (args.key()?, args.token()?);
    least_pttl(ctx, key, token)
}

pub fn mpttl(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let (keys, token) = (args.keys(1)?, args.token()?);
    args.end()?;
    least_pttl(ctx, keys, token)
}

fn least_pttl(ctx: Ctx<'_>, keys: &[Str<'_>], token: &[u8]) -> Result<Reply, Reply> {
    let (now_ms, mut least) = (server::now().unix_ms(), i64::MAX);
    for key in keys {
        let left_ms = look(ctx, *key, |lock| {
            let own = lock.and_then(|lock| lock.holder(token, now_ms));
            own.map_or(NOT_A_HOLDER, |own| (own.deadline_ms - now_ms).cast_signed())
        })?;
        least = least.min(left_ms);
    }
    Ok(Reply::Int(least))
}

pub fn check(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let (key, fence) = (args.key()?, args.fence()?);
    let now_ms = server::now().unix_ms();
    let live =
        look(ctx, key[0], |lock| lock.is_some_and(|lock| lock.holder_with_fence(fence, now_ms).is_some()))?;
    Ok(Reply::Int(live.into()))
}

pub fn info(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let key = args.key()?;
    let listed = args.options(&["FULL", "COUNT"])?.full_count(LISTED)?;
    let id = LockIdRef { db: ctx.db(), name: key[0].bytes() };
    let now = server::now();
    look(ctx, key[0], |lock| {
        let live = lock.filter(|lock| lock.is_live(now.unix_ms()));
        let shown = runtime::try_with_runtime(|runtime| show(ctx, live, &runtime.manager, id, now, listed));
        shown.ok_or_else(in_use)
    })??;
    Ok(Reply::Sent)
}

fn show(
    ctx: Ctx<'_>,
    lock: Option<&Lock>,
    manager: &LockManager,
    id: LockIdRef<'_>,
    now: Timestamp,
    listed: Option<usize>,
) {
    let (waiters, now_ms) = (manager.waitlist().len_at(id), now.unix_ms());
    if lock.is_none() && waiters == 0 {
        return ctx.reply_null();
    }
    let (mode, readers) = mode_and_readers(lock, now_ms);
    let fence = lock.and_then(|lock| lock.highest_live_fence(now_ms)).unwrap_or(0);
    let pttl_ms = lock.map_or(0, |lock| lock.last_deadline_ms() - now_ms);
    ctx.reply_map(if listed.is_some() { 7 } else { 5 });
    text_field(ctx, "mode", mode.as_bytes());
    int_field(ctx, "readers", readers as u64);
    int_field(ctx, "waiters", waiters as u64);
    int_field(ctx, "fence", fence);
    int_field(ctx, "pttl", pttl_ms);
    let Some(listed) = listed else { return };
    ctx.reply_bytes(b"holders");
    let holders: Vec<&Holder> =
        lock.into_iter().flat_map(|lock| lock.live_holders(now_ms)).take(listed).collect();
    ctx.reply_array(holders.len());
    for holder in holders {
        show_holder(ctx, holder, manager.connection_of(id, holder.fence), now_ms);
    }
    ctx.reply_bytes(b"queue");
    ctx.reply_array(waiters.min(listed));
    manager.waitlist().at(id).take(listed).for_each(|waiter| show_waiter(ctx, waiter, now.monotonic_ms()));
}

fn show_holder(ctx: Ctx<'_>, holder: &Holder, client: Option<ConnectionId>, now_ms: u64) {
    ctx.reply_map(5 + usize::from(client.is_some()));
    text_field(ctx, "token", holder.token());
    int_field(ctx, "fence", holder.fence);
    int_field(ctx, "pttl", holder.deadline_ms - now_ms);
    int_field(ctx, "held-ms", now_ms.saturating_sub(holder.since_ms()));
    text_field(ctx, "meta", holder.meta());
    if let Some(client) = client {
        int_field(ctx, "client", client);
    }
}

fn show_waiter(ctx: Ctx<'_>, waiter: &Waiter, now_ms: u64) {
    let mode = match waiter.terms.want {
        Want::Hold(Mode::Write) => "write",
        Want::Hold(Mode::Read) => "read",
        Want::Upgrade => "upgrade",
    };
    // From its arrival on, also where it was asked again; 0 is without limit.
    let timeout_ms = waiter.gives_up_ms.map_or(0, |at_ms| at_ms - waiter.arrived_ms);
    ctx.reply_map(6 + usize::from(waiter.terms.limit.is_some()) + usize::from(waiter.channel.is_some()));
    text_field(ctx, "token", &waiter.token);
    text_field(ctx, "mode", mode.as_bytes());
    int_field(ctx, "waiting-ms", now_ms.saturating_sub(waiter.arrived_ms));
    int_field(ctx, "timeout-ms", timeout_ms);
    text_field(ctx, "meta", waiter.meta.as_deref().unwrap_or_default());
    int_field(ctx, "client", waiter.terms.client);
    if let Some(limit) = waiter.terms.limit {
        int_field(ctx, "limit", limit.get().into());
    }
    if let Some(channel) = &waiter.channel {
        text_field(ctx, "channel", channel);
    }
}

/// The mode of a lock that is live, or `free`, and how many read it.
pub(super) fn mode_and_readers(lock: Option<&Lock>, now_ms: u64) -> (&'static str, usize) {
    match lock.map(|lock| (lock.mode(), lock.live_len(now_ms))) {
        None => ("free", 0),
        Some((Mode::Write, _)) => ("write", 0),
        Some((Mode::Read, readers)) => ("read", readers),
    }
}

pub(super) fn text_field(ctx: Ctx<'_>, name: &str, value: &[u8]) {
    ctx.reply_bytes(name.as_bytes());
    ctx.reply_bytes(value);
}

pub(super) fn int_field(ctx: Ctx<'_>, name: &str, value: u64) {
    ctx.reply_bytes(name.as_bytes());
    ctx.reply_int(value.cast_signed());
}
