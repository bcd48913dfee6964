//! Changes of the mode of a hold: a reader becomes the writer, a writer a reader. They go on when their caller
//! has gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Cmd;
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, oneshot};

use crate::acquisition::{Acquisition, Goal, Limits};
use crate::answers;
use crate::commands;
use crate::errors::{Error, Reason};
use crate::lease::{Granted, validity};
use crate::options::{LONGEST, Mode};
use crate::single::HoldView;

type Tell = oneshot::Sender<Result<i64, Error>>;

impl HoldView {
    /// The number of this hold: greater than those of all earlier holds of the server. Send it with every
    /// write, and have the storage refuse a write with a lesser one. An upgrade or a downgrade gives a new
    /// one.
    pub fn fence(&self) -> i64 {
        self.lease().fence
    }

    /// The reader becomes the writer in one step, without a release. It waits until the other readers have
    /// left, for at most as long as it is told here. Gives the new fence.
    ///
    /// When the future is dropped or gets no answer, the upgrade is given up: the server tells the mode, and
    /// [`mode`](HoldView::mode) gives it from then on. For the next two minutes the server refuses another
    /// upgrade.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when other readers remain: the hold reads on. [`Error::Deadlock`] when another
    /// reader waits for its upgrade already. [`Error::SeveralKeys`] for a hold of several keys.
    /// [`Error::Refused`] after an upgrade that was given up.
    pub async fn upgrade(self: &Arc<Self>, wait: impl Into<Option<Duration>>) -> Result<i64, Error> {
        let deadline = wait.into().map(|wait| Instant::now() + wait.min(LONGEST));
        self.change(Mode::Write, deadline).await
    }

    /// The writer becomes a reader in one step, with no writer in between. Gives the new fence.
    ///
    /// From the call on the hold counts as a reader's. When the future is dropped or gets no answer, the
    /// downgrade goes on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the hold is gone, [`Error::TimedOut`] when no answer came for `retry_for`,
    /// [`Error::SeveralKeys`] for a hold of several keys.
    pub async fn downgrade(self: &Arc<Self>) -> Result<i64, Error> {
        self.change(Mode::Read, Some(self.shared.limit())).await
    }

    /// Changes the mode in the background, so that a change that was sent comes to its end when this future is
    /// dropped.
    async fn change(self: &Arc<Self>, to: Mode, deadline: Option<Instant>) -> Result<i64, Error> {
        if self.keys().len() != 1 {
            return Err(Error::SeveralKeys);
        }
        self.may_change()?;
        let one_at_a_time = self.nothing_changes(deadline).await?;
        let command = self.update(|lease, _| {
            lease.change(to);
            commands::change(to, &self.owner, lease.ttl, lease.fence)
        });
        let (hold, (tell, told)) = (self.clone(), oneshot::channel());
        self.shared.spawn(&Handle::current(), async move {
            match to {
                Mode::Write => hold.upgrade_until(command, deadline, tell).await,
                Mode::Read => hold.downgrade_until_answered(command, deadline, tell).await,
            }
            drop(one_at_a_time);
        });
        let told = self.shared.closing.run_until_cancelled(told).await;
        told.and_then(Result::ok).unwrap_or(Err(Error::Closed))
    }

    /// Waits for an earlier change that was given up.
    pub(crate) async fn nothing_changes(
        &self,
        deadline: Option<Instant>,
    ) -> Result<OwnedMutexGuard<()>, Error> {
        self.check()?;
        let ended = self.part.get_or_init(Arc::default).clone().lock_owned();
        let until = deadline.unwrap_or_else(|| Instant::now() + LONGEST);
        let ended = tokio::time::timeout_at(until.into(), ended).await;
        self.check()?;
        let ended = ended.map_err(|_| Error::TimedOut { keys: self.owner.keys().clone(), source: None })?;
        // Of a change that ended without an answer nothing more is known than this.
        self.update(|lease, _| lease.in_doubt |= lease.changing.take().is_some());
        Ok(ended)
    }

