//! What is known of a hold: fence, mode, until when it is valid, whether it was lost or released. It asks
//! nobody and reads no clock: the moment is passed in.

use std::time::Duration;

use crate::clock::Moment;
use crate::errors::{Error, Reason};
use crate::options::{Mode, Wanted};

/// How long a hold is valid after the command was sent that set its deadline. A clock runs up to 500 ppm fast,
/// and the server counts whole milliseconds.
pub(crate) fn validity(ttl: Duration) -> Duration {
    ttl.saturating_sub(ttl / 1000 + Duration::from_millis(1))
}

/// What the server granted.
#[derive(Clone, Copy)]
pub(crate) struct Granted {
    pub(crate) fence: i64,
    /// The validity counts from here.
    pub(crate) sent: Moment,
    /// An earlier copy may still be carried out.
    pub(crate) in_doubt: bool,
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
    /// Then it is lost, however often it is renewed.
    lease_end: Option<Moment>,
    /// Of the last renewal, when that failed.
    pub(crate) error: Option<Error>,
    /// The mode before a change that was sent and has no answer yet: the server may be ahead.
    pub(crate) changing: Option<Mode>,
    /// A command without an answer could give the token a hold at any later time.
    pub(crate) in_doubt: bool,
}

impl Lease {
    /// It is valid for so long after the request was sent, unless it is renewed before.
    pub(crate) fn new(granted: Granted, wanted: &Wanted, validity: Duration) -> Self {
        let Granted { fence, sent, in_doubt } = granted;
        Self {
            phase: Phase::Held,
            fence,
            mode: wanted.mode,
            ttl: wanted.options.ttl,
            valid_until: sent.after(validity),
            lease_end: wanted.options.longest_lease.map(|longest| sent.after(longest)),
            error: None,
            changing: None,
            in_doubt,
        }
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

    /// The error for a hold that was lost for this reason. A failed renewal is the cause only of an end by time.
    pub(crate) fn cause(&self, reason: Reason) -> Option<Error> {
        self.error.clone().filter(|_| reason == Reason::Expired)
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
        if fence == self.fence && self.changing.is_none() {
            self.lose(Reason::Gone);
        }
    }

    /// A change of mode is sent. No server refuses a downgrade: it may be carried out from its first copy on.
    pub(crate) fn change(&mut self, to: Mode) {
        self.changing = Some(self.mode);
        if to == Mode::Read {
            self.mode = to;
        }
    }

    /// The server has refused it.
    pub(crate) fn unchanged(&mut self) {
        self.mode = self.changing.take().unwrap_or(self.mode);
    }

    /// The answer to a change of mode, which left the deadline or moved it to a later moment.
    pub(crate) fn changed(&mut self, granted: Granted, mode: Mode, validity: Duration) {
        (self.fence, self.mode, self.changing) = (granted.fence, mode, None);
        self.in_doubt |= granted.in_doubt;
        self.extended(granted.fence, self.ttl, granted.sent.after(validity));
    }
}

#[cfg(test)]
#[path = "../tests/unit/lease.rs"]
mod tests;
