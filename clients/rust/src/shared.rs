//! What all requests and holds of one `Locks` share, and how they send again what is not answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answers::{self, Failure, Kind};
use crate::clock::Moment;
use crate::commands::{self, NO_FENCE, Owner, REFUSED_FOR};
use crate::connection::REPLY_TIMEOUT;
use crate::errors::Error;
use crate::hooks::Reporter;
use crate::options::Mode;
use crate::polling::{self, Poll};
use crate::servers::Server;
use crate::watchdog::Watchdog;

/// Every call ends this long after its limit at the latest. An answer that is later counts as none.
pub(crate) const GRACE: Duration = Duration::from_millis(800);

/// The answer to what may have been sent several times.
pub(crate) struct Answered {
    pub(crate) value: Value,
    /// When the copy was sent that was answered.
    pub(crate) sent: Moment,
    /// An earlier copy got no answer, so it may have been carried out.
    pub(crate) repeated: bool,
}

impl Answered {
    /// The number in the last reply; 0 for null.
    pub(crate) fn number(&self) -> i64 {
        answers::numbers(&self.value).last().unwrap_or(0)
    }
}

/// Of one server or of a quorum: the `site`.
pub struct Shared<S> {
    pub(crate) site: S,
    /// How to ask again where the servers do not wait.
    pub(crate) poll: Option<Poll>,
    pub(crate) retry_for: Duration,
    pub(crate) retry_wait_for: Duration,
    pub(crate) reporter: Reporter,
    pub(crate) watchdog: Watchdog,
    /// Whoever waits is told that all is closed, and whoever comes later.
    pub(crate) closing: CancellationToken,
    /// What goes on when its caller has gone: releases and withdrawals.
    pub(crate) background: TaskTracker,
}

impl<S> Shared<S> {
    pub(crate) fn new(site: S) -> Self {
        Self {
            site,
            poll: None,
            retry_for: Duration::from_secs(3),
            retry_wait_for: Duration::from_secs(60),
            reporter: Reporter::default(),
            watchdog: Watchdog::default(),
            closing: CancellationToken::new(),
            background: TaskTracker::new(),
        }
    }

    pub(crate) fn unless_closed(&self) -> Result<(), Error> {
        if self.closing.is_cancelled() { Err(Error::Closed) } else { Ok(()) }
    }

    /// The limit of a call from now on.
    pub(crate) fn limit(&self) -> Instant {
        Instant::now() + self.retry_for
    }

    /// Spawns on the runtime of the caller, or else on this one, which may have shut down meanwhile.
    pub(crate) fn spawn(&self, runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn_on(work, &Handle::try_current().unwrap_or_else(|_| runtime.clone()));
    }
}

/// The site of locks on one server, a primary that Sentinels name, or a cluster.
pub struct Single {
    pub(crate) server: Arc<Server>,
    /// Waits block a connection each: so the program wants it, or the user may not use the channels.
    pub(crate) must_block: AtomicBool,
    /// That the user may release was asked: one key to write, one to read, several.
    may_release: [AtomicBool; 3],
}

impl Single {
    pub(crate) fn new(server: Server) -> Self {
        Self { server: Arc::new(server), must_block: AtomicBool::default(), may_release: Default::default() }
    }

    /// Whether it was asked that the user may release such a hold.
    pub(crate) fn may_release(&self, owner: &Owner) -> &AtomicBool {
        match (owner.keys().len(), owner.wanted.mode) {
            (1, Mode::Write) => &self.may_release[0],
            (1, Mode::Read) => &self.may_release[1],
            _ => &self.may_release[2],
        }
    }
}

impl Shared<Single> {
    pub(crate) fn block_from_now_on(&self) {
        if !self.site.must_block.swap(true, Ordering::Relaxed) {
            self.reporter.blocks();
        }
    }

    /// What could not be released is not taken. Asked about a hold that nobody has.
    pub(crate) async fn check_permission(&self, owner: &Owner, until: Instant) -> Result<(), Error> {
        let nobody = Owner { wanted: owner.wanted.clone(), token: commands::random_name() };
        match self.call(owner.keys(), &commands::may_release(&nobody), until).await {
            Err(error @ (Error::TimedOut { .. } | Error::ModuleNotLoaded)) => return Err(error),
            Err(Error::Redis(error)) if error.code() == Some("NOPERM") => return Err(error.into()),
            _ => {}
        }
        self.site.may_release(owner).store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Gives up an acquisition that has no hold, after its caller has gone.
    pub(crate) async fn give_up(self: Arc<Self>, owner: Owner) {
        // Of a token that the program gave nothing is left after the ttl but what it took since then.
        let most = if owner.is_given() { owner.wanted.options.ttl } else { REFUSED_FOR };
        // Nobody is there to be told. What is left ends by its ttl.
        let _ = self.end(&owner, NO_FENCE, Instant::now() + most.min(REFUSED_FOR)).await;
    }

    /// The end of an acquisition in doubt: sent again, whole, until it is answered. The last number is how many keys
    /// were released.
    pub(crate) async fn end(&self, owner: &Owner, mut fence: i64, until: Instant) -> Result<Answered, Error> {
        loop {
            let answered = self.call(owner.keys(), &commands::end(owner, fence), until).await?;
            match answers::numbers(&answered.value).collect::<Vec<_>>()[..] {
                // The fence that is known is not the one that it has.
                [.., write, read, 0] if owner.is_given() && write.max(read) != 0 => fence = write.max(read),
                _ => return Ok(answered),
            }
        }
    }

    /// Sends this to the node that serves the first key, or without a key to all: again until it is answered, or until
    /// this moment, or until all is closed. An error that lasts is an answer.
    pub(crate) async fn call(
        &self,
        keys: &Arc<[String]>,
        commands: &[Cmd],
        until: Instant,
    ) -> Result<Answered, Error> {
        let (server, mut failures, mut repeated) = (&self.site.server, 0, false);
        loop {
            let (sent, answer_until) = (Moment::now(), (until + GRACE).min(Instant::now() + REPLY_TIMEOUT));
            let answer = match keys.first() {
                Some(key) => server.send(key, commands, answer_until).await,
                None => Box::pin(server.ask_all(commands, answer_until)).await,
            };
            let is_closed = self.closing.is_cancelled();
            if is_closed {
                // What is sent after the connections were closed has opened one.
                server.close();
            }
            let failure = match answer {
                Ok(value) => {
                    self.reporter.reached();
                    return Ok(Answered { value, sent, repeated });
                }
                Err(failure) if failure.kind == Kind::Final => return Err(failure.error),
                Err(failure) => failure,
            };
            repeated |= failure.kind == Kind::Unanswered;
            self.noticed(&failure);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || is_closed {
                return Err(Error::TimedOut { keys: keys.clone(), source: Some(Box::new(failure.error)) });
            }
            // The last attempt is made at the end itself. Boxed, so that the common case is small.
            Box::pin(tokio::time::sleep(polling::after_error(failures).min(left))).await;
            failures += 1;
        }
    }

    /// After a failure another node may serve by now, and an operator must know who is out of reach.
    pub(crate) fn noticed(&self, failure: &Failure) {
        self.site.server.doubt_after(failure);
        if !failure.is_answer() {
            self.reporter.out_of_reach(&failure.error);
        }
    }
}
