//! Holds of a single server, which may be a primary that Sentinels name or a cluster: acquired, adopted,
//! extended and released.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::acquisition::{Acquisition, Goal, Limits};
use crate::commands::{self, Owner};
use crate::errors::Error;
use crate::hold::{Asks, HoldOf, HoldViewOf, Operations};
use crate::lease::{self, Granted};
use crate::options::Wanted;
use crate::shared::{Shared, Single};

/// A hold of a single server.
pub type Hold = HoldOf<Single>;
/// What can be seen and done with a hold of a single server.
pub type HoldView = HoldViewOf<Single>;

impl Operations for Single {
    /// Locked while the mode is being changed.
    type Part = OnceLock<Arc<tokio::sync::Mutex<()>>>;

    fn validity(&self, ttl: Duration) -> Duration {
        lease::validity(ttl)
    }

    fn ask(shared: Arc<Shared<Self>>, wanted: Arc<Wanted>, once: bool) -> Asks<Option<Hold>> {
        Box::pin(async move {
            let deadline = wanted.options.wait.filter(|_| !once).map(|wait| Instant::now() + wait);
            let limits = Limits { once, deadline, retry_for: shared.retry_for, doubt: None };
            acquire(shared, Owner::new(wanted), limits).await
        })
    }

    fn adopt(shared: Arc<Shared<Self>>, wanted: Arc<Wanted>) -> Asks<Hold> {
        Box::pin(async move {
            let owner = Owner::new(wanted);
            let asks = commands::held_fence(&owner, owner.wanted.mode, owner.wanted.options.ttl);
            let answered = shared.call(owner.keys(), &[asks], shared.limit()).await?;
            let (fence, sent) = (answered.number(), answered.sent);
            if fence == 0 {
                return Err(Error::NotHeld);
            }
            Ok(HoldOf::new(shared, owner, OnceLock::new(), Granted { fence, sent, in_doubt: false }))
        })
    }

    async fn extend(hold: Arc<HoldView>, ttl: Duration, until: Instant) -> Result<(), Error> {
        loop {
            let fence = hold.fence();
            let extend = commands::extend(&hold.owner, ttl, fence);
            let extended = match hold.shared.call(hold.owner.keys(), &[extend], until).await {
                Ok(answered) => (answered.number() == 1).then_some(answered.sent),
                Err(Error::Redis(error)) if error.code() == Some("WRONGTYPE") => None, // another type has the name
                Err(error) => return Err(error),
            };
            hold.update(|lease, _| match extended {
                Some(sent) => lease.extended(fence, ttl, sent.after(lease::validity(ttl))),
                None => lease.gone(fence),
            });
            if extended.is_some() {
                return Ok(());
            }
            // Unless it is lost, the mode is being changed, and with it the fence.
            drop(hold.nothing_changes(Some(until)).await?);
        }
    }

    /// By its fence, but when a command without an answer could bring the token a hold later: then nothing of
    /// it is to be left, and it is refused.
    async fn release(hold: &HoldView, until: Instant) -> Result<bool, Error> {
        let owner = &hold.owner;
        let (fence, mode, in_doubt) = {
            let lease = hold.lease();
            (lease.fence, lease.mode, lease.in_doubt || lease.changing.is_some())
        };
        let answered = if in_doubt {
            hold.shared.end(owner, fence, until).await?
        } else {
            hold.shared.call(owner.keys(), &[commands::release(owner, mode, fence)], until).await?
        };
        let released = answered.number();
        // When an earlier copy got no answer, that one did it.
        Ok(usize::try_from(released) == Ok(hold.keys().len()) || (answered.repeated && released == 0))
    }

    async fn release_token(shared: &Shared<Self>, owner: Owner) -> Result<usize, Error> {
        let answered = shared.call(owner.keys(), &[commands::release_all(&owner)], shared.limit()).await?;
        Ok(usize::try_from(answered.number()).unwrap_or(0))
    }

    async fn close(&self) {
        self.server.close();
    }
}

/// The hold that is granted to this owner; nothing when it asks once and is refused.
pub(crate) async fn acquire(
    shared: Arc<Shared<Single>>,
    owner: Owner,
    limits: Limits,
) -> Result<Option<Hold>, Error> {
    let granted =
        Acquisition::new(&shared, &owner, Goal::Hold, commands::acquire(&owner), limits).run().await?;
    Ok(granted.map(|granted| HoldOf::new(shared, owner, OnceLock::new(), granted)))
}
