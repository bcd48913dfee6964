//! What is known of a hold: fence, mode, until when it is valid, whether it was lost or released. It asks
//! nobody and reads no clock: the moment is passed in.

use std::time::Duration;

use crate::clock::Moment;
use crate::errors::{Error, Reason};
use crate::options::Mode;

/// How long a hold is valid after the command was sent that set its deadline. A clock runs up to 500 ppm fast,
/// and the server counts whole milliseconds.
pub(crate) fn validity(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 1000 + Duration::from_millis(1))
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Phase {
    Held,
    Released,
    Lost(Reason),
}

/// Lost and released are final.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) phase: Phase,
    pub(crate) fence: i64,
    pub(crate) mode: Mode,
    /// The longest that was asked for.
    pub(crate) ttl: Duration,
    valid_until: Moment,
    lease_end: Option<Moment>,
    /// Of the last renewal, when that failed.
    pub(crate) error: Option<Error>,
    /// A change of mode was sent and has no answer yet.
    pub(crate) changing: bool,
    /// A command without an answer could give the token a hold at any later time.
    pub(crate) in_doubt: bool,
}

impl Lease {
    pub(crate) fn new(fence: i64, mode: Mode, ttl: Duration, valid_until: Moment) -> Self {
        Self {
            phase: Phase::Held,
            fence,
            mode,
            ttl,
            valid_until,
            lease_end: None,
            error: None,
            changing: false,
            in_doubt: false,
        }
    }

    /// The hold is lost at this moment, however often it is renewed.
    pub(crate) fn ends_at(mut self, lease_end: Option<Moment>) -> Self {
        self.lease_end = lease_end;
        self
    }

    pub(crate) fn in_doubt(mut self, in_doubt: bool) -> Self {
        self.in_doubt = in_doubt;
        self
    }

    /// The moment at which the hold is lost unless it is renewed before, or at the latest.
    pub(crate) fn end(&self) -> Moment {
        self.lease_end.map_or(self.valid_until, |end| end.min(self.valid_until))
    }

    /// Notices that the end has passed.
    pub(crate) fn look(&mut self, now: Moment) {
        if now >= self.end() {
            let by_lease = self.lease_end.is_some_and(|end| end <= self.valid_until);
            self.lose(if by_lease { Reason::LeaseEnded } else { Reason::Expired });
        }
    }

    pub(crate) fn lose(&mut self, reason: Reason) {
        if self.phase == Phase::Held {
            self.phase = Phase::Lost(reason);
        }
    }

    /// Gives whether it was held until here.
    pub(crate) fn release(&mut self) -> bool {
        let held = self.phase == Phase::Held;
        if held {
            self.phase = Phase::Released;
        }
        held
    }

    /// The error for a hold that was lost for this reason. A failed renewal is no cause of the end of the
    /// longest lease.
    pub(crate) fn cause(&self, reason: Reason) -> Option<&Error> {
        self.error.as_ref().filter(|_| reason != Reason::LeaseEnded)
    }

    /// How long until the next renewal: a third of the ttl, and half of the validity at the most. After a
    /// failed one a tenth.
    pub(crate) fn next_renewal(&self, now: Moment) -> Duration {
        let left = self.end().since(now);
        let part = if self.error.is_some() { 10 } else { 3 };
        (self.ttl / part).min(if self.error.is_some() { left } else { left / 2 })
    }

    /// The server moved the deadline of the hold with this fence. It never moves it to an earlier moment.
    pub(crate) fn extended(&mut self, fence: i64, ttl: Duration, valid_until: Moment) {
        if fence == self.fence && self.phase == Phase::Held {
            self.ttl = self.ttl.max(ttl);
            self.valid_until = self.valid_until.max(valid_until);
            self.error = None;
        }
    }

    /// The server says that nothing is held with this fence.
    pub(crate) fn gone(&mut self, fence: i64) {
        if fence == self.fence && !self.changing {
            self.lose(Reason::Gone);
        }
    }

