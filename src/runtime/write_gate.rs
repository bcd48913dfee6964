// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether a timer may write now. What the server would refuse a client, a timer must not do for it.
//!
//! Three things speak against it. Clients are paused, for a failover, a shutdown or by command: to
//! replicate then kills the server. Too few replicas are connected (`min-replicas-to-write`, which
//! bounds what a primary that is cut off can promise). Or the disk fails: a grant that cannot be
//! logged would be forgotten by a crash. A client gets `NOREPLICAS` and `MISCONF` for the last two.

use std::ffi::CStr;
use std::time::{Duration, Instant};

use crate::server::Ctx;

/// How long an answer of `INFO` is good for, which costs much to ask. The server itself counts its good
/// replicas once a second.
const GOOD_FOR: Duration = Duration::from_millis(100);

/// The last answer, and what the server's configuration says about writes, where that has to be asked.
#[derive(Default)]
pub struct WriteGate {
    min_replicas: Option<i64>,
    snapshots_must_succeed: Option<bool>,
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
    /// These settings of the server's have changed.
    pub fn forget_settings(&mut self, changed: &[&CStr]) {
        let has_changed = |name: &CStr| changed.contains(&name);
        if has_changed(c"min-replicas-to-write") || has_changed(c"min-slaves-to-write") {
            self.min_replicas = None;
        }
        if has_changed(c"stop-writes-on-bgsave-error") || has_changed(c"save") {
            self.snapshots_must_succeed = None;
        }
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
        let refused =
            ctx.refuses_writes().unwrap_or_else(|| self.lacks_replicas(ctx) || self.disk_fails(ctx));
        self.refused = Some((Instant::now(), refused));
        refused
    }

    /// The server tells how many replicas are near enough only where some are needed. How many are has to be
    /// asked then; where `CONFIG` was renamed, one.
    fn lacks_replicas(&mut self, ctx: Ctx<'_>) -> bool {
        let Some(good) = ctx.good_replicas() else { return false };
        let ask = || ctx.config(c"min-replicas-to-write").and_then(|text| text.parse().ok()).unwrap_or(1);
        good < *self.min_replicas.get_or_insert_with(ask)
    }

    /// Whether it matters that a snapshot failed is asked when one has. Where `CONFIG` was renamed, it does.
    fn disk_fails(&mut self, ctx: Ctx<'_>) -> bool {
        let disk = ctx.disk();
        let ask = || {
            ctx.config(c"stop-writes-on-bgsave-error").is_none_or(|text| text == "yes")
                && ctx.config(c"save").is_none_or(|text| !text.is_empty())
        };
        disk.log_failed || (disk.snapshot_failed && *self.snapshots_must_succeed.get_or_insert_with(ask))
    }
}