    /// It is given up when nobody waits for it any more.
    async fn upgrade_until(self: Arc<Self>, upgrade: Cmd, deadline: Option<Instant>, mut tell: Tell) {
        let limits = Limits { once: false, deadline, retry_for: self.shared.retry_for, doubt: None };
        let mut acquisition = Acquisition::new(&self.shared, &self.owner, Goal::Upgrade, upgrade, limits);
        let result = tokio::select! {
            biased;
            result = acquisition.run() => result,
            _ = self.end() => Err(self.unless_over(Error::NotHeld)),
            () = tell.closed() => Err(Error::Closed),
            () = self.shared.closing.cancelled() => Err(Error::Closed),
        };
        let may_stand = acquisition.may_stand();
        let result = match result {
            Ok(granted) => self.changed(granted.expect("an upgrade is not asked for once"), Mode::Write),
            Err(error) if may_stand => Err(self.unless_over(error)),
            Err(error) => Err(self.refused(error)),
        };
        // Nobody may wait for it any more.
        let _ = tell.send(result);
        if may_stand && self.check().is_ok() {
            self.give_up_upgrade().await;
        }
    }

    /// An upgrade that was sent is not known to be carried out: it is given up, and the server tells the mode.
    async fn give_up_upgrade(&self) {
        let commands = commands::withdraw(&self.owner, self.lease().ttl);
        let answered = self.shared.call(self.owner.keys(), &commands, self.valid_until()).await;
        let Ok(answered) = answered else { return };
        let [.., writer, reader] = answers::numbers(&answered.value).collect::<Vec<_>>()[..] else { return };
        let (fence, mode) = if writer == 0 { (reader, Mode::Read) } else { (writer, Mode::Write) };
        // Who waited for it has been told.
        let _ = match fence {
            0 => Err(self.refused(Error::NotHeld)),
            fence => self.changed(Granted { fence, sent: answered.sent, in_doubt: true }, mode),
        };
    }

    /// Goes on when nobody waits for it any more, until it is known to be carried out. To ask for the mode
    /// would not do: an earlier copy could come later.
    async fn downgrade_until_answered(self: Arc<Self>, downgrade: Cmd, until: Option<Instant>, tell: Tell) {
        let (mut until, mut tell) = (until.unwrap_or_else(|| self.shared.limit()), Some(tell));
        loop {
            let answered = self.shared.call(self.owner.keys(), std::slice::from_ref(&downgrade), until).await;
            let goes_on = matches!(answered, Err(Error::TimedOut { .. })) && self.may_change().is_ok();
            let result = match answered {
                Ok(answered) => {
                    let (fence, in_doubt) = (answered.number(), answered.repeated);
                    self.changed(Granted { fence, sent: answered.sent, in_doubt }, Mode::Read)
                }
                Err(error @ Error::TimedOut { .. }) => {
                    self.lease().in_doubt = true;
                    Err(self.unless_over(error))
                }
                Err(error) => Err(self.refused(error)),
            };
            // Nobody may wait for it any more.
            tell.take().map(|tell| tell.send(result));
            if !goes_on {
                return;
            }
            until = self.valid_until();
        }
    }

    /// Gives the new fence.
    fn changed(&self, granted: Granted, to: Mode) -> Result<i64, Error> {
        self.update(|lease, _| lease.changed(granted, to, validity(lease.ttl)));
        self.check().map(|()| granted.fence)
    }

    /// The change of mode has ended with this error, and changed nothing.
    fn refused(&self, error: Error) -> Error {
        let is_gone = matches!(error, Error::NotHeld);
        self.update(|lease, _| {
            lease.unchanged();
            if is_gone {
                lease.lose(Reason::Gone);
            }
        });
        if is_gone { error } else { self.unless_over(error) }
    }
}
