//! What is known about a hold: until when it is valid, and whether it was lost or released.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::{Error, Observer, Reason};

/// The state of a hold. Lost and released are final.
pub(crate) struct Lease {
    state: Mutex<State>,
    /// The hold was lost, or may end earlier than it seemed.
    changed: Notify,
    granted: Instant,
    lease_end: Option<Instant>,
    keys: Arc<[String]>,
    label: Arc<str>,
    observer: Option<Arc<dyn Observer>>,
}

struct State {
    phase: Phase,
    /// Of the last renewal, when that failed.
    error: Option<Error>,
    ttl: Duration,
    valid_until: Instant,
    /// The least validity that a command without an answer gives, which may still be executed.
    late: Option<Duration>,
}

impl State {
    /// As much of this as no late command can take away.
    fn sure(&self, validity: Duration) -> Duration {
        self.late.map_or(validity, |late| late.min(validity))
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Held,
    Released,
    Lost(Reason),
}

/// How much of a ttl counts for the validity of a hold: the server counts whole milliseconds, so the first of
/// them may be nearly over.
pub(crate) fn counted(ttl: Duration) -> Duration {
    ttl.saturating_sub(Duration::from_millis(1))
}

/// What a new lease starts from.
pub(crate) struct Grant {
    /// When the request was sent from which the validity counts.
    pub(crate) sent: Instant,
    pub(crate) ttl: Duration,
    pub(crate) valid_until: Instant,
    pub(crate) longest_lease: Option<Duration>,
    pub(crate) keys: Arc<[String]>,
    pub(crate) label: Arc<str>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

impl Lease {
    pub(crate) fn new(grant: Grant) -> Self {
        Self {
            state: Mutex::new(State {
                phase: Phase::Held,
                error: None,
                ttl: grant.ttl,
                valid_until: grant.valid_until,
                late: None,
            }),
            changed: Notify::new(),
            granted: grant.sent,
            lease_end: grant.longest_lease.map(|longest| grant.sent + longest),
            keys: grant.keys,
            label: grant.label,
            observer: grant.observer,
        }
    }

    /// Every access looks at the clock before and after it. Hooks run when the state is unlocked again.
    fn update<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let (result, ended) = {
            let mut state = self.state.lock().expect("no panic while the state of a hold is locked");
            let before = state.phase;
            self.look_at_the_clock(&mut state);
            let result = change(&mut state);
            self.look_at_the_clock(&mut state);
            (result, (before == Phase::Held).then_some(state.phase))
        };
        match ended {
            None | Some(Phase::Held) => {}
            Some(Phase::Released) => self.report_end(None),
            Some(Phase::Lost(reason)) => {
                self.changed.notify_waiters();
                self.report_end(Some(reason));
            }
        }
        result
    }

    fn look_at_the_clock(&self, state: &mut State) {
        if state.phase == Phase::Held && Instant::now() >= self.end(state) {
            let ended = self.lease_end.is_some_and(|end| end <= state.valid_until);
            state.phase = Phase::Lost(if ended { Reason::LeaseEnded } else { Reason::Expired });
        }
    }

    fn end(&self, state: &State) -> Instant {
        self.lease_end.map_or(state.valid_until, |end| end.min(state.valid_until))
    }

    fn report_end(&self, lost: Option<Reason>) {
        let Some(observer) = &self.observer else { return };
        if let Some(reason) = lost {
            observer.lost(&self.label, reason);
        }
        observer.held(&self.label, self.granted.elapsed());
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.update(|state| state.ttl)
    }

    /// The ttl, or less when a command may still be executed that sets a shorter one.
    pub(crate) fn sure_ttl(&self) -> Duration {
        self.update(|state| state.sure(state.ttl))
    }

    /// The moment at which the hold is lost unless it is renewed before, or at the latest.
    pub(crate) fn valid_until(&self) -> Instant {
        self.update(|state| self.end(state))
    }

    /// When to renew: a third of the sure ttl from now, and when half of the validity is left at the latest.
    pub(crate) fn next_renewal(&self) -> Instant {
        self.update(|state| {
            let now = Instant::now();
            let left = state.valid_until.saturating_duration_since(now);
            self.end(state).min(now + (state.sure(state.ttl) / 3).min(left / 2))
        })
    }

