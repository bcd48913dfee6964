//! Changes of a hold's mode. While one is open the hold is renewed without naming its fencing token, because the server may
//! have given it another one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;
use tracing::Instrument;

use crate::acquisition::{Acquisition, Grant};
use crate::errors::{Error, Reason};
use crate::hold::{Hold, Inner, Lease};
use crate::info::Mode;
use crate::node::OnDrop;
use crate::options::Options;
use crate::protocol::{REFUSED_FOR, Wanted};
use crate::watchdog::Watched;

/// How long a change that has timed out is settled before the call returns: the server replies, so it is not for long.
const SETTLING: Duration = Duration::from_millis(500);

impl Hold {
    /// Makes a reader the writer, in one step, and gives the new fencing token. It waits until the other readers are gone,
    /// at most this long; without a limit, as long as that takes. It works for one key on one server, and not while another
    /// change of mode is open.
    ///
    /// If the future is dropped, or the wait is over, the hold is still valid. Whether it is a reader or the writer then is
    /// found out in the background, and [`mode`](Hold::mode) tells.
    ///
    /// # Errors
    ///
    /// [`Error::Deadlock`] if another reader of the key waits for its own upgrade already. [`Error::TimedOut`],
    /// [`Error::NoAnswer`], [`Error::Lost`].
    pub async fn upgrade(&self, wait: impl Into<Option<Duration>>) -> Result<i64, Error> {
        self.change(Mode::Write, wait.into()).await
    }

    /// Makes the writer a reader, in one step with no writer in between, and gives the new fencing token. It works for one
    /// key on one server, and not while another change of mode is open. The hold counts as a reader's from the first attempt
    /// on. Without a reply, or if the future is dropped, it goes on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::NoAnswer`] if no reply came for `retry_for`, and [`Error::Lost`].
    pub async fn downgrade(&self) -> Result<i64, Error> {
        self.change(Mode::Read, Some(Duration::ZERO)).await
    }

    async fn change(&self, to: Mode, wait: Option<Duration>) -> Result<i64, Error> {
        let inner = &self.inner;
        let Some(node) = inner.votes.servers.single().filter(|_| self.keys().len() == 1) else {
            return Err(Error::Invalid("the mode changes for one key on one server".into()));
        };
        self.check()?;
        inner.shared().unless_closed()?;
        let Ok(changing) = inner.changing.clone().try_lock_owned() else {
            return Err(Error::Invalid("another change of the mode is open".into()));
        };
        let was = inner.lease().clone();
        let (ttl, was_open) = (was.ttl, was.is_open);
        let command = inner.wanted().change(to, ttl, was.fence);
        inner.update(|lease| {
            lease.is_open = true;
            lease.mode = if to == Mode::Read { to } else { lease.mode };
        })?;
        let options = Arc::new(Options { ttl, wait, ..(*inner.wanted().options).clone() });
        let wanted = Wanted { options, ..(**inner.wanted()).clone() };
        let mut unsettled = OnDrop(Some(|| {
            let settled = settle(inner.clone(), to, was, changing).instrument(wanted.span.clone());
            wanted.runtime.spawn(settled);
        }));
        let mut acquisition = Acquisition::new(node, &wanted, command, false);
        let result = tokio::select! {
            biased;
            loss = self.lost() => Err(loss),
            () = inner.shared().closing.cancelled() => Err(Error::Closed),
            result = acquisition.run() => result,
        };
        match &result {
            Ok(grant) => inner.granted(to, grant.expect("it is no try")),
            Err(error) if matches!(error, Error::NotHeld(_)) || error.is_another_type() => {
                drop(inner.update(|lease| inner.lose(lease, Reason::Gone)));
            }
            Err(_) if acquisition.is_open() => {}
            Err(_) => drop(inner.update(|lease| lease.is_open = was_open)),
        }
        if result.is_ok() || !acquisition.is_open() {
            unsettled.0 = None;
        }
        drop(unsettled);
        if let Err(Error::TimedOut(_)) = result {
            let _ = timeout(SETTLING, inner.changing.lock()).await;
        }
        self.check()?;
        result.map(|grant| grant.expect("it is no try").fence)
    }
}

/// Finds out what became of a change that is open, while the hold is there.
async fn settle(inner: Arc<Inner>, to: Mode, was: Lease, _changing: OwnedMutexGuard<()>) {
    let (Some(node), wanted) = (inner.votes.servers.single(), inner.wanted()) else { return };
    let ask = async |command| node.ask(wanted, wanted.call(&command, Instant::now() + REFUSED_FOR)).await;
    let settled = async {
        let command = match to {
            Mode::Read => wanted.change(to, was.ttl, was.fence),
            // If it waited until now, it was not granted.
            Mode::Write if ask(wanted.withdraw()).await?.number > 0 => return Ok(()),
            Mode::Write => wanted.adopt(to, was.ttl),
        };
        let answer = ask(command).await?;
        if answer.number > 0 {
            inner.granted(to, Grant { fence: answer.number, from: answer.sent });
        }
        Ok::<_, Error>(())
    };
    tokio::select! {
        _ = inner.over() => {}
        _ = settled => {}
    }
}
