// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether a timer may write now. What the server would refuse a client, a timer must not do for it.
//!
//! Three things speak against it. Clients are paused, for a failover, a shutdown or by command: to
//! replicate then kills the server. Too few replicas are connected (`min-replicas-to-write`, which
//! bounds what a primary that is cut off can promise). Or the disk fails: a grant that cannot be
//! logged would be forgotten by a crash. A client gets `NOREPLICAS` and `MISCONF` for the last two.

use std::time::{Duration, Instant};

use crate::server::Ctx;

/// How long an answer of `INFO` is good for, which costs much to ask. The server itself counts its good
/// replicas once a second.
const GOOD_FOR: Duration = Duration::from_millis(100);

/// Whether the server refuses writes: the last answer, and when it was given.
#[derive(Default)]
pub struct WriteGate(Option<(Instant, bool)>);

impl WriteGate {
    /// Whether a timer of this primary must not write now.
    pub fn is_shut(&mut self, ctx: Ctx<'_>) -> bool {
        ctx.is_paused() || self.is_refused(ctx)
    }

    fn is_refused(&mut self, ctx: Ctx<'_>) -> bool {
        if let Some((asked, refused)) = self.0
            && asked.elapsed() < GOOD_FOR
        {
            return refused;
        }
        let refused = ctx.refuses_writes().unwrap_or_else(|| lacks_replicas(ctx) || disk_fails(ctx));
        self.0 = Some((Instant::now(), refused));
        refused
    }
}

/// The server tells how many replicas are near enough only where some are needed. How many are has to be
/// asked then; where `CONFIG` was renamed, one.
fn lacks_replicas(ctx: Ctx<'_>) -> bool {
    let needed = || ctx.config(c"min-replicas-to-write").and_then(|text| text.parse().ok()).unwrap_or(1);
    ctx.good_replicas().is_some_and(|good| good < needed())
}

/// Whether it matters that a snapshot failed is asked when one has. Where `CONFIG` was renamed, it does.
fn disk_fails(ctx: Ctx<'_>) -> bool {
    let matters = || {
        ctx.config(c"stop-writes-on-bgsave-error").is_none_or(|text| text == "yes")
            && ctx.config(c"save").is_none_or(|text| !text.is_empty())
    };
    let disk = ctx.disk();
    disk.log_failed || (disk.snapshot_failed && matters())
}
