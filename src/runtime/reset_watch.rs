//! Noticing `CONFIG RESETSTAT`, which no server announces.

use std::time::{Duration, Instant};

use crate::server::{Ctx, TOTALS};

/// To look takes the server some ten microseconds, so this is the rarest that operators do not notice: what is counted
/// between a reset and the look is lost.
const EVERY: Duration = Duration::from_secs(1);

/// What the server had counted at the last look.
#[derive(Default)]
pub struct ResetWatch {
    totals: [u64; TOTALS.len()],
    looked: Option<Instant>,
}

impl ResetWatch {
    /// Whether the last look was a while ago. To look costs some microseconds.
    pub fn is_due(&self) -> bool {
        self.looked.is_none_or(|looked| looked.elapsed() >= EVERY)
    }

    /// Whether the server has begun to count anew since the last look: one of its totals has become less.
    pub fn was_reset(&mut self, ctx: Ctx<'_>) -> bool {
        self.looked = Some(Instant::now());
        let totals = ctx.totals();
        let before = std::mem::replace(&mut self.totals, totals);
        totals.iter().zip(before).any(|(now, before)| *now < before)
    }
}