    /// A change of mode is sent. Until its answer has come, the server may be ahead.
    pub(crate) fn begin_change(&mut self) {
        self.changing = true;
    }

    /// The answer to a change of mode, which left the deadline or moved it to a later moment.
    pub(crate) fn changed(&mut self, fence: i64, mode: Mode, valid_until: Moment) {
        (self.fence, self.mode) = (fence, mode);
        self.changing = false;
        self.extended(fence, self.ttl, valid_until);
    }

    /// The mode is as it was.
    pub(crate) fn unchanged(&mut self) {
        self.changing = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn lease(now: Moment) -> Lease {
        Lease::new(7, Mode::Write, TTL, now.after(validity(TTL)))
    }

    #[test]
    fn a_thousandth_and_a_millisecond_do_not_count() {
        assert_eq!(validity(TTL), Duration::from_millis(9989));
        assert_eq!(validity(Duration::from_millis(1)), Duration::ZERO);
    }

    #[test]
    fn it_ends_with_its_validity_for_good() {
        let now = Moment::now();
        let mut lease = lease(now);
        lease.look(now.after(Duration::from_millis(9988)));
        assert_eq!(lease.phase, Phase::Held);
        lease.look(now.after(Duration::from_millis(9989)));
        assert_eq!(lease.phase, Phase::Lost(Reason::Expired));
        lease.extended(7, TTL, now.after(2 * TTL));
        lease.lose(Reason::Gone);
        assert!(!lease.release());
        assert_eq!(lease.phase, Phase::Lost(Reason::Expired));
    }

    #[test]
    fn no_extension_shortens() {
        let now = Moment::now();
        let mut lease = lease(now);
        lease.extended(7, TTL / 2, now.after(TTL / 2));
        assert_eq!((lease.end(), lease.ttl), (now.after(validity(TTL)), TTL));
        lease.extended(7, 2 * TTL, now.after(2 * TTL));
        assert_eq!((lease.end(), lease.ttl), (now.after(2 * TTL), 2 * TTL));
    }

    #[test]
    fn an_answer_counts_for_the_fence_that_it_names() {
        let now = Moment::now();
        let mut lease = lease(now);
        lease.changed(8, Mode::Read, now);
        lease.extended(7, TTL, now.after(2 * TTL));
        lease.gone(7);
        assert_eq!((lease.phase, lease.end()), (Phase::Held, now.after(validity(TTL))));
        lease.gone(8);
        assert_eq!(lease.phase, Phase::Lost(Reason::Gone));
    }

    #[test]
    fn nothing_is_gone_while_a_change_of_mode_is_open() {
        let now = Moment::now();
        let mut lease = lease(now);
        lease.begin_change();
        lease.gone(7);
        assert_eq!(lease.phase, Phase::Held);
        lease.unchanged();
        lease.gone(7);
        assert_eq!(lease.phase, Phase::Lost(Reason::Gone));
    }

    #[test]
    fn the_longest_lease_ends_a_hold_that_is_renewed() {
        let now = Moment::now();
        let mut lease = lease(now).ends_at(Some(now.after(TTL / 2)));
        lease.error = Some(Error::Closed);
        lease.extended(7, TTL, now.after(TTL));
        lease.look(now.after(TTL / 2));
        assert_eq!(lease.phase, Phase::Lost(Reason::LeaseEnded));
        assert!(lease.cause(Reason::LeaseEnded).is_none());
    }

    #[test]
    fn renewals_leave_time_for_another() {
        let now = Moment::now();
        let mut lease = lease(now);
        assert_eq!(lease.next_renewal(now), TTL / 3);
        lease.error = Some(Error::Closed);
        assert_eq!(lease.next_renewal(now), TTL / 10);
        assert!(lease.next_renewal(now.after(TTL * 99 / 100)) < TTL / 100);
    }

    #[test]
    fn nothing_is_lost_after_the_release() {
        let now = Moment::now();
        let mut lease = lease(now);
        assert!(lease.release());
        lease.gone(7);
        lease.look(now.after(2 * TTL));
        assert_eq!(lease.phase, Phase::Released);
    }
}
