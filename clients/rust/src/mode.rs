//! Changes of a hold's mode. While one is open the hold is renewed without naming its fencing token, because the server may
//! have given it another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;
use tracing::Instrument;

use crate::acquisition::{Acquisition, Grant};
use crate::errors::{Error, Reason};
use crate::hold::{Hold, Inner, Lease};
use crate::info::Mode;
use crate::node::Node;
use crate::options::Options;
use crate::protocol::REFUSED_FOR;
use crate::transport::Call;

/// How long a change that has timed out is settled before the call returns: the server replies, so it is not for long.
const SETTLING: Duration = Duration::from_millis(500);

/// A change of mode that is open. If it is dropped so, it is settled in the background.
struct Change {
    inner: Arc<Inner>,
    node: Arc<Node>,
    to: Mode,
    was: Lease,
    is_open: bool,
    changing: Option<OwnedMutexGuard<()>>,
}

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
        let mut change = self.change(Mode::Write)?;
        let (wanted, ttl, wait) = (&self.inner.wanted, change.was.ttl, wait.into());
        let options = Options { ttl, wait, ..(*wanted.options).clone() };
        let (node, owner, is_open) = (change.node.clone(), &wanted.owner, AtomicBool::new(false));
        let command = owner.change(Mode::Write, ttl, change.was.fence);
        let acquisition = Acquisition::new(&node, owner, &options, command, false, &is_open);
        let result = tokio::select! {
            biased;
            loss = self.lost() => Err(loss),
            () = self.inner.locks.closing.cancelled() => Err(Error::Closed),
            result = acquisition.run() => result,
        };
        change.is_open = result.is_err() && is_open.load(Ordering::Relaxed);
        change.end(result.map(|grant| grant.expect("it is no try"))).await
    }

    /// Makes the writer a reader, in one step with no writer in between, and gives the new fencing token. It works for one
    /// key on one server, and not while another change of mode is open. The hold counts as a reader's from the first attempt
    /// on. Without a reply, or if the future is dropped, it goes on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::NoAnswer`] if no reply came for `retry_for`, and [`Error::Lost`].
    pub async fn downgrade(&self) -> Result<i64, Error> {
        let mut change = self.change(Mode::Read)?;
        self.inner.update(|lease| lease.mode = Mode::Read)?;
        let limit = change.node.settings.retry_for;
        let result = downgrade(&change.inner, &change.node, &change.was, limit).await;
        change.is_open = matches!(result, Err(Error::NoAnswer { .. }));
        change.end(result).await
    }

    fn change(&self, to: Mode) -> Result<Change, Error> {
        let inner = self.inner.clone();
        let Some(node) = inner.keeper.clone().node().filter(|_| self.keys().len() == 1) else {
            return Err(Error::Invalid("the mode changes for one key on one server".into()));
        };
        self.check()?;
        inner.locks.unless_closed()?;
        let Ok(changing) = inner.changing.clone().try_lock_owned() else {
            return Err(Error::Invalid("another change of the mode is open".into()));
        };
        let was = inner.lease().clone();
        let _ = inner.update(|lease| lease.is_open = true);
        Ok(Change { inner, node, to, was, is_open: true, changing: Some(changing) })
    }
}

impl Change {
    /// Notes the result, and gives the fencing token; or what is wrong with the hold, or the error.
    async fn end(self, result: Result<Grant, Error>) -> Result<i64, Error> {
        let inner = self.inner.clone();
        match &result {
            Ok(grant) => inner.granted(self.to, *grant),
            Err(error) if matches!(error, Error::NotHeld { .. }) || error.is_another_type() => {
                drop(inner.update(|lease| inner.lose(lease, Reason::Gone)));
            }
            Err(_) if !self.is_open => drop(inner.update(|lease| lease.is_open = self.was.is_open)),
            Err(_) => {}
        }
        drop(self);
        if let Err(Error::TimedOut { .. }) = result {
            let _ = timeout(SETTLING, inner.changing.lock()).await;
        }
        inner.update(|_| {})?;
        result.map(|grant| grant.fence)
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        if let Some(changing) = self.changing.take_if(|_| self.is_open) {
            let (inner, node, was) = (self.inner.clone(), self.node.clone(), self.was.clone());
            let settled =
                settle(inner, node, self.to, was, changing).instrument(self.inner.wanted.span.clone());
            self.inner.wanted.runtime.spawn(settled);
        }
    }
}

/// Finds out what became of a change that is open, while the hold is there.
async fn settle(inner: Arc<Inner>, node: Arc<Node>, to: Mode, was: Lease, _changing: OwnedMutexGuard<()>) {
    let settled = async {
        let grant = match to {
            Mode::Read => downgrade(&inner, &node, &was, REFUSED_FOR).await.ok(),
            Mode::Write => withdraw(&inner, &node, &was).await,
        };
        if let Some(grant) = grant {
            inner.granted(to, grant);
        }
    };
    tokio::select! {
        _ = inner.over() => {}
        () = settled => {}
    }
}

/// Sends the downgrade until it is answered, for a time.
async fn downgrade(inner: &Inner, node: &Node, was: &Lease, limit: Duration) -> Result<Grant, Error> {
    let owner = &inner.wanted.owner;
    let command = owner.change(Mode::Read, was.ttl, was.fence);
    let answer = node.ask(&owner.keys, limit, Call::new(owner.key(), &command)).await?;
    Ok(Grant { fence: answer.number, from: answer.sent })
}

/// Withdraws an upgrade. If it does not wait any more, it gives what was granted.
async fn withdraw(inner: &Inner, node: &Node, was: &Lease) -> Option<Grant> {
    let owner = &inner.wanted.owner;
    let (withdraw, adopt) = (owner.withdraw(), owner.adopt(Mode::Write, was.ttl));
    let withdrawn = node.ask(&owner.keys, REFUSED_FOR, Call::new(owner.key(), &withdraw)).await.ok()?;
    if withdrawn.number > 0 {
        return None;
    }
    let held = node.ask(&owner.keys, REFUSED_FOR, Call::new(owner.key(), &adopt)).await.ok()?;
    (held.number > 0).then_some(Grant { fence: held.number, from: held.sent })
}
