// SPDX-License-Identifier: MIT OR Apache-2.0

//! When the queues are to be served next: at the end of this turn of the event loop, or at a moment. And looks at all
//! of a crowd now and then.
//!
//! There are at most two timers, one of each kind. A call that comes early finds nothing to do and
//! schedules the next call.

use std::time::{Duration, Instant};

use crate::server::{OwnCtx, TimerId, monotonic_ms, start_timer, stop_timer, wake_event_loop};

/// After so long a timer that has not fired is late.
const LATE_MS: u64 = 50;

/// See the module.
///
/// The server runs these timers by the wall clock: if that is set back by an hour, they come an hour late.
/// [`Schedule::watch_clock`] is called now and then to notice that. If it is set forward, deadlines pass before their
/// timers. That needs no watch: while anybody waits, a timer is due within `LOOK_EVERY_MS`.
pub struct Schedule {
    on_soon: fn(OwnCtx<'_>),
    on_due: fn(OwnCtx<'_>),
    /// Timers that run, and for when they were set, on the monotonic clock.
    soon: Option<(TimerId, u64)>,
    /// Whether that of [`Schedule::at_end_of_turn`] was started inside a timer: it comes a millisecond later.
    soon_is_late: bool,
    due: Option<(TimerId, u64)>,
    /// Whether one of these timers runs.
    is_in_timer: bool,
}

impl Default for Schedule {
    fn default() -> Self {
        Self::new(|_| {}, |_| {})
    }
}

impl Schedule {
    /// A schedule with timers that call these: `on_soon` has to report [`Schedule::soon_has_fired`], `on_due`
    /// [`Schedule::due_has_fired`].
    pub fn new(on_soon: fn(OwnCtx<'_>), on_due: fn(OwnCtx<'_>)) -> Self {
        Self { on_soon, on_due, soon: None, soon_is_late: false, due: None, is_in_timer: false }
    }

    /// Calls `on_soon` at the end of this turn of the event loop; from within a timer, at the end of the next in which
    /// this is called, or a millisecond later.
    pub fn at_end_of_turn(&mut self) {
        if self.soon_is_late
            && !self.is_in_timer
            && let Some((timer, _)) = self.soon.take()
        {
            stop_timer(timer);
        }
        if self.soon.is_none() {
            self.soon_is_late = self.is_in_timer;
        }
        self.at_next_slice();
    }

    /// Calls `on_soon`, from within a timer, a millisecond later: what is left of the work of one turn leaves the
    /// server time for commands.
    pub fn at_next_slice(&mut self) {
        if self.soon.is_none() {
            let now_ms = monotonic_ms();
            // The server fires its timers when the first of them is due, and after it fired others it counts whole
            // milliseconds to that: one that is due and has not fired would hold up this one. The call of `on_soon`
            // does what that was for, and starts it again.
            if let Some((due, _)) = self.due.take_if(|(_, at_ms)| *at_ms <= now_ms) {
                stop_timer(due);
            }
            self.soon = Some((start_timer(0, self.on_soon), now_ms));
            self.wake();
        }
    }

    /// Calls `on_due` at this moment of the monotonic clock, or before: an earlier call stays, and schedules
    /// the next. The moment is never more than a minute away: while anybody waits there are looks each second, and each
    /// EPHEMERAL hold is looked at within a minute.
    pub fn at(&mut self, at_ms: u64) {
        if self.due.is_some_and(|(_, due_ms)| due_ms <= at_ms) {
            return;
        }
        if let Some((timer, _)) = self.due {
            stop_timer(timer);
        }
        let timer = start_timer(at_ms.saturating_sub(monotonic_ms()), self.on_due);
        self.due = Some((timer, at_ms));
        self.wake();
    }

    /// Makes the server look at its timers before it sleeps. Redis 7.0 decides how long to sleep and then does its work
    /// before the sleep (`beforeSleep`), in which commands run too: of clients that were unblocked, and with I/O
    /// threads of any. It would see a timer that is started there after the sleep only.
    fn wake(&self) {
        if !self.is_in_timer {
            wake_event_loop();
        }
    }

    /// The call of [`Schedule::at_end_of_turn`] has come.
    pub fn soon_has_fired(&mut self) {
        (self.soon, self.soon_is_late, self.is_in_timer) = (None, false, true);
    }

    /// The call of [`Schedule::at`] has come.
    pub fn due_has_fired(&mut self) {
        (self.due, self.is_in_timer) = (None, true);
    }

    /// The call is over.
    pub fn timer_ends(&mut self) {
        self.is_in_timer = false;
    }

    /// Calls `on_soon` if a timer is late.
    pub fn watch_clock(&mut self) {
        let now_ms = monotonic_ms();
        if [self.soon, self.due].iter().flatten().any(|(_, at_ms)| now_ms > at_ms + LATE_MS) {
            // Both are stopped: the server waits for the first of its timers, by the old clock.
            let timers = [self.soon.take(), self.due.take()];
            timers.iter().flatten().for_each(|(timer, _)| stop_timer(*timer));
            self.at_end_of_turn();
        }
    }
}

/// A look at a crowd takes so long at a time, and pauses so long in between.
const SWEEP_SLICE: Duration = Duration::from_micros(300);
const SWEEP_PAUSE_MS: u64 = 10;

/// A look at all of a crowd now and then, in slices: what no server tells its modules has to be looked for.
pub struct Sweep<P> {
    /// What was looked at last, in the middle of a pass.
    after: Option<P>,
    /// When it goes on or begins again, on the monotonic clock.
    pub next_ms: u64,
}

impl<P> Default for Sweep<P> {
    fn default() -> Self {
        Self { after: None, next_ms: 0 }
    }
}

impl<P> Sweep<P> {
    /// Goes on, if it is time. `step` looks at some that come after a position, and says how far it came; `None` at the
    /// end. The next pass begins `every_ms` later.
    pub fn go_on(&mut self, now_ms: u64, every_ms: u64, mut step: impl FnMut(Option<P>) -> Option<P>) {
        if now_ms < self.next_ms {
            return;
        }
        let started = Instant::now();
        loop {
            self.after = step(self.after.take());
            if self.after.is_none() || started.elapsed() >= SWEEP_SLICE {
                break;
            }
        }
        self.next_ms = now_ms + if self.after.is_none() { every_ms } else { SWEEP_PAUSE_MS };
    }
}
