//! The end of an acquisition in doubt: sent again, whole, until it is answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::answers;
use crate::commands::{self, Owner};
use crate::shared::{Shared, Single};

/// As long as the server refuses what comes late.
const LONGEST: Duration = Duration::from_secs(120);

/// For an acquisition that has no hold. It goes on after its caller has gone.
pub(crate) async fn give_up(shared: Arc<Shared<Single>>, owner: Owner) {
    let until = Instant::now() + LONGEST;
    if !owner.is_given() {
        // Nobody is there to be told. What is left ends by its ttl.
        let _ = shared.call(&owner, &commands::give_up(&owner), until).await;
        return;
    }
    let mode = owner.wanted.mode;
    let withdrawal = commands::withdraw(&owner, &[mode], Duration::ZERO);
    let Ok(withdrawn) = shared.call(&owner, &withdrawal, until).await else { return };
    if let Some(fence) = answers::numbers(&withdrawn.value).last().filter(|fence| *fence != 0) {
        let _ = shared.call(&owner, &[commands::release(&owner, mode, fence)], until).await;
    }
}
