//! The end of an acquisition in doubt: sent again, whole, until it is answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::answers;
use crate::commands::{self, Owner};
use crate::node::Words;
use crate::options::Mode;
use crate::shared::Shared;

/// As long as the server refuses what comes late.
const LONGEST: Duration = Duration::from_secs(120);

/// For an acquisition that has no hold. It goes on after its caller has gone.
pub(crate) async fn give_up(shared: Arc<Shared>, owner: Owner, mode: Mode) {
    let until = Instant::now() + LONGEST;
    if !owner.given {
        // Nobody is there to be told. What is left ends by its ttl.
        let _ = shared.call(&owner, Words::Several(&commands::give_up(&owner)), until).await;
        return;
    }
    let withdrawal = commands::withdraw(&owner, mode);
    let Ok(withdrawn) = shared.call(&owner, Words::Several(&withdrawal), until).await else { return };
    if let Some(fence) = answers::numbers(&withdrawn.value).pop().filter(|fence| *fence != 0) {
        let release = commands::release(&owner, mode, fence);
        let _ = shared.call(&owner, Words::One(&release), until).await;
    }
}
