//! What concerns those who wait: `QUEUES`, `CANCEL`.
//!
//! ```text
//! SLOCK.QUEUES [COUNT n] [CURSOR c]   the next cursor, and where somebody waits, the longest wait first: an array of maps
//! SLOCK.CANCEL key token  how many waiting requests of the token were cancelled
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

/// Who waits for one lock, and who holds it.
struct Entry {
    name: Box<[u8]>,
    waiters: usize,
    writers: usize,
    longest_wait_ms: u64,
    next: Box<[u8]>,
    mode: &'static str,
    readers: usize,
    held_ms: u64,
}

pub fn queues(ctx: Ctx<'_>, args: &[Str<'_>]) -> Result<Reply, Reply> {
    let options = Args::new(args).options(&["COUNT", "CURSOR"])?;
    let (count, mut cursor) = (options.count(LISTED), options.cursor);
    let entries: Vec<Entry> = runtime::look(|manager, store| {
        let (db, now) = (ctx.db(), server::now());
        let viewer = Viewer::of_name(ctx.user_name().as_ref().map(|name| name.as_str().bytes()));
        let entry = |queue: QueueSummary<'_>| {
            let lock = store.peek(queue.lock).filter(|lock| lock.is_live(now.unix_ms()));
            let (mode, readers) = mode_and_readers(lock, now.unix_ms());
            let since_ms = lock.and_then(|lock| lock.live_holders(now.unix_ms()).next()).map(Holder::since_ms);
            Entry {
                name: queue.lock.name.into(),
                waiters: queue.waiters,
                writers: queue.writers,
                longest_wait_ms: now.monotonic_ms().saturating_sub(queue.longest_since_ms),
                next: queue.next.into(),
                mode,
                readers,
                held_ms: since_ms.map_or(0, |since_ms| now.unix_ms().saturating_sub(since_ms)),
            }
        };
        let mut queues = manager.waitlist().queues_by_longest_wait(db, cursor).peekable();
        let looked_at = queues.by_ref().take(LOOKED_AT).inspect(|queue| cursor = queue.cursor);
        let shown = looked_at.filter(|queue| viewer.may_look_at(queue.lock.name)).take(count);
        let entries = shown.map(entry).collect();
        if queues.peek().is_none() {
            cursor = 0;
        }
        entries
    })?;
    ctx.reply_array(2);
    ctx.reply_bytes(cursor.to_string().as_bytes());
    ctx.reply_array(entries.len());
    for entry in entries {
        ctx.reply_map(8);
        text_field(ctx, "key", &entry.name);
        int_field(ctx, "waiters", entry.waiters as u64);
        int_field(ctx, "writers", entry.writers as u64);
        int_field(ctx, "longest-wait-ms", entry.longest_wait_ms);
        text_field(ctx, "next", &entry.next);
        text_field(ctx, "mode", entry.mode.as_bytes());
        int_field(ctx, "readers", entry.readers as u64);
        int_field(ctx, "held-ms", entry.held_ms);
    }
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
