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

/// What the server's configuration says about writes, and the last answer.
#[derive(Default)]
pub struct WriteGate {
    min_replicas: i64,
    snapshots_must_succeed: bool,
    /// The last answer, and when it was given.
    refused: Option<(Instant, bool)>,
}

/// What keeps a timer from writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteBlock {
    /// Passes soon: clients are paused.
    Paused,
    /// May last: `NOREPLICAS` or `MISCONF`.
    Refused,
}

impl WriteGate {
    /// Takes note of the server's configuration.
    pub fn read_configuration(&mut self, ctx: Ctx<'_>) {
        // Where `CONFIG` was renamed, the careful answer. How many replicas are near enough the server tells
        // only where some are needed.
        let needed = ctx.config(c"min-replicas-to-write").and_then(|text| text.parse().ok());
        self.min_replicas = needed.unwrap_or(1);
        let stops = ctx.config(c"stop-writes-on-bgsave-error").is_none_or(|text| text == "yes");
        self.snapshots_must_succeed = stops && ctx.config(c"save").is_none_or(|text| !text.is_empty());
        self.refused = None;
    }

    /// What keeps a timer of this primary from writing, if anything does.
    pub fn block(&mut self, ctx: Ctx<'_>) -> Option<WriteBlock> {
        if ctx.is_paused() {
            Some(WriteBlock::Paused)
        } else if self.is_refused(ctx) {
            Some(WriteBlock::Refused)
        } else {
            None
        }
    }

    fn is_refused(&mut self, ctx: Ctx<'_>) -> bool {
        if let Some((asked, refused)) = self.refused
            && asked.elapsed() < GOOD_FOR
        {
            return refused;
        }
        let refused = self.lacks_replicas(ctx) || self.disk_fails(ctx);
        self.refused = Some((Instant::now(), refused));
        refused
    }

    fn lacks_replicas(&self, ctx: Ctx<'_>) -> bool {
        self.min_replicas > 0 && ctx.good_replicas().is_some_and(|good| good < self.min_replicas)
    }

    fn disk_fails(&self, ctx: Ctx<'_>) -> bool {
        let disk = ctx.disk();
        (self.snapshots_must_succeed && disk.snapshot_failed) || disk.log_failed
    }
}
