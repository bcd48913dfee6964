//! The end of an acquisition in doubt: sent again, whole, until it is answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::answers;
use crate::commands::{self, NO_FENCE, Owner};
use crate::errors::Error;
use crate::shared::{Answered, Shared, Single};

/// As long as the server refuses what comes late.
const LONGEST: Duration = Duration::from_secs(120);

/// For an acquisition that has no hold. It goes on after its caller has gone.
pub(crate) async fn give_up(shared: Arc<Shared<Single>>, owner: Owner) {
    // Of a token that the program gave nothing is left after the ttl but what it took since then.
    let most = if owner.is_given() { owner.wanted.options.ttl.min(LONGEST) } else { LONGEST };
    // Nobody is there to be told. What is left ends by its ttl.
    let _ = end(&shared, &owner, NO_FENCE, Instant::now() + most).await;
}

/// Gives how many keys were released.
pub(crate) async fn end(
    shared: &Shared<Single>,
    owner: &Owner,
    mut fence: i64,
    until: Instant,
) -> Result<Answered<i64>, Error> {
    loop {
        let Answered { value, sent, repeated } =
            shared.call(owner, &commands::end(owner, fence), until).await?;
        match answers::numbers(&value).collect::<Vec<_>>()[..] {
            // The fence that is known is not the one that it has.
            [.., write, read, 0] if owner.is_given() && write.max(read) != 0 => fence = write.max(read),
            [.., released] => return Ok(Answered { value: released, sent, repeated }),
            [] => return Ok(Answered { value: 0, sent, repeated }),
        }
    }
}
