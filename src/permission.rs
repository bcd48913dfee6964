//! Whether a timer may write now. What the server would refuse a client, a timer must not do for it.
//!
//! Three things speak against it. Clients are paused, for a failover, a shutdown or by command: to
//! replicate then kills the server. Too few replicas are connected (`min-replicas-to-write`, which
//! bounds what a primary that is cut off can promise). Or the disk fails: a grant that cannot be
//! logged would be forgotten by a crash. A client gets `NOREPLICAS` and `MISCONF` for the last two.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::server::Ctx;

/// How long an answer about the disk is good for. It is read from `INFO`, which is dear.
const DISK_LOOK: Duration = Duration::from_millis(100);

thread_local! {
    static MIN_REPLICAS: Cell<i64> = const { Cell::new(0) };
    static SNAPSHOTS_MUST_SUCCEED: Cell<bool> = const { Cell::new(false) };
    static DISK: Cell<Option<(Instant, bool)>> = const { Cell::new(None) };
}

/// Takes note of what the server's configuration says about it.
pub fn read_configuration(ctx: Ctx<'_>) {
    // Where `CONFIG` was renamed, the careful answer. How many replicas are near enough the server tells
    // only where some are needed.
    let needed = ctx.config(c"min-replicas-to-write").and_then(|text| text.parse().ok());
    MIN_REPLICAS.set(needed.unwrap_or(1));
    let stops = ctx.config(c"stop-writes-on-bgsave-error").is_none_or(|text| text == "yes");
    SNAPSHOTS_MUST_SUCCEED.set(stops && ctx.config(c"save").is_none_or(|text| !text.is_empty()));
    DISK.set(None);
}

/// What keeps a timer from writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// Passes soon: clients are paused.
    Paused,
    /// May last: `NOREPLICAS` or `MISCONF`.
    Refused,
}

/// What keeps a timer of this primary from writing, if anything does.
pub fn hindrance(ctx: Ctx<'_>) -> Option<Hindrance> {
    if ctx.is_paused() {
        Some(Hindrance::Paused)
    } else if lacks_replicas(ctx) || disk_fails(ctx) {
        Some(Hindrance::Refused)
    } else {
        None
    }
}

fn lacks_replicas(ctx: Ctx<'_>) -> bool {
    let needed = MIN_REPLICAS.get();
    needed > 0 && ctx.good_replicas().is_some_and(|good| good < needed)
}

fn disk_fails(ctx: Ctx<'_>) -> bool {
    if let Some((looked, fails)) = DISK.get()
        && looked.elapsed() < DISK_LOOK
    {
        return fails;
    }
    let disk = ctx.disk();
    let fails = (SNAPSHOTS_MUST_SUCCEED.get() && disk.snapshot_failed) || disk.log_failed;
    DISK.set(Some((Instant::now(), fails)));
    fails
}
