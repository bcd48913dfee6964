//! Noticing `CONFIG RESETSTAT`, which no server announces.

use crate::server::{Ctx, TOTALS};

/// What the server had counted at the last look.
#[derive(Default)]
pub struct ResetWatch {
    totals: [u64; TOTALS.len()],
}

impl ResetWatch {
    /// Whether the server has begun to count anew since the last look: one of its totals has become less.
    pub fn was_reset(&mut self, ctx: Ctx<'_>) -> bool {
        let totals = ctx.totals();
        let before = std::mem::replace(&mut self.totals, totals);
        totals.iter().zip(before).any(|(now, before)| *now < before)
    }
}
