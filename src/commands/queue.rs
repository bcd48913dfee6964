// SPDX-License-Identifier: MIT OR Apache-2.0

//! What concerns those who wait: `QUEUES`, `CANCEL`.
//!
//! ```text
//! SLOCK.QUEUES [COUNT n] [CURSOR c]   the next cursor, and an array of maps: where somebody waits, the longest wait first
//! SLOCK.CANCEL key token              how many waiting requests of the token were cancelled
//! ```

use slock_core::{Holder, LockIdRef, LockStore, QueueSummary};

use super::args::Args;
use super::inspect::{int_field, mode_and_readers, text_field};
use crate::runtime;
use crate::server::{self, Ctx, Reply, Str, Viewer};

/// As many names are listed unless it is said.
const LISTED: usize = 10;

/// As many names are looked at in a call: to ask what the user may see costs about a microsecond a name.
const LOOKED_AT: usize = 1000;

pub fn queues(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let options = Args::new(args).options(&["COUNT", "CURSOR"])?;
    let (count, mut cursor) = (options.count.unwrap_or(LISTED), options.cursor);
    runtime::look(|manager, store| {
        let (db, now) = (ctx.db(), server::now());
        let viewer = Viewer::of_name(ctx.user_name().as_ref().map(|name| name.as_str().bytes()));
        let mut queues = manager.waitlist().queues_by_longest_wait(db, cursor).peekable();
        let looked_at = queues.by_ref().take(LOOKED_AT).inspect(|queue| cursor = queue.cursor);
        let shown: Vec<QueueSummary<'_>> =
            looked_at.filter(|queue| viewer.may_look_at(queue.lock.name)).take(count).collect();
        if queues.peek().is_none() {
            cursor = 0;
        }
        ctx.reply_array(2);
        ctx.reply_bytes(cursor.to_string().as_bytes());
        ctx.reply_array(shown.len());
        for queue in shown {
            let lock = store.peek(queue.lock).filter(|lock| lock.is_live(now.unix_ms()));
            let (mode, readers) = mode_and_readers(lock, now.unix_ms());
            let since_ms =
                lock.and_then(|lock| lock.live_holders(now.unix_ms()).next()).map(Holder::since_ms);
            let held_ms = since_ms.map_or(0, |since_ms| now.unix_ms().saturating_sub(since_ms));
            ctx.reply_map(8);
            text_field(ctx, "key", queue.lock.name);
            int_field(ctx, "waiters", queue.waiters as u64);
            int_field(ctx, "writers", queue.writers as u64);
            int_field(ctx, "longest-wait-ms", now.monotonic_ms().saturating_sub(queue.longest_since_ms));
            text_field(ctx, "next", queue.next);
            text_field(ctx, "mode", mode.as_bytes());
            int_field(ctx, "readers", readers as u64);
            int_field(ctx, "held-ms", held_ms);
        }
    })?;
    Ok(Reply::Sent)
}

pub fn cancel(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let mut args = Args::new(args);
    let (keys, token) = (args.key()?, args.token()?);
    args.options(&[])?;
    let lock = LockIdRef { db: ctx.db(), name: keys[0].bytes() };
    let cancelled = runtime::operate(ctx, keys, |manager, _| Ok(manager.cancel(lock, token)))?;
    Ok(Reply::Int(i64::try_from(cancelled).unwrap_or(i64::MAX)))
}