    /// Whether the hold is valid now.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.phase() {
            Phase::Held => Ok(()),
            Phase::Released => Err(Error::NotHeld),
            Phase::Lost(reason) => Err(self.lost_error(reason)),
        }
    }

    fn phase(&self) -> Phase {
        self.update(|state| state.phase)
    }

    pub(crate) fn reason(&self) -> Option<Reason> {
        match self.phase() {
            Phase::Lost(reason) => Some(reason),
            _ => None,
        }
    }

    /// The error for a hold that was lost for this reason. A failed renewal is no cause of the end of the
    /// longest lease.
    pub(crate) fn lost_error(&self, reason: Reason) -> Error {
        let error = self.update(|state| state.error.clone()).filter(|_| reason != Reason::LeaseEnded);
        Error::Lost { reason, keys: self.keys.clone(), source: error.map(Box::new) }
    }

    /// A renewal failed. It may be tried again.
    pub(crate) fn not_extended(&self, error: Error) {
        self.update(|state| state.error = Some(error));
    }

    pub(crate) fn lose(&self, reason: Reason) {
        self.update(|state| {
            if state.phase == Phase::Held {
                state.phase = Phase::Lost(reason);
            }
        });
    }

    /// A command is about to be sent that sets this deadline, whatever becomes of its answer.
    pub(crate) fn may_end_at(&self, valid_until: Instant) {
        self.update(|state| state.valid_until = state.valid_until.min(valid_until));
        self.changed.notify_waiters();
    }

    /// A command that gives this validity got no answer. It may be executed at any later time. So no later
    /// command gives more: the server's deadline must not come before the end of the validity.
    pub(crate) fn may_come_late(&self, validity: Duration) {
        self.update(|state| state.late = Some(state.sure(validity)));
    }

    /// The server took a new deadline, which gives this validity from the moment at which the command was
    /// sent. An answer that comes after the old validity changes nothing: by then the hold counted as lost.
    pub(crate) fn extended(&self, ttl: Duration, sent: Instant, validity: Duration) -> Result<(), Error> {
        self.set(ttl, |state| sent + state.sure(validity))
    }

    /// As [`Lease::extended`], but renewals went on meanwhile with the same ttl.
    pub(crate) fn upgraded(&self, sent: Instant, ttl: Duration) -> Result<(), Error> {
        self.set(ttl, |state| state.valid_until.max(sent + state.sure(counted(ttl))))
    }

    fn set(&self, ttl: Duration, valid_until: impl FnOnce(&State) -> Instant) -> Result<(), Error> {
        self.update(|state| {
            if state.phase == Phase::Held {
                state.ttl = ttl;
                state.valid_until = valid_until(state);
                state.error = None;
            }
        });
        self.check()
    }

    /// From now on nothing renews the hold, and nothing can be lost. Gives whether it was valid until here.
    pub(crate) fn begin_release(&self) -> bool {
        self.update(|state| {
            let held = state.phase == Phase::Held;
            if held {
                state.phase = Phase::Released;
            }
            held
        })
    }

    /// Runs the work, and drops it when the hold is lost meanwhile.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        self.check()?;
        let result = tokio::select! {
            biased;
            reason = self.lost() => return Err(self.lost_error(reason)),
            result = work => result,
        };
        // The work may have blocked its thread past the validity.
        self.check()?;
        Ok(result)
    }

    /// Ends when the hold is lost. Never ends when it was released.
    pub(crate) async fn lost(&self) -> Reason {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            match self.phase() {
                Phase::Lost(reason) => return reason,
                Phase::Released => std::future::pending().await,
                Phase::Held => {}
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(self.valid_until().into()) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(valid: Duration, longest: Option<Duration>) -> Lease {
        let sent = Instant::now();
        Lease::new(Grant {
            sent,
            ttl: valid,
            valid_until: sent + valid,
            longest_lease: longest,
            keys: ["k".to_owned()].into(),
            label: "l".into(),
            observer: None,
        })
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_renewal_that_is_answered_too_late_does_not_revive() {
        let lease = lease(Duration::ZERO, None);
        assert!(lease.extended(LONG, Instant::now(), LONG).is_err());
        assert!(matches!(lease.check(), Err(Error::Lost { reason: Reason::Expired, .. })));
    }

    #[test]
    fn lost_is_final() {
        let lease = lease(LONG, None);
        lease.lose(Reason::Gone);
        assert!(lease.extended(LONG, Instant::now(), LONG).is_err());
        assert_eq!(lease.reason(), Some(Reason::Gone));
        assert!(!lease.begin_release());
    }

    #[test]
    fn nothing_is_lost_after_the_release_began() {
        let lease = lease(LONG, None);
        assert!(lease.begin_release());
        lease.lose(Reason::Gone);
        assert_eq!(lease.reason(), None);
        assert!(lease.extended(LONG, Instant::now(), LONG).is_err());
    }

    fn source(lease: &Lease) -> Option<Box<Error>> {
        match lease.check() {
            Err(Error::Lost { source, .. }) => source,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_error_of_the_last_renewal_is_the_cause_of_the_loss() {
        let failed = lease(LONG, None);
        failed.not_extended(Error::Closed);
        failed.lose(Reason::Gone);
        assert!(matches!(source(&failed).as_deref(), Some(Error::Closed)));

        let extended = lease(LONG, None);
        extended.not_extended(Error::Closed);
        extended.extended(LONG, Instant::now(), LONG).unwrap();
        extended.lose(Reason::Gone);
        assert!(source(&extended).is_none());

        let ended = lease(LONG, Some(Duration::ZERO));
        ended.not_extended(Error::Closed);
        assert!(source(&ended).is_none());
    }

    #[test]
    fn a_command_that_may_come_late_limits_the_validity() {
        let lease = lease(LONG, None);
        lease.may_come_late(LONG / 2);
        lease.may_come_late(LONG);
        let sent = Instant::now();
        lease.extended(LONG, sent, LONG).unwrap();
        assert_eq!(lease.valid_until(), sent + LONG / 2);
        assert_eq!(lease.sure_ttl(), LONG / 2);
        assert_eq!(lease.ttl(), LONG);
        lease.extended(LONG / 4, sent, LONG / 4).unwrap();
        assert_eq!(lease.valid_until(), sent + LONG / 4);
    }

    #[test]
    fn the_longest_lease_ends_a_hold_that_is_renewed() {
        let lease = lease(LONG, Some(Duration::ZERO));
        assert_eq!(lease.reason(), Some(Reason::LeaseEnded));
    }
}
